//! x86-64: a site is a 5-byte NOP (`0F 1F 44 00 00`) or `JMP rel32` (`E9`), Intel SDM volume 2.
//!
//! **Alignment.** `.p2align 3,,4` moves a site only if its five bytes would cross an 8-byte word, by at most four bytes
//! (1¼ on average, in half of all places none). So no site crosses a cache line or a page, each can be replaced by a
//! single 8-byte store, and functions need no more than their usual alignment; `.p2align 6,,4` would pad less, but would
//! align every function with a site to 64 bytes.

/// Bytes of a site.
pub(in super::super) const LEN: usize = 5;

const JMP_REL32: u8 = 0xE9;

/// What stands at a site that falls through.
pub(in super::super) const fn nop() -> [u8; LEN] {
    [0x0F, 0x1F, 0x44, 0x00, 0x00]
}

/// A jump from `site` to `target`; `None` if that is too far.
pub(in super::super) fn jump(site: usize, target: usize) -> Option<[u8; LEN]> {
    let distance = i32::try_from(target.wrapping_sub(site.wrapping_add(LEN)).cast_signed()).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([JMP_REL32, a, b, c, d])
}

/// One site of a branch on `$key`, whose arm `$inline` follows it.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_site {
    ($key:path, $inline:literal) => {
        'site: {
            // SAFETY: falls through or jumps to the label, and touches neither memory, registers, flags nor stack. The
            // entry that it adds to the section of sites describes it: see `palimpsest_text::key`, "The sections".
            unsafe {
                ::core::arch::asm!(
                    ".p2align 3,,4",
                    "2:",
                    ".if {falls}",
                    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                    ".else",
                    ".byte 0xe9",
                    ".long {target} - 3f",
                    ".endif",
                    "3:",
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

/// The entry of the static call `$call`: a jump, first to `$first`. Evaluates to the function pointer.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_call_entry {
    ($call:path, $first:path, $type:ty) => {{
        // Its own signature is of no account: it passes on what it gets, whatever the convention.
        #[unsafe(naked)]
        extern "C-unwind" fn entry() {
            ::core::arch::naked_asm!(
                ".p2align 3",
                "2:",
                ".byte 0xe9",
                ".long {target} - 3f",
                "3:",
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
    fn jumps_past_the_reach_are_refused() {
        assert_eq!(jump(0x1000, 0x8000_1005), None);
        assert_eq!(jump(0x1_0000_1000, 0x1004), None);
    }
}
