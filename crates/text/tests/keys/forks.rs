//! Keys in forked children.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use palimpsest_text::key::{Keys, State};
use palimpsest_text::{branch, static_key};

static_key! {
    static FORKED: "forks.forked" = off;
    static OTHER: "forks.other" = off;
}

#[inline(never)]
fn both() -> [bool; 4] {
    [branch!(unlikely FORKED), branch!(likely FORKED), branch!(unlikely OTHER), branch!(likely OTHER)]
}

/// Checks a child's keys. Returns zero if all is well.
fn check() -> i32 {
    let before = both();
    // What fails leaves the key to the next one as it was, also in the middle of a switch.
    if FORKED.disable().is_ok() {
        return 4;
    }
    for state in [State::On, State::Off, State::On, State::Off] {
        if Keys::apply([(&FORKED, state), (&OTHER, state)]).is_err() {
            return 2;
        }
        if both() != [state.is_on(); 4] {
            return 3;
        }
    }
    // In the middle of a batch, each site is either as before or as after.
    i32::from(before[0] != before[1] && before[2] != before[3] && before[0] == before[2] && before == both())
}

#[test]
fn children_switch_keys_that_were_being_switched() {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = State::On;
            while !stop.load(Ordering::Relaxed) {
                Keys::apply([(&FORKED, state), (&OTHER, state)]).unwrap();
                state = if state.is_on() { State::Off } else { State::On };
            }
        });
        let _stop = super::StopOnDrop(&stop);
        for round in 0..60 {
            // SAFETY: the child switches keys, which allocates: glibc keeps its allocator usable. It leaves by `_exit`.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork failed");
            if pid == 0 {
                // A child that hangs ends by SIGALRM.
                // SAFETY: sets a timer.
                unsafe { libc::alarm(1200) };
                let code = check();
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) };
            }
            let mut status = 0;
            // SAFETY: `status` is a valid place for the answer.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0, "in round {round}");
        }
    });
    assert_eq!(check(), 0);
}
