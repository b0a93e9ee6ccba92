//! `cargo xtask`: the tasks of a Palimpsest developer, as plain Rust.
//!
//! A task is a list of [`step::Step`]s. A step names what it needs ([`need::Need`]); [`install`] can fetch it; [`runner`] runs the steps and prints the table.
#![forbid(unsafe_code)]

mod aarch64;
mod bench;
mod install;
mod need;
mod paging_guest;
mod process;
mod runner;
mod step;
mod steps;
mod table;
mod workspace;

use std::{error::Error, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{
    runner::{Leftovers, Selection},
    step::Pace,
    workspace::Workspace,
};

/// Tasks for working on Palimpsest.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check that this machine can, and say what was skipped and what would enable it.
    Test(TestArgs),
    /// Install what the checks need: Debian packages, rustup components, the kernel of the AArch64 guest.
    Install,
    /// Boot a guest that checks itself and ends.
    Guest {
        #[command(subcommand)]
        guest: Guest,
    },
    /// Measure a real program (`afl`, `python`, `redis`), or build with optimisation and the peers and run `palimpsest bench` with the arguments given.
    Bench {
        /// A program and its options, for example `afl --quick`, or arguments of `palimpsest bench`, for example `pack --quick`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[derive(Subcommand)]
enum Guest {
    /// The page tables and the code patching of Palimpsest on the page walkers of x86-64 and AArch64: the kernel of `kernel/`, in QEMU.
    Paging(paging_guest::Arguments),
}

#[derive(Args)]
struct TestArgs {
    /// Install what is missing first.
    #[arg(long)]
    install: bool,
    /// What becomes of what a step has built for itself when it has passed.
    #[arg(long, value_enum, default_value_t)]
    leftovers: Leftovers,
    /// Run these steps alone.
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
    /// Name the steps and what each lacks here, and run nothing.
    #[arg(long)]
    list: bool,
    /// Leave out the sanitizers, fuzzing, loom and AArch64.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cargo xtask: {}", step::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode, Box<dyn Error>> {
    let workspace = Workspace::find();
    match task {
        Task::Test(args) => {
            let pace = if args.quick { Pace::Quick } else { Pace::Slow };
            let selection = Selection { only: args.only, pace };
            let steps = runner::select(&steps::all(), &selection)?;
            if args.install {
                install::run(&workspace, &steps);
            }
            if args.list {
                table::list(&workspace, &steps);
                return Ok(ExitCode::SUCCESS);
            }
            Ok(runner::run(&workspace, &steps, args.leftovers))
        }
        Task::Install => {
            let steps = runner::select(&steps::all(), &Selection::default())?;
            Ok(install::run(&workspace, &steps))
        }
        Task::Guest { guest: Guest::Paging(arguments) } => {
            paging_guest::run(&workspace, &arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Bench { args } if bench::is_program(&args) => {
            bench::run(&workspace, &args)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Bench { args } => {
            let mut bench = process::cargo(&workspace);
            bench
                .args(["run", "--release", "--package", "palimpsest-cli", "--features", "peers", "--", "bench"])
                .args(args);
            process::stream(&mut bench)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bench_passes_flags_on() {
        let cli = Cli::try_parse_from(["cargo xtask", "bench", "pack", "--quick"]).expect("valid arguments");
        assert!(matches!(cli.task, Task::Bench { args } if args == ["pack", "--quick"]));
    }

    #[test]
    fn the_paging_guest_takes_an_architecture() {
        let cli = Cli::try_parse_from(["cargo xtask", "guest", "paging", "--arch", "aarch64"]);
        assert!(matches!(cli, Ok(Cli { task: Task::Guest { guest: Guest::Paging(_) } })));
        assert!(Cli::try_parse_from(["cargo xtask", "guest"]).is_err());
    }

    #[test]
    fn only_takes_a_list() {
        let cli = Cli::try_parse_from(["cargo xtask", "test", "--only", "fmt,test"]).expect("valid arguments");
        assert!(matches!(cli.task, Task::Test(args) if args.only == ["fmt", "test"]));
    }
}
