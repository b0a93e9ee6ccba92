//! Owners of locks: threads, by the kernel's numbers.

use core::cell::Cell;
use std::sync::LazyLock;

use palimpsest_sys::ForkDetector;
use palimpsest_sys::threads::own::{is_gone as is_gone_thread, own_thread};

/// The process that has taken the first lock.
static HERE: LazyLock<ForkDetector> = LazyLock::new(ForkDetector::new);

std::thread_local! {
    /// What the kernel has said; 0 before it was asked.
    static NUMBER: Cell<i32> = const { Cell::new(0) };
}

/// Returns this thread's number, which is not 0.
pub(super) fn number(_cpu: u32) -> u32 {
    if !HERE.is_same_process() {
        // The thread that has forked is another one in the child.
        return own_thread().cast_unsigned();
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(own_thread());
        }
        number.get().cast_unsigned()
    })
}

/// Whether the thread with this number is one that this process does not have, since it is a child that has inherited
/// the lock. Threads of the first process give their locks back.
pub(super) fn is_gone(owner: u32) -> bool {
    !HERE.is_same_process() && is_gone_thread(owner.cast_signed())
}
