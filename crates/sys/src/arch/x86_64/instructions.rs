//! The few instructions that this project itself needs.

/// The trapping instruction that fills unused code memory: `int3`.
pub const TRAP: &[u8] = &[0xCC];

/// Alignment of instructions, in bytes.
pub const INSTRUCTION_ALIGN: usize = 1;

/// Reach of a direct call or jump (`rel32`) in each direction, in bytes.
pub const DIRECT_BRANCH_REACH: usize = 1 << 31;

/// Fills `bytes` with [`TRAP`].
pub fn fill_traps(bytes: &mut [u8]) {
    bytes.fill(TRAP[0]);
}
