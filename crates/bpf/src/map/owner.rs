//! Owners of locks: threads, by the kernel's numbers.

use core::cell::Cell;
use std::sync::LazyLock;

use palimpsest_sys::ForkDetector;
use palimpsest_sys::threads::own::{is_gone as is_gone_thread, own_thread};

use super::Holder;

/// The process that took the first lock.
static HERE: LazyLock<ForkDetector> = LazyLock::new(ForkDetector::new);

std::thread_local! {
    /// The kernel's number; 0 before it was asked for.
    static NUMBER: Cell<i32> = const { Cell::new(0) };
}

/// Returns this thread's number, which is not 0.
pub(super) fn number(_cpu: u32) -> u32 {
    if !HERE.is_same_process() {
        // In the child, the thread that has forked has another number.
        return own_thread().cast_unsigned();
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(own_thread());
        }
        number.get().cast_unsigned()
    })
}

/// Whether this process is a forked child that has inherited the lock, and does not have the thread with this number.
/// In the first process, threads give their locks back.
pub(super) fn is_gone(owner: u32) -> bool {
    !HERE.is_same_process() && is_gone_thread(owner.cast_signed())
}

/// What the owner with this number does.
pub(super) fn holder(owner: u32) -> Holder {
    if owner == number(0) {
        return Holder::Interrupted;
    }
    if is_gone(owner) { Holder::Gone } else { Holder::Runs }
}
