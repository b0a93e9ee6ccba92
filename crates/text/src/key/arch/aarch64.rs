//! AArch64: a site is `NOP` or `B`, which may replace one another while they run (Arm ARM, B2.2.5, "Concurrent
//! modification and execution of instructions").
//!
//! **Alignment.** Instructions are 4-byte aligned, so that no site crosses a cache line.
//!
//! **Identical code.** Nothing in a branch or an entry says whose it is, and a linker that folds functions with
//! identical code (`--icf=all`) would join those of different keys and calls. A relocation without effect names the
//! key or the call: it makes their functions differ, and costs no byte.

/// Bytes of a site.
pub(in super::super) const LEN: usize = 4;

const NOP: u32 = 0xD503_201F;
const B: u32 = 0x1400_0000;
const IMMEDIATE: u32 = 0x03FF_FFFF;

/// Returns the instruction that falls through: the same for every target.
pub(in super::super) fn falls(_site: usize, _target: usize) -> Option<[u8; LEN]> {
    Some(NOP.to_le_bytes())
}

/// Returns a jump from `site` to `target`; `None` if that is farther than 128 MiB.
pub(in super::super) fn jump(site: usize, target: usize) -> Option<[u8; LEN]> {
    const REACH: isize = 128 << 20;
    let distance = target.wrapping_sub(site).cast_signed();
    ((-REACH..REACH).contains(&distance) && distance % 4 == 0)
        .then(|| (B | (distance >> 2) as u32 & IMMEDIATE).to_le_bytes())
}

/// Returns where the site with this `code` leads; `None` if it falls through.
pub(in super::super) fn target(site: usize, code: [u8; LEN]) -> Option<usize> {
    let instruction = u32::from_le_bytes(code);
    // Sign-extended from bit 25, times 4.
    let distance = ((instruction & IMMEDIATE) << 6).cast_signed() >> 4;
    (instruction & !IMMEDIATE == B).then(|| site.wrapping_add_signed(distance as isize))
}

/// Expands to one site of a branch on `$key`, followed by its arm `$inline`.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_site {
    ($key:path, $inline:literal) => {
        'site: {
            // SAFETY: falls through or jumps to the label, and touches neither memory, registers, flags nor stack. The
            // entry that it adds to the section of sites describes it: see `palimpsest_text::key`, "The sections".
            unsafe {
                ::core::arch::asm!(
                    "2:",
                    ".if {falls}",
                    "nop",
                    ".else",
                    "b {target}",
                    ".endif",
                    ".reloc 2b, R_AARCH64_NONE, {key}",
                    $crate::__palimpsest_site_entry!(),
                    target = label { break 'site !$inline },
                    key = sym $key,
                    falls = const (<$key>::ON == $inline) as u32,
                    flags = const $inline as u32,
                    options(nomem, nostack, preserves_flags)
                );
            }
            $inline
        }
    };
}

/// Defines the entry of the static call `$call`: a jump, first to `$first`. Evaluates to the function pointer.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_call_entry {
    ($call:path, $first:path, $type:ty) => {{
        // The entry's own signature does not matter: it passes on what it gets, by any convention.
        #[unsafe(naked)]
        extern "C-unwind" fn entry() {
            ::core::arch::naked_asm!(
                "2:",
                "b {target}",
                ".reloc 2b, R_AARCH64_NONE, {key}",
                $crate::__palimpsest_site_entry!(),
                target = sym $first,
                key = sym $call,
                flags = const $crate::key::hidden::CALL,
            )
        }
        // SAFETY: one function pointer is made of another. The code at `entry` is a jump to a function of the type
        // `$type`: `$first`, checked by `static_call!`, or one that `StaticCall::set` took.
        unsafe { ::core::mem::transmute::<extern "C-unwind" fn(), $type>(entry as extern "C-unwind" fn()) }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_relative_to_themselves() {
        assert_eq!(jump(0x1000, 0x1004), Some(0x1400_0001_u32.to_le_bytes()));
        assert_eq!(jump(0x1000, 0x0FFC), Some(0x17FF_FFFF_u32.to_le_bytes()));
        assert_eq!(jump(0x1000, 0x0800_0FFC), Some(0x15FF_FFFF_u32.to_le_bytes()));
        assert_eq!(jump(0x0800_0000, 0), Some(0x1600_0000_u32.to_le_bytes()));
    }

    #[test]
    fn a_jump_tells_its_target() {
        for goal in [0x1004, 0x1000, 0xFFC, 0x0800_0FFC] {
            assert_eq!(target(0x1000, jump(0x1000, goal).unwrap()), Some(goal));
        }
        assert_eq!(target(0x1000, NOP.to_le_bytes()), None);
    }

    #[test]
    fn jumps_past_the_reach_are_refused() {
        assert_eq!(jump(0x1000, 0x0800_1000), None);
        assert_eq!(jump(0x0800_1000, 0x0FFC), None);
        assert_eq!(jump(0x1000, 0x1006), None);
    }
}
