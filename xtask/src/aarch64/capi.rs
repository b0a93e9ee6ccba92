//! Programs in C over `libpalimpsest_capi.a` on AArch64, in a guest with a kernel of its own: one of them rewrites code
//! that it has run, which QEMU's user mode would not notice.

use super::{LINKER, TARGET, build, system};
use crate::{
    process,
    programs::TestProgram,
    step::{Done, LeftOut, StepError},
    workspace::Workspace,
};

/// The programs, below `crates/capi/tests`, where others run them on the host.
const PROGRAMS: [&str; 6] = ["alloc", "arena", "lines", "mistakes", "packs", "snapshot"];

pub(crate) const LEFT_OUT: &[LeftOut] = &[LeftOut {
    what: "programs in C on AArch64",
    reason: "the library for C is built for them alone, and aarch64-system makes the same calls from Rust",
}];

pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let mut library = build::cross(workspace, "build");
    process::stream(library.args(["--package", "palimpsest-capi"]))?;
    let built = workspace.separate_target(build::FOLDER).join(TARGET).join("debug");
    let capi = workspace.root.join("crates/capi");
    let mut programs = Vec::new();
    for name in PROGRAMS {
        let program = built.join(name);
        let mut compile = process::program(LINKER, workspace);
        // The C standard of the crate's own tests; static, so that the guest needs no libraries, and small.
        compile.args(["-std=gnu99", "-O1", "-static", "-s", "-Wl,--gc-sections", "-Wall", "-Wextra", "-Werror", "-I"]);
        compile.arg(capi.join("include")).arg(capi.join("tests").join(name).with_extension("c"));
        compile.arg(built.join("libpalimpsest_capi.a"));
        process::stream(compile.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program))?;
        programs.push(TestProgram::new(format!("capi.{name}"), program, capi.clone()));
    }
    let failed = system::boot_turns(workspace, &build::guest_init(workspace)?, &programs, "capi")?;
    if failed.is_empty() {
        Ok(Done::PassedWith(format!("{} programs in C", programs.len())))
    } else {
        Err(StepError::Programs { failed, total: programs.len() })
    }
}
