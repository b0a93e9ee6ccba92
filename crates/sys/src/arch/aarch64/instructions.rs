//! The few instructions that the house itself needs.

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
