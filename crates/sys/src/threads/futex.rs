//! Waiting for a word of memory, by bare system calls, which leave `errno` alone: for handlers, and for processes that
//! borrow their parent's memory (`futex(2)`).

use std::sync::atomic::AtomicU32;

use crate::arch::system_call;

/// Wakes a thread that sleeps on `word`.
pub(super) fn wake(word: &AtomicU32) {
    wake_most(word, 1);
}

/// Wakes all threads that sleep on `word`.
pub(super) fn wake_all(word: &AtomicU32) {
    wake_most(word, i32::MAX as usize);
}

fn wake_most(word: &AtomicU32, most: usize) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: wakes the threads that wait on this word; touches no memory.
    unsafe { system_call(libc::SYS_futex, [word.as_ptr().addr(), operation, most, 0]) };
}

/// Sleeps while `word` is `value`, for `limit` if that is not null; may return early.
pub(super) fn sleep(word: &AtomicU32, value: u32, limit: *const libc::timespec) {
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel reads the word, and the limit if there is one; both outlive the call.
    unsafe { system_call(libc::SYS_futex, [word.as_ptr().addr(), operation, value as usize, limit.addr()]) };
}
