//! A filter refuses what a deputy must do first, or what its parent does to wait for it; a deputy never comes to work;
//! and a program that never waits forks.

mod common;

use common::gathering::{by_deputies, children, filled, needs_huge_pages, plan, slices, to_the_end};
use common::notified::{self, Call, kill_for, refuse};
use common::{freeze, in_child, play, skip, slice};
use palimpsest_fork::snapshot::{Scope, Snapshot, SnapshotOptions, TakeError};
use palimpsest_fork::{Measure, Options, Stage, dismiss_deputy, progress};

/// How somebody looks whether a deputy lives.
const LOOK: Call = Call { number: libc::SYS_wait4, third: Some(libc::WNOHANG | libc::WUNTRACED | libc::__WCLONE) };

const GATHER: Call = Call { number: libc::SYS_madvise, third: Some(libc::MADV_COLLAPSE) };

/// The first call of a deputy that has its own name.
const BEGINS: Call = Call { number: libc::SYS_getppid, third: None };

/// Whether a process is a deputy that has its own name.
fn is_deputy(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name == "palimpsest-huge\n")
}

/// Fails on: a sender that looks for longer than some milliseconds, or asks for huge pages itself, on a machine that is
/// too busy for either.
#[test]
fn who_sends_a_deputy_that_does_not_begin_goes_on_after_a_few_looks() {
    play("who_sends_a_deputy_that_does_not_begin_goes_on_after_a_few_looks", || {
        needs_huge_pages();
        let (program, listener) = notified::start(&[LOOK, GATHER, BEGINS], || {
            let _memory = filled();
            plan(&by_deputies());
            slice();
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        });
        let (mut held, mut looks, mut status) = (None, 0, 0);
        // SAFETY: `status` outlives the call.
        while unsafe { libc::waitpid(program, &raw mut status, libc::WNOHANG) } == 0 {
            let Some(asked) = listener.next() else { continue };
            if is_deputy(asked.who) {
                held = Some(asked);
                continue;
            }
            assert!(held.is_none() || asked.call != GATHER.number, "the thread asks itself");
            looks += usize::from(asked.call == LOOK.number);
            listener.let_go(asked);
        }
        assert_eq!(status, 0, "the program has failed");
        if held.is_none() {
            skip("the program has said why, or it was killed before its first call");
        }
        assert!((1..20).contains(&looks), "{looks} looks");
    });
}

/// Fails on: a slice that asks for huge pages itself while a deputy does.
#[test]
fn slices_beside_a_deputy_at_work_do_nothing() {
    play("slices_beside_a_deputy_at_work_do_nothing", || {
        needs_huge_pages();
        let (program, listener) = notified::start(&[GATHER], || {
            let _memory = filled();
            plan(&by_deputies());
            // On a busy machine it takes some until a deputy is at work.
            slices(50);
            // SAFETY: ends the process, and the deputy with it.
            unsafe { libc::_exit(0) }
        });
        let (mut held, mut status) = (None, 0);
        // SAFETY: `status` outlives the call.
        while unsafe { libc::waitpid(program, &raw mut status, libc::WNOHANG) } == 0 {
            let Some(asked) = listener.next() else { continue };
            // One that was killed as it began to ask has asked nothing.
            held = held.filter(|held| listener.is_waiting(held));
            assert!(held.is_none(), "a second one asks, the thread: {}", asked.who == program);
            if is_deputy(asked.who) {
                held = Some(asked);
            } else {
                listener.let_go(asked);
            }
        }
        assert_eq!(status, 0, "the program has failed");
        if held.is_none() {
            skip("the program has said why, or no deputy was at work in time");
        }
    });
}

/// What a deputy gives up its descriptors by.
const GIVES_UP: Call = Call { number: libc::SYS_close_range, third: None };

