//! The few instructions that the house itself needs.

use core::arch::asm;

/// The trapping instruction that fills unused code memory: `brk #0`, which Linux answers with SIGTRAP.
pub const TRAP: &[u8] = &0xD420_0000_u32.to_le_bytes();

/// Where an instruction may start, in bytes.
pub const INSTRUCTION_ALIGN: usize = 4;

/// How far a direct call or jump (`BL`, `B`: 26 bits of words) reaches in either direction, in bytes.
pub const DIRECT_BRANCH_REACH: usize = 1 << 27;

/// Fills `bytes` with [`TRAP`]; a tail that is shorter than an instruction gets its first bytes.
pub fn fill_traps(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(TRAP.len()) {
        chunk.copy_from_slice(&TRAP[..chunk.len()]);
    }
}

/// Drops whatever this core has fetched and decoded ahead, and orders all its memory accesses.
///
/// `isb` is a context synchronisation event (Arm ARM, DDI 0487, B2.3.10). It may be called from a signal handler.
#[inline]
pub fn serialize_this_core() {
    // Partner: the broadcaster's stores to code, completed by its own `dsb ish`. Forbids running instructions that
    // were fetched before them.
    // SAFETY: barriers only order.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}
