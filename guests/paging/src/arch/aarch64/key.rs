//! The static key of the system-call hook: `NOP` or `B`, which replace one another while they run (Arm ARM B2.2.5).

use core::arch::asm;

const NOP: u32 = 0xd503_201f;
const B: u32 = 0x1400_0000;
/// Bytes of a site, to which it is aligned too.
pub(crate) const LEN: usize = 4;

/// Returns whether programs are attached. Compiles to a site of the key, which falls through while there are none.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // SAFETY: falls through or jumps to the label, and touches neither memory, registers, flags nor stack. It adds one
    // entry to `key_sites`: its own address and its target.
    unsafe {
        asm!(
            "2:",
            "nop",
            ".pushsection .key_sites, \"aw\"",
            ".quad 2b, {target}",
            ".popsection",
            target = label { return true },
            options(nomem, nostack, preserves_flags)
        );
    }
    false
}

/// Returns the bytes of a site.
pub(crate) fn bytes(site: usize, target: usize, is_on: bool) -> [u8; LEN] {
    let words = (target.wrapping_sub(site) as u32 >> 2) & 0x03ff_ffff;
    (if is_on { B | words } else { NOP }).to_le_bytes()
}
