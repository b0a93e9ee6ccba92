//! `palimpsest doctor`: what is allowed here, what Palimpsest makes of it, and how to get more.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use palimpsest_sys::capabilities::{Capabilities, Finding, Grade, Machine, Status};
use serde::Serialize;

/// Version of the JSON layout. It changes when a field changes its meaning or disappears.
const FORMAT_VERSION: u32 = 1;

/// Tells what this machine, kernel, container and user allow, what Palimpsest will use, and how to get more.
///
/// Exit code: 0 if everything works at its best, 1 if something works by a fallback, 2 if something needed is missing.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Probes the machine and prints the report.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let capabilities = Capabilities::probe();
    if let Err(error) = print(args, &capabilities) {
        eprintln!("palimpsest doctor: the report cannot be written: {error}");
        return ExitCode::from(exit_code(Grade::Missing));
    }
    ExitCode::from(exit_code(capabilities.grade()))
}

fn print(args: &DoctorArgs, capabilities: &Capabilities) -> io::Result<()> {
    let report = if args.json { render_json(capabilities)? } else { render(capabilities) };
    match io::stdout().lock().write_all(report.as_bytes()) {
        // The reader has seen enough, as in `palimpsest doctor | head`; the exit code still tells.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn exit_code(grade: Grade) -> u8 {
    match grade {
        Grade::Best => 0,
        Grade::Fallbacks => 1,
        Grade::Missing => 2,
    }
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    machine: &'a Machine,
    choice: Choice,
    grade: Grade,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Choice {
    backing: Option<String>,
    core_sync: Option<&'static str>,
}

impl Choice {
    fn of(capabilities: &Capabilities) -> Self {
        let choice = capabilities.choice();
        Self { backing: choice.backing.map(|backing| backing.to_string()), core_sync: choice.core_sync_name() }
    }
}

fn render_json(capabilities: &Capabilities) -> serde_json::Result<String> {
    let report = Report {
        version: FORMAT_VERSION,
        machine: &capabilities.machine,
        choice: Choice::of(capabilities),
        grade: capabilities.grade(),
        findings: capabilities.findings(),
    };
    serde_json::to_string_pretty(&report).map(|text| text + "\n")
}

fn render(capabilities: &Capabilities) -> String {
    let findings = capabilities.findings();
    let mut text = headline(&capabilities.machine);
    text.push('\n');
    for finding in &findings {
        render_finding(&mut text, finding);
    }
    let choice = Choice::of(capabilities);
    let none = || "none works".to_owned();
    let backing = choice.backing.unwrap_or_else(none);
    let core_sync = choice.core_sync.map_or_else(none, str::to_owned);
    // Writing to a string cannot fail, here and below.
    let _ = write!(text, "\nPalimpsest will use\n  backing    {backing}\n  core sync  {core_sync}\n\n");
    text + &verdict(&findings, capabilities.grade())
}

fn headline(machine: &Machine) -> String {
    let Machine { kernel, architecture, page_size, huge_page_size, numa_nodes } = machine;
    let huge =
        huge_page_size.map_or_else(|| "no huge pages".to_owned(), |bytes| format!("{} huge pages", binary(bytes)));
    let nodes = numa_nodes.len();
    let plural = if nodes == 1 { "" } else { "s" };
    format!("Linux {kernel}, {architecture}, {} pages, {huge}, {nodes} NUMA node{plural}\n", binary(*page_size))
}

fn binary(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn render_finding(text: &mut String, Finding { subject, measured, status }: &Finding) {
    let (word, seen, uses, fix) = match status {
        Status::Best => ("best", measured, None, None),
        Status::Unneeded { why, fix } => ("unneeded", why, None, Some(fix)),
        Status::Fallback { uses, why, fix } => ("fallback", why, Some(uses), Some(fix)),
        Status::Missing { why, fix } => ("MISSING", why, None, Some(fix)),
    };
    let _ = writeln!(text, "  {word:<10}{subject:<16}{seen}");
    for (label, line) in [("uses", uses), ("fix", fix)] {
        if let Some(line) = line {
            let _ = writeln!(text, "{:28}{label:<4}  {line}", "");
        }
    }
}

fn verdict(findings: &[Finding], grade: Grade) -> String {
    let count = |is: fn(&Status) -> bool| findings.iter().filter(|finding| is(&finding.status)).count();
    match grade {
        Grade::Best => "Everything works at its best.\n".to_owned(),
        Grade::Fallbacks => {
            let fallbacks = count(|status| matches!(status, Status::Fallback { .. }));
            format!("Everything works, {fallbacks} of {} by a fallback.\n", findings.len())
        }
        Grade::Missing => {
            let missing = count(|status| matches!(status, Status::Missing { .. }));
            format!("Code cannot be loaded here: {missing} of {} needed and missing.\n", findings.len())
        }
    }
}

#[cfg(test)]
mod tests;
