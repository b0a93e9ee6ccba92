//! The thread control block, which `fs` points to (System V ABI, thread-local storage).

use std::arch::asm;

/// Loads the 32 bits at `offset` from the thread pointer, in one access.
///
/// # Safety
///
/// 1. Four aligned bytes there belong to the calling thread for as long as it lives.
#[inline]
pub(crate) unsafe fn thread_word(offset: isize) -> u32 {
    let word;
    // SAFETY: (1). The kernel may write these bytes meanwhile; one aligned load is not torn.
    unsafe {
        asm!("mov {word:e}, dword ptr fs:[{offset}]", word = lateout(reg) word, offset = in(reg) offset,
            options(nostack, preserves_flags, readonly));
    }
    word
}
