//! Signals of the program that packs must not disturb, and signals that disturb packs.

use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

static DEAD_CHILDREN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_child(_signal: libc::c_int) {
    // Relaxed: the same thread reads it later.
    DEAD_CHILDREN.fetch_add(1, Ordering::Relaxed);
}

/// Counts SIGCHLD from this call on.
pub(crate) fn count_dead_children() {
    let handler = on_child as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler is async-signal-safe: it adds to an atomic.
    let before = unsafe { libc::signal(libc::SIGCHLD, handler) };
    assert_ne!(before, libc::SIG_ERR);
}

/// Returns the number of SIGCHLD, plus that of dead children that `waitpid(-1)` finds.
pub(crate) fn dead_children() -> usize {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let found = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    DEAD_CHILDREN.load(Ordering::Relaxed) + usize::from(found > 0)
}

/// Runs `meanwhile` while another thread waits with all signals blocked.
pub(crate) fn while_a_thread_blocks_all<T>(meanwhile: impl FnOnce() -> T) -> T {
    let blocked = Barrier::new(2);
    let done = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let all = u64::MAX;
            let old = ptr::null_mut::<u64>();
            // SAFETY: the new set is 8 bytes long, as the last argument says, and outlives the call; the old set is not
            // requested.
            let answer = unsafe {
                libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, old, size_of::<u64>())
            };
            assert_eq!(answer, 0);
            blocked.wait();
            done.wait();
        });
        blocked.wait();
        let result = meanwhile();
        done.wait();
        result
    })
}
