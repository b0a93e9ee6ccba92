#![doc = include_str!("../README.md")]
//!
//! # Commands
//!
//! A look at what it does (`tour`), what this machine allows (`doctor`), what that is worth (`bench`),
//! programs with it (`run`), and what it does for them (`top`), eBPF programs (`bpf`), and NUMA nodes (`numa`).
//!
//! Exit codes are part of the interface; see [`exit`].
#![forbid(unsafe_code)]

mod bench;
mod bpf;
mod doctor;
#[cfg(feature = "documents")]
mod documents;
mod exit;
mod hidden;
mod numa;
mod run;
mod top;
mod tour;

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palimpsest_sys::Causes;

/// Rewrite memory while it is in use: what this machine allows, and what it is worth.
#[derive(Debug, Parser)]
#[command(name = "palimpsest", version, after_help = exit::HELP)]
struct Cli {
    /// Without one, the tour.
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show seven things live, each compared with what people do today, in half a minute; the default command.
    Tour(tour::Arguments),
    /// Show what this machine, kernel, container and user allow, and what Palimpsest makes of it.
    Doctor(doctor::DoctorArgs),
    /// Measure Palimpsest against what people do today, in one run.
    Bench(bench::Arguments),
    /// Run a program so that its forks are short.
    ///
    /// By default its memory is gathered into huge pages while it waits, or frozen if it forks without waiting; the
    /// first fork that is worth it stays plain.
    Run(run::Arguments),
    /// Show what freezing costs running processes, and what it saves them.
    Top(top::Arguments),
    /// Assemble, disassemble, verify and run eBPF programs.
    Bpf(bpf::Arguments),
    /// Show the NUMA nodes of this machine, or where the memory of a process is.
    Numa(numa::Arguments),
    /// Write man pages and completions to a folder.
    #[cfg(feature = "documents")]
    #[command(hide = true)]
    Documents {
        /// The folder, which is created.
        folder: std::path::PathBuf,
    },
    /// Do part of a measurement in this process, as the arguments say; `bench` and `tour` start it.
    #[command(name = palimpsest_bench::harness::HELPER, hide = true)]
    Helper {
        /// The helper's name and its arguments.
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command.unwrap_or_else(|| Command::Tour(tour::Arguments::default())) {
        Command::Tour(arguments) => tour::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Bpf(arguments) => bpf::run(&arguments),
        Command::Numa(arguments) => numa::run(&arguments),
        #[cfg(feature = "documents")]
        Command::Documents { folder } => documents::write(&folder),
        Command::Helper { arguments } => bench::help(&arguments),
    }
}

/// Prints an error and its causes in one line to standard error.
fn complain(error: &dyn Error) {
    tell(format_args!("{}", Causes(error)));
}

/// Prints a line to standard error. That may be full, or gone: what is to be done, and the exit code, are the same.
fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "palimpsest: {line}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bench_takes_suites_and_flags_in_any_order() {
        let parsed =
            Cli::try_parse_from(["palimpsest", "bench", "pack", "--quick", "--json", "a.json", "--filter", "call"]);
        let Some(Command::Bench(arguments)) = parsed.expect("a valid line").command else {
            panic!("not bench");
        };
        assert_eq!(arguments.suites, ["pack"]);
        assert_eq!(arguments.effort(), palimpsest_bench::harness::Effort::Quick);
        assert_eq!(arguments.outputs.json.as_deref(), Some("a.json".as_ref()));
        assert_eq!(arguments.outputs.html, None);
        assert_eq!(arguments.filter.as_deref(), Some("call"));
    }

    #[test]
    fn without_a_command_it_is_the_tour_and_unknown_flags_are_refused() {
        assert!(matches!(Cli::try_parse_from(["palimpsest"]), Ok(Cli { command: None })));
        let tour = Cli::try_parse_from(["palimpsest", "tour", "--html", "t.html"]).expect("a valid line");
        assert!(matches!(tour.command, Some(Command::Tour(_))));
        assert!(Cli::try_parse_from(["palimpsest", "run", "--nosuch"]).is_err());
        for line in [&["--nosuch"][..], &["--json"], &["--quick", "--check"], &["pack", "--from", "a.json"]] {
            let line = ["palimpsest", "bench"].iter().chain(line);
            assert!(Cli::try_parse_from(line).is_err());
        }
    }
}
