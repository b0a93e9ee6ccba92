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
use output::{Opened, OutputError};

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
        | Failure::Output(OutputError::Crowded { .. }) => exit::USAGE.into(),
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
    let outputs = arguments.outputs.open()?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if let Some(load) = host::load_average().filter(|load| *load > cores as f64) {
        crate::tell(format_args!("load average {load:.0} on {cores} CPUs: figures are rough"));
    }
    let run = suites::run(suites::all(), &request, &progress::Lines::new());
    ended(run, |report| tell(&outputs, report))
}

/// Tells of a run; of one that ended early, too.
fn ended(run: Result<Report, BenchError>, tell: impl FnOnce(&Report) -> Result<(), Failure>) -> Result<(), Failure> {
    match run {
        Ok(report) => tell(&report),
        Err(BenchError::Cut { report, source }) => {
            if let Err(untold) = tell(&report) {
                crate::tell(format_args!("the report is not shown or written: {untold}"));
            }
            Err(BenchError::Cut { report, source }.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Shows what earlier runs have measured.
fn show(arguments: &Arguments, records: &[PathBuf]) -> Result<(), Failure> {
    let outputs = arguments.outputs.open()?;
    let reports = records.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    joined(reports).map_or(Ok(()), |report| tell(&outputs, &report))
}

/// Returns all of them as one, on the machine of the first; figures from another machine say so.
fn joined(reports: impl IntoIterator<Item = Report>) -> Option<Report> {
    let mut reports = reports.into_iter();
    let mut all = reports.next()?;
    let heading = format::machine(&all.machine);
    for mut other in reports {
        let machine = format::machine(&other.machine);
        if machine != heading {
            for entry in &mut other.results {
                let elsewhere = format!("measured on {machine}");
                entry.note = Some(entry.note.take().map_or(elsewhere.clone(), |note| format!("{note}; {elsewhere}")));
            }
        }
        all.seconds += other.seconds;
        all.results.extend(other.results);
        all.skipped.extend(other.skipped);
    }
    Some(all)
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

fn tell(outputs: &Opened<'_>, report: &Report) -> Result<(), Failure> {
    let groups: Vec<Group> = suites::all().iter().flat_map(|suite| suite.groups()).collect();
    if !outputs.take_standard_output() {
        print(&table::render(report, &groups))?;
    }
    Ok(outputs.write("palimpsest bench", report, &groups)?)
}

#[cfg(test)]
mod tests {
    use palimpsest_bench::harness::record::Entry;

    use super::*;

    #[test]
    fn a_run_that_ended_early_is_told_before_its_error() {
        let source = Box::new(BenchError::Helper { contestant: "thp".into(), reason: "no".into() });
        let cut = BenchError::Cut { report: Box::new(format::tests::report()), source };
        let mut told = 0;
        let outcome = ended(Err(cut), |report| {
            told = report.results.len();
            Ok(())
        });
        assert!(matches!(outcome, Err(Failure::Bench(BenchError::Cut { .. }))));
        assert_eq!(told, format::tests::report().results.len());
    }

    #[test]
    fn figures_of_another_machine_than_the_heading_say_so() {
        let here = format::tests::report();
        let mut elsewhere = format::tests::report();
        elsewhere.machine.cpu = "Another CPU".to_owned();
        let count = here.results.len();
        let all = joined([here.clone(), here.clone(), elsewhere]).expect("three records");
        let says = |entry: &Entry| entry.note.as_deref().is_some_and(|note| note.contains("measured on Another CPU"));
        assert_eq!((all.machine, all.results.len()), (here.machine, 3 * count));
        assert!(all.results[2 * count..].iter().all(says) && !all.results[..2 * count].iter().any(says));
    }
}
