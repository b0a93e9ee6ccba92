//! The few instructions that the house itself needs.

use core::arch::x86_64::__cpuid;

/// The trapping instruction that fills unused code memory: `int3`.
pub const TRAP: &[u8] = &[0xCC];

/// Where an instruction may start, in bytes.
pub const INSTRUCTION_ALIGN: usize = 1;

/// How far a direct call or jump (`rel32`) reaches in either direction, in bytes.
pub const DIRECT_BRANCH_REACH: usize = 1 << 31;

/// Fills `bytes` with [`TRAP`].
pub fn fill_traps(bytes: &mut [u8]) {
    bytes.fill(TRAP[0]);
}

/// Drops whatever this core has fetched and decoded ahead, and orders all its memory accesses.
///
/// `cpuid` is a serialising instruction on every x86-64 CPU (Intel SDM vol. 3A, 10.3 "Serializing Instructions"). It
/// may be called from a signal handler.
#[inline]
pub fn serialize_this_core() {
    let _ = __cpuid(0);
}
