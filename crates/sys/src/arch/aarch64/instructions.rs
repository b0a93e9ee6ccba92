//! The few instructions that this project itself needs.

/// The trapping instruction that fills unused code memory: `brk #0`, which Linux answers with SIGTRAP.
pub const TRAP: &[u8] = &0xD420_0000_u32.to_le_bytes();

/// Alignment of instructions, in bytes.
pub const INSTRUCTION_ALIGN: usize = 4;

/// Reach of a direct call or jump (`BL`, `B`: 26 bits of words) in each direction, in bytes.
pub const DIRECT_BRANCH_REACH: usize = 1 << 27;

/// Fills `bytes` with [`TRAP`]; a tail shorter than an instruction gets the trap's first bytes.
pub fn fill_traps(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(TRAP.len()) {
        chunk.copy_from_slice(&TRAP[..chunk.len()]);
    }
}
