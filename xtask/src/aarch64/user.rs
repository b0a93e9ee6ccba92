//! Runs the AArch64 tests with QEMU's user mode, where that is a faithful model.

use std::time::Duration;

use super::{LIBRARIES, build};
use crate::{
    need::Need,
    process,
    programs::TestProgram,
    step::{Depth, Done, LeftOut, StepError, Unsuitable},
    workspace::Workspace,
};

/// Time limit for one program: it ends a hang.
const LIMIT: Duration = Duration::from_secs(1800);

/// Tests, and whole programs by the names that [`build`] gives them; the system guest runs all of these, and those of
/// [`FREEZING`].
const UNSUITABLE: &[Unsuitable] = &[
    Unsuitable { name: "core_sync::tests::broadcasts", reason: SIGNALS },
    Unsuitable { name: "fork::tests::a_child_knows", reason: WIPE },
    Unsuitable { name: "seccomp::tests::a_child_answers", reason: SECCOMP },
    Unsuitable { name: "seccomp::tests::a_child_that_cannot_be_made", reason: SECCOMP },
    Unsuitable { name: "seccomp::tests::a_filter", reason: SECCOMP },
    Unsuitable { name: "seccomp::tests::each_call", reason: SECCOMP },
    Unsuitable { name: "seccomp::tests::what_a_filter", reason: SECCOMP },
    Unsuitable { name: "core_sync::tests::what_is_issued", reason: SECCOMP },
    Unsuitable { name: "threads::child::tests", reason: SECCOMP },
    Unsuitable { name: "pagemap::tests", reason: SMAPS },
    Unsuitable { name: "vmas::tests", reason: SMAPS },
    Unsuitable { name: "pages::query::tests", reason: ASKED },
    Unsuitable { name: "threads::hold::tests", reason: SIGNALS },
    Unsuitable { name: "threads::own::tests", reason: SIGNALS },
    Unsuitable { name: "threads::signal::tests", reason: SIGNALS },
    Unsuitable { name: "sys.tracer", reason: SIGNALS },
    Unsuitable { name: "bpf.corpus", reason: STALE },
    Unsuitable { name: "bpf.differential", reason: STALE },
    Unsuitable { name: "bpf.guarded", reason: STALE },
    Unsuitable { name: "bpf.hooks", reason: STALE },
    Unsuitable { name: "bpf.long", reason: COUNTS },
    Unsuitable { name: "bpf.verified", reason: STALE },
    Unsuitable { name: "programs_are_replaced_while_others_run_them", reason: STALE },
    Unsuitable { name: "timers_of_a_child_refuse", reason: WIPE },
    Unsuitable { name: "timers_are_armed_and_ended_by_many_threads", reason: STALE },
    Unsuitable { name: "faults_of_others_end_the_process", reason: SECCOMP },
    Unsuitable { name: "a_thread_that_blocks_the_signal_of_its_fault_ends_the_process", reason: SECCOMP },
    Unsuitable { name: "memory_that_can_come_from_one_node_alone_is_there", reason: SECCOMP },
    Unsuitable { name: "reading_stops_where_memory_ends", reason: SMAPS },
    Unsuitable { name: "many_bytes_are_in_huge_pages", reason: SMAPS },
    Unsuitable { name: "forkserver.forkserver", reason: SECCOMP },
    Unsuitable { name: "text.fork", reason: WIPE },
    Unsuitable { name: "text.freed", reason: STALE },
    Unsuitable { name: "text.hostile", reason: SECCOMP },
    Unsuitable { name: "text.stress", reason: STALE },
    Unsuitable { name: "text.poke", reason: STALE },
    Unsuitable { name: "a_child_runs_what_it_inherits_and_has_packs_of_its_own", reason: WIPE },
    Unsuitable { name: "text.keys", reason: STALE },
    Unsuitable { name: "a_threshold_without_bound", reason: STALE },
    Unsuitable { name: "a_full_region_says_so_and_recovers", reason: STALE },
    Unsuitable { name: "room_is_made_by_itself_under_the_automatic_policy", reason: STALE },
    Unsuitable { name: "the_best_backing_is_huge_for_real", reason: SMAPS },
];

/// Programs of the crate that rewrites a process's own memory.
const FREEZING: &str = "fork.";

const SIGNALS: &str = "real-time signals to one thread are refused";
const WIPE: &str = "MADV_WIPEONFORK is ignored";
const SECCOMP: &str = "seccomp, bare clone and exec of AArch64 programs are not there";
/// QEMU keeps translated code by the address where it ran; a write through the other view does not discard it.
const STALE: &str = "dual-mapped code that is rewritten goes stale";
const SMAPS: &str = "smaps and pagemap are made up";
const COUNTS: &str = "counts of plain Rust, which are the same everywhere, take long here";
const ASKED: &str = "an ioctl that asks for a mapping (PROCMAP_QUERY) is not there";

pub(crate) const LEFT_OUT: &[LeftOut] =
    &[LeftOut { what: "all of it, where the system guest runs", reason: "that runs these programs too, on a kernel" }];

/// Runs the programs, unless `system_needs` are met in a short run: then [`super::system`] does.
pub(crate) fn step(workspace: &Workspace, depth: Depth, system_needs: &[Need]) -> Result<Done, StepError> {
    if depth == Depth::Short && system_needs.iter().all(|need| need.is_met(workspace)) {
        return Ok(Done::Skipped("left to --exhaustive: aarch64-system runs the same programs".to_owned()));
    }
    let programs = build::test_programs(workspace, depth)?;
    let mut failed = Vec::new();
    let left_out = |program: &&TestProgram| {
        program.name.starts_with(FREEZING)
            || build::needs_nodes(&program.name)
            || UNSUITABLE.iter().any(|unsuitable| unsuitable.name == program.name)
    };
    for program in programs.iter().filter(|program| !left_out(program)) {
        let mut qemu = process::program("qemu-aarch64", workspace);
        // Without the library path, the loader of Debian's cross libc would take the libc of an installed arm64
        // package, and hang in pthread_create.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_leaves_the_programs_to_the_system_guest_if_there_is_one() {
        let outcome = step(&Workspace::find(), Depth::Short, &[]);
        assert!(matches!(outcome, Ok(Done::Skipped(reason)) if reason.starts_with("left to --exhaustive")));
    }
}
