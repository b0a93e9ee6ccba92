//! The static key of the system-call hook. A site is `JMP rel32` or `TEST EAX, imm32` with the same four bytes behind
//! it, so that one byte decides: `palimpsest_text::key` has the argument.

use core::arch::asm;

const JMP_REL32: u8 = 0xe9;
const TEST_EAX_IMM32: u8 = 0xa9;
/// Bytes of a site.
pub(crate) const LEN: usize = 5;

/// Returns whether programs are attached. Compiles to a site of the key, which falls through while there are none.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // SAFETY: falls through or jumps to the label, and touches neither memory, registers nor stack; the flags count as
    // lost. It adds one entry to `key_sites`: its own address and its target.
    unsafe {
        asm!(
            "2:",
            ".byte 0xa9",
            ".long {target} - 3f",
            "3:",
            ".pushsection .key_sites, \"aw\"",
            ".quad 2b, {target}",
            ".popsection",
            target = label { return true },
            options(nomem, nostack)
        );
    }
    false
}

/// Returns the bytes of a site.
pub(crate) fn bytes(site: usize, target: usize, is_on: bool) -> [u8; LEN] {
    let distance = target.wrapping_sub(site + LEN) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [if is_on { JMP_REL32 } else { TEST_EAX_IMM32 }, a, b, c, d]
}
