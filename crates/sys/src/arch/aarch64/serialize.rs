//! Serialising, by one instruction.

use core::arch::asm;

/// Drops all that this core has fetched and decoded ahead, and orders all its memory accesses.
///
/// `isb` is a context synchronisation event (Arm ARM, DDI 0487, B2.3.10). It may be called from a signal handler.
#[inline]
pub fn serialize_this_core() {
    // Partner: the broadcaster's stores to code, completed by its own `dsb ish`. Forbids running instructions that
    // were fetched before them.
    // SAFETY: barriers only order.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}
