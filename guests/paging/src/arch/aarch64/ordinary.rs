//! Instructions that do the same wherever they are: those that a probe can run out of line.
//!
//! Encodings: Arm ARM C4.1.

/// Returns the length of the first instruction of `code`, if it has the same effect at any address: it neither reads
/// the program counter nor changes it, nor the state of the processor, and needs no exclusive monitor, which an
/// exception would clear.
pub(crate) fn ordinary(code: &[u8]) -> Option<usize> {
    let word = u32::from_le_bytes(*code.first_chunk()?);
    let is = |mask: u32, value: u32| word & mask == value;
    let refused = [
        // Reserved, unallocated, SVE.
        is(0x1800_0000, 0),
        // ADR, ADRP.
        is(0x1f00_0000, 0x1000_0000),
        // Branches, exceptions and system instructions.
        is(0x1c00_0000, 0x1400_0000),
        // Loads from a distance; exclusive ones.
        is(0x3b00_0000, 0x1800_0000),
        is(0x3f00_0000, 0x0800_0000),
    ];
    (!refused.contains(&true)).then_some(4)
}
