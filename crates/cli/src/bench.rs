//! `palimpsest bench`: arguments, the run, and where its results go.

mod format;
mod html;
mod progress;
mod table;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use palimpsest_bench::record::Report;
use palimpsest_bench::{BenchError, Effort, Request, Wanted, suites};

use crate::{complain, exit};

/// Name of the hidden command that measures memory in a process of its own.
pub(crate) const PROBE: &str = "bench-memory-probe";

/// Name of the hidden command that forks for the suite `fork` in a process of its own.
pub(crate) const FORK_WORKER: &str = "bench-fork-worker";

/// What to measure and where to leave the results.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Suites to run; all if none is named.
    #[arg(value_name = "SUITE")]
    pub(crate) suites: Vec<String>,
    /// Fewer and shorter runs: under a minute in all, wider spread.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the results as JSON to this file, `-` for standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the results as one self-contained HTML page to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Measure only groups of figures with an id that contains this text.
    #[arg(long, value_name = "SUBSTR")]
    pub(crate) filter: Option<String>,
    /// Print the suites and the ids of their figures, and measure nothing.
    #[arg(long)]
    pub(crate) list: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let outcome = if arguments.list { list(arguments) } else { measure(arguments) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            match failure {
                Failure::Bench(BenchError::UnknownSuite { .. } | BenchError::NothingMatches { .. }) => {
                    exit::USAGE.into()
                }
                _ => exit::FAILED.into(),
            }
        }
    }
}

/// Runs the hidden command: measures `contestant` in this process and prints JSON.
pub(crate) fn probe(contestant: &str) -> ExitCode {
    let outcome = suites::pack::probe_memory(contestant)
        .map_err(Failure::from)
        .and_then(|probe| Ok(serde_json::to_writer(io::stdout().lock(), &probe)?));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            exit::FAILED.into()
        }
    }
}

/// Runs the hidden command: forks as `contestant` with a heap of `bytes`, as standard input asks.
pub(crate) fn fork_worker(contestant: &str, bytes: usize) -> ExitCode {
    match suites::fork::work(contestant, bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            exit::FAILED.into()
        }
    }
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
    #[error("cannot turn the results into JSON")]
    Json(#[from] serde_json::Error),
    #[error("cannot find this program's own file, which is started to measure memory")]
    OwnFile(#[source] io::Error),
}

fn list(arguments: &Arguments) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let wanted = Wanted::matching(arguments.filter.clone());
    for suite in palimpsest_bench::named(suites::all(), &arguments.suites)? {
        writeln!(out, "{}: {}", suite.id(), suite.description())?;
        for group in suite.groups().iter().filter(|group| wanted.group(group)) {
            writeln!(out, "  {}", group.title)?;
            for id in &group.figures {
                writeln!(out, "    {id}")?;
            }
        }
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let own_file = std::env::current_exe().map_err(Failure::OwnFile)?;
    let request = Request {
        suites: arguments.suites.clone(),
        filter: arguments.filter.clone(),
        effort: if arguments.quick { Effort::Quick } else { Effort::Full },
        memory_probe: Some(vec![own_file.clone(), PROBE.into()]),
        fork_worker: Some(vec![own_file, FORK_WORKER.into()]),
    };
    for path in [&arguments.json, &arguments.html].into_iter().flatten().filter(|path| !is_stdout(path)) {
        ensure_writable(path)?;
    }
    let report = palimpsest_bench::run(suites::all(), &request, &progress::Bar::new())?;
    let groups: Vec<_> = suites::all().iter().flat_map(|suite| suite.groups()).collect();
    if !arguments.json.as_deref().is_some_and(is_stdout) {
        write!(io::stdout().lock(), "{}", table::render(&report, &groups))?;
    }
    if let Some(path) = &arguments.json {
        write_json(&report, path)?;
    }
    if let Some(path) = &arguments.html {
        fs::write(path, html::render(&report, &groups))
            .map_err(|source| Failure::Write { path: path.clone(), source })?;
    }
    Ok(())
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// A run takes minutes; a wrong path is told before it.
fn ensure_writable(path: &Path) -> Result<(), Failure> {
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|source| Failure::Write { path: path.to_owned(), source })
}

fn write_json(report: &Report, path: &Path) -> Result<(), Failure> {
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    if is_stdout(path) {
        return Ok(io::stdout().lock().write_all(json.as_bytes())?);
    }
    fs::write(path, json).map_err(|source| Failure::Write { path: path.to_owned(), source })
}
