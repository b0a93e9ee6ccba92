//! Cancellation of threads: what this object does by itself must be no place where a thread ends (`pthread_cancel(3)`).
//!
//! Opening, reading and closing a file are such places in the C library, and most functions that this object defines
//! are none. The unwinding that ends a thread also ends the process where it meets code that cannot be unwound.
//!
//! To say so writes to the thread's own page, which a small process shares with its last child: a fork that only looks
//! whether it is time to freeze keeps to system calls instead.

use palimpsest_sys::threads::own::Uncancelled;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Does what must not end halfway because somebody cancels the thread. Async-signal-safe, and leaves `errno` alone. A
/// child made in `what` has the state from before, too.
pub(crate) fn uncancelled<T>(what: impl FnOnce() -> T) -> T {
    let _kept = Uncancelled::begin();
    what()
}

/// Ends this thread here if somebody has cancelled it.
///
/// # Safety
///
/// 1. The caller's frames can be unwound, and have nothing to drop that matters.
pub(crate) unsafe fn end_if_cancelled() {
    // SAFETY: (1).
    unsafe { pthread_testcancel() };
}
