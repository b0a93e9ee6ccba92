//! Builds the test programs for AArch64.

use std::{path::PathBuf, process::Command};

use super::{Compiler, DEBIAN_RUSTC, LINKER, TARGET};
use crate::{
    process,
    programs::{self, TestProgram},
    step::{Done, StepError},
    workspace::Workspace,
};

/// The crates with code of their own for each architecture.
const PACKAGES: [&str; 6] = [
    "palimpsest-bpf",
    "palimpsest-fork",
    "palimpsest-forkserver",
    "palimpsest-numa",
    "palimpsest-sys",
    "palimpsest-text",
];

/// Programs that run only in the guest with several nodes.
pub(crate) const NUMA: &str = "numa.";

pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let programs = test_programs(workspace)?;
    guest_init(workspace)?;
    // No guest has programs to start with it, but it has code of its own for each architecture, too.
    process::stream(cross_cargo(workspace, "build").args(["--package", "palimpsest-preload"]))?;
    Ok(Done::PassedWith(format!("{} test programs", programs.len())))
}

/// Builds the tests and returns their programs.
pub(crate) fn test_programs(workspace: &Workspace) -> Result<Vec<TestProgram>, StepError> {
    let mut test = cross_cargo(workspace, "test");
    test.arg("--all-features");
    for package in PACKAGES {
        test.args(["--package", package]);
    }
    programs::build(&mut test)
}

/// Builds the guest's `/init` and returns its path.
pub(crate) fn guest_init(workspace: &Workspace) -> Result<PathBuf, StepError> {
    let mut build = cross_cargo(workspace, "build");
    build.args(["--package", "guest-init"]);
    process::stream(&mut build)?;
    Ok(workspace.separate_target(FOLDER).join(TARGET).join("debug/guest-init"))
}

fn cross_cargo(workspace: &Workspace, task: &str) -> Command {
    let mut cargo = process::cargo(workspace);
    cargo.args([task, "--target", TARGET]).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    // Emulation is slow, and the programs are sent in an initramfs: some optimisation, no debug information.
    cargo.envs([
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_DEV_STRIP", "debuginfo"),
    ]);
    process::apart(&mut cargo, workspace, FOLDER);
    if matches!(Compiler::find(workspace), Some(Compiler::Debian)) {
        cargo.env("RUSTC", DEBIAN_RUSTC);
    }
    cargo
}

/// The target folder; apart from the host's, since the compiler may be another one.
pub(crate) const FOLDER: &str = "aarch64";
