//! `palimpsest`: what this machine allows (`doctor`), what that is worth (`bench`), programs with it (`run`), and eBPF
//! programs (`bpf`).
//!
//! Exit codes are part of the interface; see [`exit`].
#![forbid(unsafe_code)]

#[cfg(feature = "bench")]
mod bench;
#[cfg(not(feature = "bench"))]
#[path = "no_bench.rs"]
mod bench;
mod bpf;
mod doctor;
mod exit;
mod run;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palimpsest_sys::Causes;

/// Rewrite memory while it is in use: what this machine allows, and what it is worth.
#[derive(Debug, Parser)]
#[command(name = "palimpsest", version, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tell what this machine, kernel, container and user allow, and what Palimpsest makes of it.
    Doctor(doctor::DoctorArgs),
    /// Measure Palimpsest against what people do today, in one run.
    Bench(bench::Arguments),
    /// Run a program with memory that forks in constant time.
    Run(run::Arguments),
    /// Assemble, show, verify and run eBPF programs.
    Bpf(bpf::Arguments),
    /// Count the memory that one contestant needs, in this process; `bench` starts it.
    #[cfg(feature = "bench")]
    #[command(name = bench::PROBE, hide = true)]
    MemoryProbe {
        /// Last part of the figure's id.
        contestant: String,
    },
    /// Fork with a heap of some size as standard input asks, in this process; `bench` starts it.
    #[cfg(feature = "bench")]
    #[command(name = bench::FORK_WORKER, hide = true)]
    ForkWorker {
        /// Last part of the figure's id.
        contestant: String,
        /// Bytes of the heap.
        bytes: usize,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Bpf(arguments) => bpf::run(&arguments),
        #[cfg(feature = "bench")]
        Command::MemoryProbe { contestant } => bench::probe(&contestant),
        #[cfg(feature = "bench")]
        Command::ForkWorker { contestant, bytes } => bench::fork_worker(&contestant, bytes),
    }
}

/// Prints an error and its causes in one line to standard error.
fn complain(error: &dyn Error) {
    eprintln!("palimpsest: {}", Causes(error));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[cfg(feature = "bench")]
    #[test]
    fn bench_takes_suites_and_flags_in_any_order() {
        let parsed =
            Cli::try_parse_from(["palimpsest", "bench", "pack", "--quick", "--json", "a.json", "--filter", "call"]);
        let Command::Bench(arguments) = parsed.expect("a valid line").command else {
            panic!("not bench");
        };
        assert_eq!(arguments.suites, ["pack"]);
        assert!(arguments.quick);
        assert_eq!(arguments.json.as_deref(), Some("a.json".as_ref()));
        assert_eq!(arguments.html, None);
        assert_eq!(arguments.filter.as_deref(), Some("call"));
    }

    #[test]
    fn unknown_flags_and_missing_commands_are_refused() {
        assert!(Cli::try_parse_from(["palimpsest"]).is_err());
        assert!(Cli::try_parse_from(["palimpsest", "run", "--nosuch"]).is_err());
        #[cfg(feature = "bench")]
        for line in [["palimpsest", "bench", "--nosuch"], ["palimpsest", "bench", "--json"]] {
            assert!(Cli::try_parse_from(line).is_err());
        }
    }
}
