//! x86-64: a site is `JMP rel32` (`E9`) or `TEST EAX, imm32` (`A9`), Intel SDM volume 2.
//!
//! **One byte.** Both have the same four bytes behind the opcode: the distance to the target. `TEST` compares `EAX`
//! with it, and nothing uses the outcome. So one byte decides, and switching stores one byte: `poke::protocol`, "By
//! single stores", says why that is safe beside threads that run the site. A NOP of five bytes differs from a jump in
//! at least two of them, which takes traps, a handler, and threads that do not block its signal.
//!
//! **Price.** The flags are lost, as the compiler is told. `TEST` occupies an arithmetic unit, which a NOP does not; it
//! waits for `EAX`, but nothing waits for it.
//!
//! **Alignment.** None: a site may cross words, cache lines and pages.
//!
//! **Identical code.** Nothing in a branch says whose it is, and a linker that folds functions with identical code
//! (`--icf=all`) would join branches on different keys. A relocation without effect names the key: it makes their
//! functions differ, and costs no byte. (A static call's entry names its own by the second jump.)
//!
//! **Static calls.** An entry is `JMP rel32`, and behind it a jump through the call's own pointer. While the distance
//! is rewritten the first byte is that of `TEST`, so that threads take the second jump: `poke::protocol`, "By detours".
//! The flags mean nothing where a function begins (System V ABI, 3.2).

use std::array;

/// Bytes of a site.
pub(in super::super) const LEN: usize = 5;

const JMP_REL32: u8 = 0xE9;
const TEST_EAX_IMM32: u8 = 0xA9;

/// Returns the instruction that falls through at a `site` that could lead to `target`; `None` if that is too far.
pub(in super::super) fn falls(site: usize, target: usize) -> Option<[u8; LEN]> {
    site_bytes(TEST_EAX_IMM32, site, target)
}

/// Returns a jump from `site` to `target`; `None` if that is too far.
pub(in super::super) fn jump(site: usize, target: usize) -> Option<[u8; LEN]> {
    site_bytes(JMP_REL32, site, target)
}

/// Returns where the site with this `code` leads or could lead; `None` if it is no site's.
pub(in super::super) fn target(site: usize, code: [u8; LEN]) -> Option<usize> {
    // INT3 replaces the opcode while a batch changes it by traps, and where there is a breakpoint.
    const INT3: u8 = 0xCC;
    let [opcode, distance @ ..] = code;
    let is_site = matches!(opcode, JMP_REL32 | TEST_EAX_IMM32 | INT3);
    is_site.then(|| site.wrapping_add(LEN).wrapping_add_signed(i32::from_le_bytes(distance) as isize))
}

fn site_bytes(opcode: u8, site: usize, target: usize) -> Option<[u8; LEN]> {
    let distance = i32::try_from(target.wrapping_sub(site.wrapping_add(LEN)).cast_signed()).ok()?.to_le_bytes();
    Some(array::from_fn(|index| if index == 0 { opcode } else { distance[index - 1] }))
}

/// Expands to one site of a branch on `$key`, followed by its arm `$inline`.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_site {
    ($key:path, $inline:literal) => {
        'site: {
            // SAFETY: falls through or jumps to the label, and touches neither memory, registers nor stack; the flags
            // count as lost. The entry that it adds to the section of sites describes it: see `palimpsest_text::key`,
            // "The sections".
            unsafe {
                ::core::arch::asm!(
                    "2:",
                    ".if {falls}",
                    ".byte 0xa9",
                    ".else",
                    ".byte 0xe9",
                    ".endif",
                    ".long {target} - 3f",
                    "3:",
                    ".reloc 2b, R_X86_64_NONE, {key}",
                    $crate::__palimpsest_site_entry!(),
                    target = label { break 'site !$inline },
                    key = sym $key,
                    falls = const (<$key>::ON == $inline) as u32,
                    flags = const $inline as u32,
                    options(nomem, nostack)
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
                ".byte 0xe9",
                ".long {target} - 3f",
                "3:",
                // The pointer is the first field of `StaticCall`.
                "jmp qword ptr [rip + {key}]",
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
    fn jumps_are_relative_to_their_end() {
        assert_eq!(jump(0x1000, 0x1005), Some([0xE9, 0, 0, 0, 0]));
        assert_eq!(jump(0x1000, 0x1000), Some([0xE9, 0xFB, 0xFF, 0xFF, 0xFF]));
        assert_eq!(jump(0x1000, 0x8000_1004), Some([0xE9, 0xFF, 0xFF, 0xFF, 0x7F]));
    }

    #[test]
    fn a_site_tells_its_target_in_each_state() {
        for goal in [0x1005, 0x1000, 0x10, 0x1234_5678] {
            let (jump, falls) = (jump(0x1000, goal).unwrap(), falls(0x1000, goal).unwrap());
            let trap = [0xCC, jump[1], jump[2], jump[3], jump[4]];
            assert_eq!([jump, falls, trap].map(|code| target(0x1000, code)), [Some(goal); 3]);
        }
        assert_eq!(target(0x1000, [0x90, 1, 2, 3, 4]), None);
    }

    #[test]
    fn one_byte_decides() {
        for target in [0x1000, 0x1234_5678, 0x8000_1004] {
            let (jump, falls) = (jump(0x1000, target).unwrap(), falls(0x1000, target).unwrap());
            assert_eq!((jump[0], falls[0]), (0xE9, 0xA9));
            assert_eq!(jump[1..], falls[1..]);
        }
    }

    #[test]
    fn jumps_past_the_reach_are_refused() {
        assert_eq!(jump(0x1000, 0x8000_1005), None);
        assert_eq!(falls(0x1000, 0x8000_1005), None);
        assert_eq!(jump(0x1_0000_1000, 0x1004), None);
    }
}
