//! uBPF, a peer in C, which `libubpf-sys` builds: what that needs, and how it becomes part of a build.
//!
//! It is behind a condition, not a feature: every machine that builds the workspace with all features would need CMake
//! and libclang.

use std::process::Command;

use crate::{
    cmake::CMAKE,
    need::Need,
    process,
    step::{Done, LeftOut, StepError},
    workspace::Workspace,
};

/// What reads uBPF's header.
const LIBCLANG: Need = Need::File { path: "/usr/lib/llvm-14/lib/libclang.so", package: "libclang-14-dev" };

pub(crate) const NEEDS: [Need; 2] = [CMAKE, LIBCLANG];

/// The condition in our sources.
const CONDITION: &str = "--cfg palimpsest_ubpf";

/// Makes CMake compile it with optimisation: its own files put `-O0` behind that of the profile that `libubpf-sys` asks
/// for.
const OPTIMISED: &str = "xtask/src/ubpf.cmake";

const LINTS: [&str; 11] = [
    "clippy",
    "--package",
    "palimpsest-bpf",
    "--package",
    "palimpsest-bench",
    "--features",
    "palimpsest-bench/peers",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];

/// The target folder of the step.
pub(crate) const FOLDER: &str = "ubpf";

pub(crate) const LEFT_OUT: &[LeftOut] = &[LeftOut {
    what: "4000 random programs of bpf.peer, and the suites' programs, on uBPF",
    reason: "it is built from C, with bindings made by libclang, which takes longer than the tests of both",
}];

/// Returns the first of its needs that is not met.
pub(crate) fn missing(workspace: &Workspace) -> Option<Need> {
    NEEDS.into_iter().find(|need| !need.is_met(workspace))
}

/// Makes `cargo` build with it, in a target folder of this name.
pub(crate) fn with<'a>(cargo: &'a mut Command, workspace: &Workspace, folder: &str) -> &'a mut Command {
    process::apart(optimised(cargo, workspace), workspace, folder).env("RUSTFLAGS", CONDITION)
}

/// Makes what `cargo` builds of it fast.
pub(crate) fn optimised<'a>(cargo: &'a mut Command, workspace: &Workspace) -> &'a mut Command {
    cargo.env("CMAKE_TOOLCHAIN_FILE", workspace.root.join(OPTIMISED))
}

/// Compares it with our engine, and looks at the code that nothing else builds.
pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let own: [&[&str]; 3] = [
        &["test", "--package", "palimpsest-bpf", "--test", "peer"],
        &["test", "--package", "palimpsest-bench", "--features", "peers", "--lib", "suites::bpf"],
        &LINTS,
    ];
    for arguments in own {
        let mut cargo = process::cargo(workspace);
        process::stream_within(with(cargo.args(arguments), workspace, FOLDER), process::LIMIT)?;
    }
    Ok(Done::Passed)
}
