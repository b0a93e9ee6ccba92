//! The thread pointer.

use core::arch::asm;

/// Returns the thread pointer, from which thread-local variables are counted: `TPIDR_EL0`.
#[inline]
pub fn thread_pointer() -> usize {
    let value: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
