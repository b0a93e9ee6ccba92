//! x86-64: sites are changed by `int3`, and while they trap the handler does what the new instruction does.
//!
//! Encodings: Intel SDM vol. 2. The handler emulates NOP of any length, and JMP and Jcc with displacements of 8 and 32
//! bits. It emulates neither CALL nor RET: under a shadow stack it could not.

use core::ops::Range;

use super::Refusal;
use crate::poke::site::Action;

/// `int3`.
pub const TRAP: &[u8] = &[0xCC];

/// The condition that always holds; below it are the 16 of `Jcc`.
const ALWAYS: u8 = 16;

/// Whether sites can be changed by traps.
pub const TRAPS: bool = true;

/// `test eax, imm32`: in place of the opcode of `jmp rel32` it lets threads fall through, whatever the four bytes
/// behind it are.
pub const DETOUR: &[u8] = &[0xA9];

/// Whether one write of several bytes through `/proc/self/mem` is a single store: the kernel's `rep movsb` does not
/// promise that.
pub const TEXT_BY_SINGLE_STORE: bool = false;

/// Returns what the new instruction at `address` does, as far as that can be emulated.
///
/// The old code may be any single instruction; only the caller knows that it is one.
pub fn check(address: usize, _old: &[u8], new: &[u8]) -> Result<Option<Action>, Refusal> {
    let after = |len: usize| address.wrapping_add(len);
    let short = |displacement: u8| after(2).wrapping_add_signed(isize::from(displacement.cast_signed()));
    let near = |len: usize, bytes: [u8; 4]| after(len).wrapping_add_signed(i32::from_le_bytes(bytes) as isize);
    let jump = |target| Some(Action { target, otherwise: target, condition: ALWAYS });
    Ok(match *new {
        _ if is_nop(new) => jump(after(new.len())),
        // Bytes behind a jump are dead.
        [0xEB, displacement, ..] => jump(short(displacement)),
        [0xE9, a, b, c, d, ..] => jump(near(5, [a, b, c, d])),
        [opcode @ 0x70..=0x7F, displacement] => {
            Some(Action { target: short(displacement), otherwise: after(2), condition: opcode & 15 })
        }
        [0x0F, opcode @ 0x80..=0x8F, a, b, c, d] => {
            Some(Action { target: near(6, [a, b, c, d]), otherwise: after(6), condition: opcode & 15 })
        }
        _ => None,
    })
}

/// Returns whether `code` is exactly one NOP: `90` or `0F 1F /0` with its operand, behind any number of prefixes 66 and
/// segment overrides, which both ignore.
fn is_nop(code: &[u8]) -> bool {
    let prefixes = code.iter().take_while(|byte| matches!(byte, 0x66 | 0x2E)).count();
    match code[prefixes..] {
        [0x90] => true,
        [0x0F, 0x1F, modrm, ref operand @ ..] if modrm & 0b0011_1000 == 0 => {
            let sib = operand.first().copied();
            operand.len() == operand_len(modrm, sib)
        }
        _ => false,
    }
}

/// Returns the number of bytes of SIB and displacement that follow a ModRM byte (Intel SDM vol. 2, tables 2-2 and 2-3).
fn operand_len(modrm: u8, sib: Option<u8>) -> usize {
    let (mode, register) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && register == 4;
    let no_base = has_sib && sib.is_some_and(|sib| sib & 7 == 5);
    usize::from(has_sib)
        + match mode {
            0 if register == 5 || no_base => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        }
}

/// Returns the bytes that a single store replaces in a site of `len` bytes that differ in `changed`.
///
/// Only those that differ: if that is one byte, a core can fetch no third version, wherever the site lies.
pub fn stored(_len: usize, changed: Range<usize>) -> Range<usize> {
    changed
}

/// Returns whether these bytes lie in one naturally aligned word of 8 bytes. A single byte always does.
pub fn fits_single_store(address: usize, len: usize) -> bool {
    address / 8 == (address + len.max(1) - 1) / 8
}

