//! The thread pointer.

use core::arch::asm;

/// Returns the thread pointer, from which thread-local variables are counted. The ABI keeps its value in the word that
/// it points to (`%fs:0`).
#[inline]
pub fn thread_pointer() -> usize {
    let value: usize;
    // SAFETY: reads the word that the ABI puts there (ELF handling for thread-local storage, section 3.4.6).
    unsafe { asm!("mov {}, fs:[0]", out(reg) value, options(readonly, nostack, preserves_flags)) };
    value
}
