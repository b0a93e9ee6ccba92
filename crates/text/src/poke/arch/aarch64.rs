//! AArch64: one aligned store changes an instruction, if the architecture allows that for it.

use core::ops::Range;

use super::Refusal;
use crate::poke::site::Action;

/// `brk #0`. Sites never trap here: one store changes them as a whole.
pub const TRAP: &[u8] = &0xD420_0000_u32.to_le_bytes();

/// Arm ARM (DDI 0487), B2.2.5 "Concurrent modification and execution of instructions": if only these replace each
/// other, a core executes the old or the new instruction without further measures. Mask and value of each.
const PATCHABLE: [(u32, u32); 8] = [
    (0xFC00_0000, 0x1400_0000), // B
    (0xFC00_0000, 0x9400_0000), // BL
    (0xFFFF_FFFF, 0xD503_201F), // NOP
    (0xFFE0_001F, 0xD420_0000), // BRK
    (0xFFE0_001F, 0xD400_0001), // SVC
    (0xFFE0_001F, 0xD400_0002), // HVC
    (0xFFE0_001F, 0xD400_0003), // SMC
    (0xFFFF_F0FF, 0xD503_30DF), // ISB
];

/// Checks that the architecture allows the change. Returns no action, since there are no traps.
pub fn check(address: usize, old: &[u8], new: &[u8]) -> Result<Option<Action>, Refusal> {
    if !address.is_multiple_of(4) {
        return Err(Refusal::Misaligned);
    }
    match is_patchable(old) && is_patchable(new) {
        true => Ok(None),
        false => Err(Refusal::NotPatchable),
    }
}

fn is_patchable(code: &[u8]) -> bool {
    let Ok(bytes) = <[u8; 4]>::try_from(code) else { return false };
    let instruction = u32::from_le_bytes(bytes);
    PATCHABLE.iter().any(|&(mask, value)| instruction & mask == value)
}

/// Returns the bytes of a site that a single store replaces: the whole instruction, however few of its bits change.
pub fn stored(len: usize, _changed: Range<usize>) -> Range<usize> {
    0..len
}

/// Returns whether a site is one aligned instruction.
pub fn fits_single_store(address: usize, len: usize) -> bool {
    address.is_multiple_of(4) && len == 4
}

/// Never called, since there are no actions.
pub fn holds(_condition: u8, _flags: u64) -> bool {
    true
}

/// Stores a site, which is one aligned instruction, by one store.
///
/// # Safety
///
/// 1. 4 bytes are writable at `alias`, which is aligned to them.
pub unsafe fn store_whole(alias: *mut u8, bytes: &[u8]) {
    let Ok(bytes) = bytes.try_into() else { return };
    #[expect(clippy::cast_ptr_alignment, reason = "aligned, by 1")]
    let word = alias.cast::<u32>();
    // Volatile: one store, whose reader is the instruction fetch of other cores.
    // SAFETY: writable and aligned (1).
    unsafe { word.write_volatile(u32::from_le_bytes(bytes)) };
}

/// Never stored: one store changes every jump.
pub const DETOUR: &[u8] = TRAP;

/// Whether sites can be changed by traps.
pub const TRAPS: bool = false;

/// Whether one write through `/proc/self/mem` is a single store: the kernel copies an aligned word of 4 bytes by one
/// store.
pub const TEXT_BY_SINGLE_STORE: bool = true;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_architectures_list_is_patchable() {
        let one = |instruction: u32| is_patchable(&instruction.to_le_bytes());
        let listed =
            [0x1400_0001, 0x97FF_FFFF, 0xD503_201F, 0xD420_0020, 0xD400_0001, 0xD400_0002, 0xD400_0003, 0xD503_3FDF];
        assert!(listed.into_iter().all(one));
        // b.eq, add, yield, ret, blr, cbz, dsb ish
        let others = [0x5400_0000, 0x8B00_0000, 0xD503_203F, 0xD65F_03C0, 0xD63F_0000, 0xB400_0000, 0xD503_3B9F];
        assert!(!others.into_iter().any(one));
        assert!(!is_patchable(&[0; 8]) && !is_patchable(&[0x1F, 0x20]));
    }

    #[test]
    fn an_odd_address_is_refused() {
        let nop = 0xD503_201F_u32.to_le_bytes();
        assert_eq!(check(2, &nop, &nop), Err(Refusal::Misaligned));
        assert_eq!(check(4, &nop, &nop), Ok(None));
    }
}
