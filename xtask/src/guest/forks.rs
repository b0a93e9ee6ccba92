//! `cargo xtask guest forks`: runs the tests of freezing again, on another kernel than this machine's.
//!
//! Debian 12 has two kernels: 6.1, which is fetched anyway, tells neither which pages are huge (`PAGEMAP_SCAN`, 6.7)
//! nor of one mapping (`PROCMAP_QUERY`, 6.11); and 6.12 tells both, but makes no huge page of a piece without a
//! writable page (before 6.18).

use std::path::PathBuf;

use super::{Arch, GuestError, native};
use crate::{
    linux::{self, Guest, HUGE_PAGES},
    need::Need,
    programs::TestProgram,
    runner::remedies,
    step::StepError,
    workspace::Workspace,
};

/// How the guest is run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// The image of the kernel, for example one that `apt-get download linux-image-6.12.107+deb12-cloud-amd64` and
    /// `dpkg-deb --extract` have left; Debian's 6.1 if none is given.
    #[arg(long, value_name = "VMLINUZ")]
    kernel: Option<PathBuf>,
    /// Run only programs with this text in their names, such as `gather`.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

/// The machine. Two tests at a time fill some hundred MiB each.
const MACHINE: &[&str] = &["-cpu", "max,smap=off", "-accel", "tcg,thread=multi", "-smp", "2", "-m", "2560M"];

const NEEDS: &[Need] = &[
    Need::Program { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need::Program { program: "strip", package: "binutils" },
];

/// The crate with the tests.
const PACKAGE: &str = "palimpsest-fork";

/// Runs the guest.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), GuestError> {
    let arch = Arch::X86_64;
    let mut needs = NEEDS.to_vec();
    if arguments.kernel.is_none() {
        needs.push(Need::GuestKernel(arch));
    }
    let missing = remedies(workspace, &needs);
    if !missing.is_empty() {
        return Err(GuestError::Missing { arch, missing });
    }
    let passed = boot(workspace, arguments).map_err(|source| GuestError::Run { arch, source })?;
    println!("{passed} test programs passed");
    Ok(())
}

/// Boots the guest, and returns how many programs passed.
fn boot(workspace: &Workspace, arguments: &Arguments) -> Result<usize, StepError> {
    let chosen = |programs| chosen(programs, &arguments.only);
    let (init, programs) = native::programs(workspace, &[PACKAGE], "fork-programs", chosen)?;
    let kernel = arguments.kernel.as_deref();
    let guest =
        Guest { name: "forks", arch: Arch::X86_64, kernel, machine: MACHINE, variables: &[HUGE_PAGES], files: &[] };
    linux::boot_all(workspace, &init, &programs, &guest)
}

/// Returns the programs with this text in their names, which are to show what was skipped.
fn chosen(programs: Vec<TestProgram>, only: &str) -> Vec<TestProgram> {
    let chosen = programs.into_iter().filter(|program| program.name.contains(only));
    chosen.map(|program| TestProgram { arguments: vec!["--show-output"], ..program }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_chosen_by_a_part_of_their_names_and_show_what_they_skip() {
        let programs =
            ["fork.lib", "fork.gather"].map(|name| TestProgram::new(name.to_owned(), "/".into(), "/".into()));
        let names = |only: &str| -> Vec<String> {
            let chosen = chosen(programs.to_vec(), only);
            assert!(chosen.iter().all(|program| program.arguments == ["--show-output"]));
            chosen.into_iter().map(|program| program.name).collect()
        };
        assert_eq!((names("gather"), names("").len()), (vec!["fork.gather".to_owned()], 2));
        assert!(names("x").is_empty());
    }
}