/// Gathers under a filter that keeps deputies from giving up their rights.
fn gather_where_none_can_give_up_its_rights(confine: impl Fn()) {
    needs_huge_pages();
    let memory = filled();
    plan(&by_deputies());
    confine();
    // A busy machine may keep one from being refused.
    while memory.huge() == 0 {
        slice();
        dismiss_deputy();
    }
    let done = to_the_end(|_| assert_eq!(children(), 0, "another deputy"));
    assert_eq!((done.stage, memory.huge(), children()), (Stage::Done, memory.len, 0));
    assert!(memory.holds(0..memory.len, 1));
}

/// Fails on: a useless child at each slice.
#[test]
fn where_no_deputy_can_give_up_its_rights_one_is_sent_and_the_thread_asks() {
    play("where_no_deputy_can_give_up_its_rights_one_is_sent_and_the_thread_asks", || {
        gather_where_none_can_give_up_its_rights(|| refuse(&[GIVES_UP], libc::EPERM));
    });
}

/// Fails on: a child that is killed at a slice.
#[test]
fn where_giving_up_rights_kills_no_deputy_is_sent_and_the_thread_asks() {
    play("where_giving_up_rights_kills_no_deputy_is_sent_and_the_thread_asks", || {
        gather_where_none_can_give_up_its_rights(|| kill_for(&[GIVES_UP]));
    });
}

/// Fails on: a program that is killed for a deputy that begins soon, or sends none.
#[test]
fn where_a_short_time_slice_kills_deputies_wait_for_their_turn() {
    play("where_a_short_time_slice_kills_deputies_wait_for_their_turn", || {
        needs_huge_pages();
        let memory = filled();
        plan(&by_deputies());
        let calls = [libc::SYS_sched_getattr, libc::SYS_sched_setattr, libc::SYS_sched_yield];
        kill_for(&calls.map(|number| Call { number, third: None }));
        let mut is_sent = false;
        let done = to_the_end(|_| {
            is_sent |= children() > 0;
            dismiss_deputy();
        });
        assert_eq!((done.stage, memory.huge(), is_sent), (Stage::Done, memory.len, true));
        assert!(memory.holds(0..memory.len, 1));
    });
}

/// Fails on: a wait without an end.
#[test]
fn no_snapshot_is_taken_beside_a_deputy_for_which_nobody_can_wait() {
    play("no_snapshot_is_taken_beside_a_deputy_for_which_nobody_can_wait", || {
        needs_huge_pages();
        let memory = filled();
        plan(&by_deputies());
        slice();
        assert_eq!(children(), 1, "one deputy at work, or not waited for");
        refuse(&[LOOK], libc::EPERM);
        let start = memory.start.expose_provenance();
        let options = SnapshotOptions::new(Scope::Ranges(std::iter::once(start..start + memory.len).collect()));
        // SAFETY: 1. one thread, and no asynchronous I/O; 2. and 3. nothing is closed or looked at.
        let error = unsafe { Snapshot::take(&options) }.expect_err("it would contain the deputy's stack");
        assert!(matches!(error, TakeError::Deputy { process } if process > 0), "{error}");
    });
}

/// Fails on: a defunct child beside a program that never waits.
#[test]
fn a_fork_waits_for_a_deputy_that_has_ended_whether_it_has_anything_to_repair_or_not() {
    play("a_fork_waits_for_a_deputy_that_has_ended_whether_it_has_anything_to_repair_or_not", || {
        needs_huge_pages();
        let memory = filled();
        plan(&by_deputies());
        slice();
        assert_eq!(children(), 1, "one deputy at work, or not waited for");
        freeze(&Options::new().measure(Measure::Nothing));
        assert!(progress().stage != Stage::UnderWay);
        let told = std::fs::read_to_string("/proc/thread-self/children").expect("told");
        let stat = format!("/proc/{}/stat", told.trim());
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
        assert_eq!(in_child(|| 0), 0);
        assert_eq!(children(), 0, "it is still there");
        assert!(memory.holds(0..memory.len, 1));
    });
}
