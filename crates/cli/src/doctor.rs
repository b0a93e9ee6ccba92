//! `palimpsest doctor`: how each feature fares here, what was tried, and how to get more.

mod paint;
mod programs;
mod text;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;
use palimpsest_sys::capabilities::{Capabilities, Feature, Finding, Grade, Machine, Standing};
use serde::Serialize;

use crate::exit;
use paint::Paint;

/// Version of the JSON layout. It changes when a field changes its meaning or disappears.
const FORMAT_VERSION: u32 = 2;

/// Shows how each feature fares on this machine, kernel, container and user, and how to get more.
///
/// Exit code: 0 if every feature works at its best, 1 if some work slower, 3 if some do not work; 2 if the command line
/// is wrong, 4 if the report cannot be written.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Everything in the report.
#[derive(Serialize)]
struct Report {
    version: u32,
    /// Of this program.
    palimpsest: &'static str,
    machine: Machine,
    choice: Choice,
    grade: Grade,
    features: Vec<Standing>,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Choice {
    backing: Option<String>,
    core_sync: Option<&'static str>,
}

impl Report {
    /// Judges these facts; `beside` are the features that depend on other programs.
    fn of(capabilities: Capabilities, beside: Vec<Standing>) -> Self {
        let choice = capabilities.choice();
        let mut features = capabilities.features();
        features.extend(beside);
        let mut report = Self {
            version: FORMAT_VERSION,
            palimpsest: env!("CARGO_PKG_VERSION"),
            choice: Choice {
                backing: choice.backing.map(|backing| backing.to_string()),
                core_sync: choice.core_sync_name(),
            },
            grade: Grade::Best,
            findings: capabilities.findings(),
            features,
            machine: capabilities.machine,
        };
        report.grade = report.counted().map(|standing| standing.verdict.grade()).max().unwrap_or(Grade::Best);
        report
    }

    /// Returns the features that users come for. Guests are for people who work on page tables, which work anywhere.
    fn counted(&self) -> impl Iterator<Item = &Standing> {
        self.features.iter().filter(|standing| standing.feature != Feature::PagingGuests)
    }

    fn exit_code(&self) -> u8 {
        match self.grade {
            Grade::Best => 0,
            Grade::Slower => exit::SLOWER,
            Grade::Fails => exit::FAILS,
        }
    }
}

/// Tries everything and prints the report.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let capabilities = Capabilities::probe();
    let beside = programs::judge(&capabilities);
    let report = Report::of(capabilities, beside);
    match print(args, &report) {
        Ok(()) => report.exit_code().into(),
        Err(error) => {
            // Standard error may be gone as well, which must not hide the exit code.
            let _ = writeln!(io::stderr(), "palimpsest doctor: the report cannot be written: {error}");
            exit::UNWRITTEN.into()
        }
    }
}

fn print(args: &DoctorArgs, report: &Report) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let text = if args.json {
        serde_json::to_string_pretty(report)? + "\n"
    } else {
        text::render(report, Paint::choose(stdout.is_terminal(), |name| std::env::var_os(name)))
    };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader has seen enough, as in `palimpsest doctor | head`; the exit code still tells.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests;
