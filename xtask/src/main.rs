//! `cargo xtask`: the tasks of a Palimpsest developer, as plain Rust.
//!
//! A task is a list of [`step::Step`]s. A step names what it needs ([`need::Need`]); [`install`] can fetch it;
//! [`runner`] runs the steps, some beside each other ([`lanes`]), and prints the table.
#![forbid(unsafe_code)]

mod aarch64;
mod architecture;
mod bench;
mod book;
mod cmake;
mod descendants;
mod guest;
mod install;
mod kernel_log;
mod lanes;
mod linux;
mod need;
mod package;
mod process;
mod programs;
mod runner;
mod step;
mod steps;
mod table;
mod ubpf;
mod workspace;

use std::{error::Error, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{
    runner::{Leftovers, Manner, Selection},
    step::{Depth, Pace, Step},
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
    /// Write the book as HTML pages below the target folder.
    Book,
    /// Pack the program, man pages, completions and the book: a tarball, and a Debian package.
    Package,
    /// Check that the crates can be published: runs the checks of the step `crates`, and wants each to name its
    /// repository.
    ReleaseCheck,
    /// Boot a guest that checks itself and ends.
    Guest {
        #[command(subcommand)]
        guest: Guest,
    },
    /// Build with optimisation and the peers, and run `palimpsest bench` with the arguments given. `adapters` measures
    /// the adapters for other programs' compilers instead, and takes `--quick` and `--check`.
    Bench {
        /// For example `pack --quick`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[derive(Subcommand)]
enum Guest {
    /// Check page tables and code patching on the page walkers of x86-64 and AArch64: run the kernel of
    /// `guests/paging/` in QEMU.
    Paging(guest::Arguments),
    /// `guests/c/` in QEMU: a kernel in C with page tables of `palimpsest_paging.h`.
    C(guest::c::Arguments),
    /// Run the NUMA tests on Debian's kernel, in QEMU, with two large nodes, one without memory and a small one.
    Numa(guest::numa::Arguments),
    /// Run the tests of freezing on an older kernel, in QEMU.
    Forks(guest::forks::Arguments),
}

#[derive(Args)]
struct TestArgs {
    /// Install what is missing first.
    #[arg(long)]
    install: bool,
    /// What to do with a step's own build products when it has passed.
    #[arg(long, value_enum, default_value_t)]
    leftovers: Leftovers,
    /// Run only these steps.
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
    /// Print the steps, and what each lacks here; run nothing.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    extent: Extent,
    /// How many steps run at a time; those that build in one folder follow each other.
    #[arg(long, default_value_t = lanes::default_count())]
    lanes: usize,
    /// Run the one step in this process, and write how it ended to this file.
    #[arg(long, value_name = "FILE", hide = true, requires = "only")]
    verdict: Option<PathBuf>,
}

/// How much to check.
#[derive(Args)]
struct Extent {
    /// Leave out the sanitizers, fuzzing, loom and AArch64.
    #[arg(long, conflicts_with = "exhaustive")]
    quick: bool,
    /// Also run what is usually left out for time; `--list` names it, with reasons.
    #[arg(long)]
    exhaustive: bool,
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
            let pace = if args.extent.quick { Pace::Quick } else { Pace::Slow };
            let selection = Selection { only: args.only, pace };
            let steps = runner::select(&steps::all(), &selection)?;
            let depth = if args.extent.exhaustive { Depth::Exhaustive } else { Depth::Short };
            if args.install {
                let run: Vec<Step> = steps.iter().filter(|step| step.run.is_part_of(depth)).copied().collect();
                install::run(&workspace, &run);
            }
            if args.list {
                table::list(&workspace, &steps);
                return Ok(ExitCode::SUCCESS);
            }
            if let Some(path) = args.verdict {
                return runner::leave_verdict(&workspace, &steps, depth, &path);
            }
            let manner = Manner { depth, leftovers: args.leftovers, lanes: args.lanes };
            Ok(runner::run(&workspace, &steps, manner))
        }
        Task::Install => {
            let steps = runner::select(&steps::all(), &Selection::default())?;
            Ok(install::run(&workspace, &steps))
        }
        Task::Book => {
            let folder = workspace.separate_target(book::FOLDER);
            let mut cargo = process::cargo(&workspace);
            process::stream(cargo.args(["build", "--package", "palimpsest-live-cli"]))?;
            let program = workspace.target.join("debug/palimpsest");
            let pages = book::build(&workspace, &folder, Some(&program))?;
            println!("{pages} chapters: {}", folder.join("index.html").display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Package => {
            let package::Made { tarball, deb, remarks, .. } = package::build(&workspace, package::Built::ToPublish)?;
            remarks.iter().for_each(|remark| println!("{remark}"));
            println!("{}", tarball.display());
            println!(
                "{}",
                deb.map_or_else(|| "no .deb: dpkg-deb is missing".to_owned(), |deb| deb.display().to_string())
            );
            Ok(ExitCode::SUCCESS)
        }
        Task::ReleaseCheck => {
            let count = package::check_release(&workspace)?;
            println!("{count} crates can be published");
            Ok(ExitCode::SUCCESS)
        }
        Task::Guest { guest: Guest::Paging(arguments) } => {
            guest::run(&workspace, &arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Guest { guest: Guest::C(arguments) } => {
            guest::c::run(&workspace, &arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Guest { guest: Guest::Numa(arguments) } => {
            guest::numa::run(&workspace, &arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Guest { guest: Guest::Forks(arguments) } => {
            guest::forks::run(&workspace, &arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Bench { args } => {
            match args.split_first() {
                Some((first, rest)) if first == bench::ADAPTERS => bench::adapters(&workspace, rest)?,
                _ => bench::suites(&workspace, &args)?,
            }
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
    fn guests_take_an_architecture() {
        let cli = Cli::try_parse_from(["cargo xtask", "guest", "paging", "--arch", "aarch64"]);
        assert!(matches!(cli, Ok(Cli { task: Task::Guest { guest: Guest::Paging(_) } })));
        let cli = Cli::try_parse_from(["cargo xtask", "guest", "numa", "--arch", "x86_64"]);
        assert!(matches!(cli, Ok(Cli { task: Task::Guest { guest: Guest::Numa(_) } })));
        let cli = Cli::try_parse_from(["cargo xtask", "guest", "forks", "--kernel", "vmlinuz"]);
        assert!(matches!(cli, Ok(Cli { task: Task::Guest { guest: Guest::Forks(_) } })));
        let cli = Cli::try_parse_from(["cargo xtask", "guest", "c", "--arch", "x86_64"]);
        assert!(matches!(cli, Ok(Cli { task: Task::Guest { guest: Guest::C(_) } })));
        assert!(Cli::try_parse_from(["cargo xtask", "guest"]).is_err());
    }

    #[test]
    fn only_takes_a_list() {
        let cli = Cli::try_parse_from(["cargo xtask", "test", "--only", "fmt,test"]).expect("valid arguments");
        assert!(matches!(cli.task, Task::Test(args) if args.only == ["fmt", "test"]));
    }
}
