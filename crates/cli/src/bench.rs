//! `palimpsest bench`: the run, and where its results go.

mod arguments;
mod export;
pub(crate) mod format;
mod html;
pub(crate) mod output;
mod progress;
mod table;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) use arguments::Arguments;
use palimpsest_bench::harness::record::{FORMAT_VERSION, Report};
use palimpsest_bench::harness::{Asked, BenchError, Group, Request, Wanted, host, named};
use palimpsest_bench::suites;

use crate::{complain, exit};
use output::OutputError;

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let outcome = match &arguments.from[..] {
        _ if arguments.list => list(arguments),
        [] => measure(arguments),
        records => show(arguments, records),
    };
    finish(outcome)
}

/// Does the part of a measurement that `arguments` name.
pub(crate) fn help(arguments: &[String]) -> ExitCode {
    finish(suites::serve(arguments).map_err(Failure::from))
}

fn finish(outcome: Result<(), Failure>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    complain(&failure);
    match failure {
        Failure::Bench(BenchError::UnknownSuite { .. } | BenchError::NothingMatches { .. })
        | Failure::Output(OutputError::Crowded) => exit::USAGE.into(),
        _ => exit::FAILED.into(),
    }
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no record of `palimpsest bench`", path.display())]
    NoRecord {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} has version {found} of the record, and this program reads version {FORMAT_VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("cannot find this program's own file, which is started to measure")]
    OwnFile(#[source] io::Error),
}

fn print(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().lock().write_all(text.as_bytes()).map_err(OutputError::Standard)?)
}

fn list(arguments: &Arguments) -> Result<(), Failure> {
    let wanted = Wanted::matching(arguments.filter.clone());
    let known = suites::all();
    let all: Vec<String> = known.iter().map(|suite| suite.id().to_owned()).collect();
    let names = if arguments.suites.is_empty() { &all } else { &arguments.suites };
    let mut text = String::new();
    for suite in named(known, names)? {
        let alone = if suite.asked() == Asked::ByName { " (only if it is named)" } else { "" };
        text += &format!("{}: {}{alone}\n", suite.id(), suite.description());
        for group in suite.groups().iter().filter(|group| wanted.group(group)) {
            text += &format!("  {}\n", group.title);
            group.ids().for_each(|id| text += &format!("    {id}\n"));
        }
    }
    print(&text)
}

fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::OwnFile)?;
    let request = Request::default().suites(&arguments.suites).effort(arguments.effort()).program(program);
    let request = match &arguments.filter {
        Some(part) => request.filter(part),
        None => request,
    };
    arguments.outputs.ensure_writable()?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if let Some(load) = host::load_average().filter(|load| *load > cores as f64) {
        crate::tell(format_args!("load average {load:.0} on {cores} CPUs: figures are rough"));
    }
    let report = suites::run(suites::all(), &request, &progress::Lines::new())?;
    tell(arguments, &report)
}

/// Shows what earlier runs have measured.
fn show(arguments: &Arguments, records: &[PathBuf]) -> Result<(), Failure> {
    arguments.outputs.ensure_writable()?;
    let mut reports = records.iter().map(|path| read(path));
    let Some(mut report) = reports.next().transpose()? else { return Ok(()) };
    for other in reports {
        let other = other?;
        report.seconds += other.seconds;
        report.results.extend(other.results);
        report.skipped.extend(other.skipped);
    }
    tell(arguments, &report)
}

fn read(path: &Path) -> Result<Report, Failure> {
    let text = fs::read_to_string(path).map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    let report: Report =
        serde_json::from_str(&text).map_err(|source| Failure::NoRecord { path: path.to_owned(), source })?;
    match report.version {
        FORMAT_VERSION => Ok(report),
        found => Err(Failure::Version { path: path.to_owned(), found }),
    }
}

fn tell(arguments: &Arguments, report: &Report) -> Result<(), Failure> {
    let groups: Vec<Group> = suites::all().iter().flat_map(|suite| suite.groups()).collect();
    if !arguments.outputs.take_standard_output() {
        print(&table::render(report, &groups))?;
    }
    Ok(arguments.outputs.write("palimpsest bench", report, &groups)?)
}
