//! Waiting for a word of memory, by bare system calls: for processes that borrow their parent's memory (`futex(2)`).

use std::sync::atomic::AtomicU32;

use crate::arch::system_call;

/// Wakes a thread that sleeps on `word`.
pub(super) fn wake(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: wakes the threads that wait on this word; touches no memory.
    unsafe { system_call(libc::SYS_futex, [word.as_ptr().addr(), operation, 1, 0]) };
}

/// Sleeps while `word` is `value`, for `limit` if that is not null; may return early.
pub(super) fn sleep(word: &AtomicU32, value: u32, limit: *const libc::timespec) {
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel reads the word, and the limit if there is one; both outlive the call.
    unsafe { system_call(libc::SYS_futex, [word.as_ptr().addr(), operation, value as usize, limit.addr()]) };
}
