//! Builds the test programs for AArch64.

use std::{path::PathBuf, process::Command};

use super::{Compiler, DEBIAN_RUSTC, LINKER, TARGET, left_out};
use crate::{
    process,
    programs::{self, TestProgram},
    step::{Depth, Done, LeftOut, StepError},
    workspace::Workspace,
};

/// The crates with code of their own for each architecture, and tests that run in guests; the name of each is that of
/// its folder.
const TESTED: [&str; 6] = ["bpf", "fork", "forkserver", "numa", "sys", "text"];
/// What is built beside them: the object of `palimpsest run`, which has code of its own for each architecture and no
/// guest with programs to start, and the guests' `/init`.
const BESIDE: [&str; 2] = ["palimpsest-preload", INIT];
const INIT: &str = "guest-init";

/// Whether a program runs only in the guest with several nodes.
pub(crate) fn needs_nodes(name: &str) -> bool {
    name.starts_with("numa.") || name == UNMODIFIED
}

/// Runs unmodified programs with the object; the other tests of that crate have programs to build and to start.
const UNMODIFIED: &str = "preload.nodes";

/// Returns where the object of `palimpsest run` is once [`guest_init`] has built it.
pub(crate) fn object(workspace: &Workspace) -> PathBuf {
    workspace.separate_target(FOLDER).join(TARGET).join("debug/libpalimpsest_preload.so")
}

pub(crate) const LEFT_OUT: &[LeftOut] = &[LeftOut {
    what: "test programs that aarch64-system leaves out",
    reason: "they have no code of their own for an architecture",
}];

pub(crate) fn step(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let programs = test_programs(workspace, depth)?;
    guest_init(workspace)?;
    Ok(Done::PassedWith(format!("{} test programs", programs.len())))
}

/// Builds the tests and returns their programs; in a short run without those that no step runs.
pub(crate) fn test_programs(workspace: &Workspace, depth: Depth) -> Result<Vec<TestProgram>, StepError> {
    let mut test = cross_cargo(workspace, "test");
    test.args(["--lib"]);
    for name in chosen(workspace, depth) {
        test.args(["--test", &name]);
    }
    let mut programs = programs::build(&mut test)?;
    let of_tested =
        |program: &TestProgram| TESTED.iter().any(|package| program.name.split('.').next() == Some(package));
    programs.retain(|program| of_tested(program) || program.name == UNMODIFIED);
    Ok(programs)
}

/// Builds the guest's `/init`, and the libraries as others get them. Returns the path of the first.
pub(crate) fn guest_init(workspace: &Workspace) -> Result<PathBuf, StepError> {
    let mut build = cross_cargo(workspace, "build");
    // With a test program, dependencies have the features that tests ask for, and are those that are built.
    build.args(["--lib", "--bin", INIT, "--test", "faults"]);
    process::stream(&mut build)?;
    Ok(workspace.separate_target(FOLDER).join(TARGET).join("debug").join(INIT))
}

/// Returns the names of the integration tests to build.
fn chosen(workspace: &Workspace, depth: Depth) -> Vec<String> {
    let is_left_out = |package: &str, name: &str| {
        let left_out = |left: &LeftOut| left.what.split_once('.') == Some((package, name));
        depth == Depth::Short && left_out::LEFT_OUT.iter().any(left_out)
    };
    let of_package = |package| {
        let mut names = workspace.integration_tests(package);
        names.retain(|name| !is_left_out(package, name));
        names
    };
    TESTED.into_iter().flat_map(of_package).collect()
}

/// Returns a cargo command for all packages at once: alone, each would have dependencies with features of its own.
fn cross_cargo(workspace: &Workspace, task: &str) -> Command {
    let mut cargo = cross(workspace, task);
    for package in TESTED {
        cargo.arg(format!("--package=palimpsest-{package}"));
    }
    for package in BESIDE {
        cargo.args(["--package", package]);
    }
    cargo
}

/// Returns a cargo command for [`TARGET`] that names no packages yet.
pub(super) fn cross(workspace: &Workspace, task: &str) -> Command {
    let mut cargo = process::cargo(workspace);
    cargo.args([task, "--target", TARGET, "--all-features"]);
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_builds_what_the_guest_runs() {
        let chosen = |depth| chosen(&Workspace::find(), depth);
        let (short, all) = (chosen(Depth::Short), chosen(Depth::Exhaustive));
        let programs = left_out::LEFT_OUT.iter().filter(|left| !left.what.contains([' ', ':']));
        assert_eq!(short.len() + programs.count(), all.len());
        assert!(short.contains(&"faults".to_owned()) && !short.contains(&"oracle".to_owned()), "{short:?}");
    }
}
