//! A program in C over `libpalimpsest_capi.a` on AArch64, in QEMU's user mode.

use std::time::Duration;

use super::{LINKER, TARGET, build};
use crate::{
    process,
    step::{Done, LeftOut, StepError},
    workspace::Workspace,
};

/// The program, below `crates/capi/tests`: it links code with its data as compilers do, forks, and makes mistakes. It
/// never rewrites code that it has run, which QEMU's user mode would not notice.
const PROGRAM: &str = "alloc";

/// Time limit: it ends a hang.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) const LEFT_OUT: &[LeftOut] = &[LeftOut {
    what: "a program in C on AArch64",
    reason: "the library for C is built for it alone, and aarch64-system makes the same calls from Rust",
}];

pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let mut library = build::cross(workspace, "build");
    process::stream(library.args(["--package", "palimpsest-capi"]))?;
    let built = workspace.separate_target(build::FOLDER).join(TARGET).join("debug");
    let (capi, program) = (workspace.root.join("crates/capi"), built.join(PROGRAM));
    let mut compile = process::program(LINKER, workspace);
    // The C standard of the crate's own tests; static, so that QEMU needs no libraries.
    compile.args(["-std=gnu99", "-O1", "-static", "-Wall", "-Wextra", "-I"]).arg(capi.join("include"));
    compile.arg(capi.join("tests").join(PROGRAM).with_extension("c")).arg(built.join("libpalimpsest_capi.a"));
    process::stream(compile.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program))?;
    process::stream_within(process::program("qemu-aarch64", workspace).arg(&program), LIMIT)?;
    Ok(Done::Passed)
}
