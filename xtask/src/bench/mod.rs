//! `cargo xtask bench afl|redis|python`: real programs from Debian's packages, measured with and without Palimpsest.
//!
//! Everything else after `cargo xtask bench` goes to `palimpsest bench`. A program measures rounds in which each
//! contestant runs once, leaves [`record::Figure`]s, and checks that what it compares does the same work.

mod afl;
mod modes;
mod python;
mod record;
mod redis;
mod simple;

use std::path::PathBuf;

use clap::Parser;

use crate::{step::StepError, workspace::Workspace};

use record::Figure;

/// A program that can be measured. A new one is a module and a line here.
struct Program {
    /// As given on the command line.
    name: &'static str,
    /// Runs it, and returns what it measured.
    run: fn(&Workspace, &Arguments) -> Result<Outcome, BenchError>,
}

const PROGRAMS: &[Program] = &[
    Program { name: "afl", run: afl::run },
    Program {
        name: "python",
        run: |workspace, arguments| simple::run(workspace, arguments, "python", python::measure),
    },
    Program { name: "redis", run: |workspace, arguments| simple::run(workspace, arguments, "redis", redis::measure) },
];

/// How a real program is measured.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, bin_name = "cargo xtask bench PROGRAM", disable_help_subcommand = true)]
struct Arguments {
    /// Fewer and shorter runs, wider spread.
    #[arg(long)]
    quick: bool,
    /// Measure nothing; only check that all contestants do the same work, on less data. For `afl`.
    #[arg(long)]
    check: bool,
    /// Write the results as JSON, in the format of `palimpsest bench`, to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What a program has to tell.
#[derive(Default)]
struct Outcome {
    /// What was measured, in the order of the table.
    figures: Vec<Figure>,
    /// Sentences for below the table, for example whether a target was reached.
    remarks: Vec<String>,
}

/// Why a program could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    #[error("there is no {program}; install Debian package {package}")]
    Missing { program: &'static str, package: &'static str },
    #[error("cargo's answer names no source of {package}: {found}")]
    NoSource { package: &'static str, found: String },
    #[error("{} has no number for {name:?}; the end of the log is\n{log}", file.display())]
    NoNumber { file: PathBuf, name: &'static str, log: String },
    #[error("{contestant} did other work than {reference} on {inputs:?}")]
    Unequal { contestant: String, reference: String, inputs: Vec<String> },
    #[error(transparent)]
    Program(#[from] modes::ProgramError),
    #[error(
        "{program} has nothing for --check: `cargo test -p palimpsest-preload` checks that it does the same work frozen"
    )]
    NothingToCheck { program: &'static str },
    #[error("{what} wrote no JSON")]
    Json {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// Whether the first argument of `cargo xtask bench` is one of these programs.
pub(crate) fn is_program(arguments: &[String]) -> bool {
    arguments.first().is_some_and(|name| find(name).is_some())
}

fn find(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| program.name == name)
}

/// Measures the program that the first argument names, and shows the results.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), BenchError> {
    let Some(program) = arguments.first().and_then(|name| find(name)) else { return Ok(()) };
    let arguments = Arguments::try_parse_from(&arguments[1..])?;
    let start = std::time::Instant::now();
    let outcome = (program.run)(workspace, &arguments)?;
    print!("{}", record::table(&outcome.figures));
    for remark in &outcome.remarks {
        println!("{remark}");
    }
    if let Some(path) = &arguments.json {
        record::write(path, &outcome.figures, start.elapsed())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_programs_are_taken_from_palimpsest_bench() {
        assert!(is_program(&words("afl --quick")));
        assert!(!is_program(&words("fork --quick")));
        assert!(!is_program(&[]));
    }

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Arguments::command().debug_assert();
        let arguments = Arguments::try_parse_from(words("--quick --json out.json")).expect("valid");
        assert!(arguments.quick && !arguments.check && arguments.json == Some("out.json".into()));
    }
}
