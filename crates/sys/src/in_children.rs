//! What forked children undo before their own code runs: what other threads of the parent were about.
//!
//! The C library's `fork` calls the handlers here once they are [registered](register), and who forks by other means
//! may do so. Other children keep the files, and have fewer places to note stacks.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::brief_file;
use crate::threads::stack;

/// Prepares a fork. Async-signal-safe. If a [file](crate::brief_file) is open, it makes a system call.
#[inline]
pub fn before_fork() {
    brief_file::forget_foreign();
}

/// Closes files and forgets stacks of the parent's other threads, in a child that was forked just now by a thread that
/// is not inside [`call`](stack::call). Async-signal-safe.
#[inline]
pub fn undo() {
    brief_file::close_in_child();
    stack::forget_in_child();
}

/// Has children that the C library forks do so. Takes a lock of the C library, the first time.
pub fn register() {
    // Beside what else a child of the preload object runs, see `broken_pipe`.
    #[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
    extern "C" fn before() {
        before_fork();
    }
    #[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
    extern "C" fn in_child() {
        undo();
    }
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // With a second registration nothing is closed twice. Not written without need, since children would copy the page.
    if !REGISTERED.load(Ordering::Relaxed) && !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers are async-signal-safe, and are removed from the list when their object is unloaded. If
        // lack of memory prevents registration, children of such a moment have the files.
        unsafe { libc::pthread_atfork(Some(before), None, Some(in_child)) };
    }
}
