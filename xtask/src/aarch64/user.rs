//! Runs the AArch64 tests with qemu's user mode, where that is a faithful model.

use std::time::Duration;

use super::{LIBRARIES, build};
use crate::{
    process,
    step::{Done, StepError, Unsuitable},
    workspace::Workspace,
};

/// Longest time for one program.
const LIMIT: Duration = Duration::from_secs(300);

/// The system guest runs all of these.
const UNSUITABLE: &[Unsuitable] = &[
    Unsuitable { name: "core_sync::tests::a_thread_that_blocks_the_signal", reason: SIGNALS },
    Unsuitable { name: "core_sync::tests::signals_reach", reason: SIGNALS },
    Unsuitable { name: "fork::tests::a_child_knows", reason: "MADV_WIPEONFORK is ignored" },
    Unsuitable { name: "seccomp::tests::a_child_answers", reason: CLONE },
    Unsuitable { name: "seccomp::tests::a_child_that_cannot_be_made", reason: SECCOMP },
    Unsuitable { name: "seccomp::tests::a_filter", reason: SECCOMP },
];

const SIGNALS: &str = "signals to one thread are refused";
const CLONE: &str = "clone with most flags is refused";
const SECCOMP: &str = "seccomp is not there";

pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let programs = build::test_programs(workspace)?;
    let mut failed = Vec::new();
    for program in &programs {
        let mut qemu = process::program("qemu-aarch64", workspace);
        // Without the library path, the loader of Debian's cross libc would take the libc of an installed arm64 package, and hang in pthread_create.
        qemu.args(["-L", "/usr/aarch64-linux-gnu", "-E"])
            .arg(format!("LD_LIBRARY_PATH={LIBRARIES}"))
            .arg(&program.path);
        qemu.env("PROPTEST_CASES", "16");
        for Unsuitable { name, .. } in UNSUITABLE {
            qemu.args(["--skip", name]);
        }
        if let Err(error) = process::stream_within(&mut qemu, LIMIT) {
            failed.push(format!("{}: {error}", program.name));
        }
    }
    if !failed.is_empty() {
        return Err(StepError::Programs { failed, total: programs.len() });
    }
    Ok(Unsuitable::remark("left to aarch64-system", UNSUITABLE))
}
