//! Forks during loading: the child finds its programs, and can load its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use palimpsest_text::{Packs, Program};

use crate::exercise::{load, run};

const FORKS: usize = 40;

/// How many there are instead, where each takes long.
const FEWER: &str = "PALIMPSEST_FORKS_WHILE_LOADING";

fn forks() -> usize {
    std::env::var(FEWER).ok().and_then(|text| text.parse().ok()).map_or(FORKS, |fewer: usize| FORKS.min(fewer.max(1)))
}

/// Forks while three threads load, run, free and reclaim.
pub(crate) fn forks_while_loading(packs: &Packs) {
    let kept: Vec<Program> = (0..50).map(|number| load(packs, number)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for first in [1000, 2000, 3000] {
            let stop = &stop;
            scope.spawn(move || {
                // Relaxed: it publishes nothing.
                for number in (first..first + 1000).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    assert_eq!(run(&load(packs, number)), number);
                    if number % 64 == 0 {
                        packs.reclaim().expect("it never fails for a fork");
                    }
                }
            });
        }
        let failed = (0..forks()).map(|_| in_fork(|| use_in_child(packs, &kept))).find(|status| *status != 0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "a forked child failed");
    });
    for (number, program) in (0..).zip(&kept) {
        assert_eq!(run(program), number);
    }
    drop(kept);
    packs.reclaim().expect("no child is left");
    assert_eq!(packs.stats().retired_bytes, 0, "{:?}", packs.stats());
}

/// The child runs what it inherits, and loads and frees a program of its own.
fn use_in_child(packs: &Packs, inherited: &[Program]) {
    for (number, program) in (0..).zip(inherited) {
        assert_eq!(run(program), number);
    }
    let own = load(packs, 4711);
    assert_eq!(run(&own), 4711);
    drop(own);
    packs.reclaim().expect("the child's packs are its own");
}

/// Runs `child` in a forked process. Returns its status, as `wait` does.
pub(crate) fn in_fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `child`, which takes no lock that another thread of the parent can hold, except the
    // allocator's, which libc makes usable in a child; then it ends without running anything of the parent's.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: takes a number; ends a child that hangs.
        unsafe { libc::alarm(600) };
        let code = i32::from(catch_unwind(AssertUnwindSafe(child)).is_err());
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "{}", std::io::Error::last_os_error());
    status
}