/// Returns whether a condition of [`Action`] holds under these flags (Intel SDM vol. 1, appendix B).
pub fn holds(condition: u8, flags: u64) -> bool {
    let flag = |bit: u32| flags >> bit & 1 == 1;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    let positive = match condition >> 1 {
        0 => overflow,
        1 => carry,
        2 => zero,
        3 => carry || zero,
        4 => sign,
        5 => parity,
        6 => sign != overflow,
        7 => zero || sign != overflow,
        _ => return true,
    };
    positive != (condition & 1 == 1)
}

/// Stores bytes that [`fits_single_store`] by one store.
///
/// # Safety
///
/// 1. The word of 8 bytes in which they lie is writable through `alias`, which has the same offset in its word as they
///    have in theirs, and nobody else stores to it.
pub unsafe fn store_whole(alias: *mut u8, bytes: &[u8]) {
    if let [byte] = *bytes {
        // Volatile, here and below: one store, whose reader is the instruction fetch of other cores.
        // SAFETY: writable (1).
        return unsafe { alias.write_volatile(byte) };
    }
    let inside = alias.addr() % 8;
    #[expect(clippy::cast_ptr_alignment, reason = "aligned down to 8")]
    let word = alias.wrapping_sub(inside).cast::<u64>();
    // SAFETY: mapped (1), aligned.
    let mut value = unsafe { word.read_volatile() }.to_le_bytes();
    value[inside..inside + bytes.len()].copy_from_slice(bytes);
    // SAFETY: mapped writable (1), aligned.
    unsafe { word.write_volatile(u64::from_le_bytes(value)) };
}

#[cfg(all(test, not(loom), feature = "std"))]
#[path = "x86_64_emulation.rs"]
mod emulation;

#[cfg(all(test, not(loom), feature = "std"))]
#[path = "x86_64_fork_tests.rs"]
mod fork;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_relative_to_the_end() {
        let target = |code: &[u8]| check(0x1000, &[], code).unwrap().map(|action| (action.target, action.otherwise));
        assert_eq!(target(&[0xEB, 0x10]), Some((0x1012, 0x1012)));
        assert_eq!(target(&[0xEB, 0xFE]), Some((0x1000, 0x1000)));
        assert_eq!(target(&[0xEB, 0x10, 1, 2, 3]), Some((0x1012, 0x1012)));
        assert_eq!(target(&[0xE9, 0, 1, 0, 0]), Some((0x1105, 0x1105)));
        assert_eq!(target(&[0xE9, 0xFB, 0xFF, 0xFF, 0xFF, 0x90]), Some((0x1000, 0x1000)));
        assert_eq!(target(&[0x74, 0xF0]), Some((0xFF2, 0x1002)));
        assert_eq!(target(&[0x0F, 0x84, 0xFA, 0xFF, 0xFF, 0xFF]), Some((0x1000, 0x1006)));
    }

    #[test]
    fn what_is_not_emulated_has_no_action() {
        let none: [&[u8]; 9] = [
            &[0xE8, 0, 0, 0, 0],
            &[0xC3],
            &[0xCC],
            &[0x90, 0x90],
            &[0xF3, 0x90],
            &[0x74, 0, 0x90],
            &[0xE9, 0, 0, 0],
            &[0x0F, 0x1F],
            &[0x0F, 0x1F, 0x44, 0],
        ];
        for code in none {
            assert_eq!(check(0x1000, code, code), Ok(None), "{code:x?}");
        }
    }

    #[test]
    fn a_word_has_eight_aligned_bytes() {
        assert!(fits_single_store(8, 8) && fits_single_store(11, 5) && fits_single_store(15, 1));
        assert!(!fits_single_store(12, 5) && !fits_single_store(9, 8) && !fits_single_store(8, 9));
    }
}
