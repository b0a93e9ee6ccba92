//! Encodings of AArch64 (Arm ARM, DDI 0487, chapter C4 and the pages of the instructions).

use crate::jit::buffer::{Buffer, Mark};

/// A register of the machine, by its number. 31 is zero or the stack pointer, depending on the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Native(pub(super) u8);

pub(super) const ZERO: Native = Native(31);
pub(super) const SP: Native = Native(31);
pub(super) const FP: Native = Native(29);
pub(super) const LR: Native = Native(30);

impl Native {
    const fn d(self) -> u32 {
        self.0 as u32
    }

    const fn n(self) -> u32 {
        (self.0 as u32) << 5
    }

    const fn m(self) -> u32 {
        (self.0 as u32) << 16
    }
}

/// Bits of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bits {
    B32,
    B64,
}

impl Bits {
    /// The field `sf`.
    const fn sf(self) -> u32 {
        match self {
            Self::B32 => 0,
            Self::B64 => 1 << 31,
        }
    }

    pub(super) const fn count(self) -> u32 {
        match self {
            Self::B32 => 32,
            Self::B64 => 64,
        }
    }
}

pub(super) fn word(buffer: &mut Buffer, word: u32) {
    buffer.push(&word.to_le_bytes());
}

/// Operations on three registers: `rd = rn op rm`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Three {
    Add = 0x0b00_0000,
    Sub = 0x4b00_0000,
    /// Sets flags.
    Subs = 0x6b00_0000,
    And = 0x0a00_0000,
    /// Sets flags.
    Ands = 0x6a00_0000,
    Or = 0x2a00_0000,
    Xor = 0x4a00_0000,
    ShiftLeft = 0x1ac0_2000,
    ShiftRight = 0x1ac0_2400,
    ShiftRightSigned = 0x1ac0_2800,
    Div = 0x1ac0_0800,
    SignedDiv = 0x1ac0_0c00,
    /// `MADD` with zero.
    Mul = 0x1b00_7c00,
}

pub(super) fn three(buffer: &mut Buffer, bits: Bits, op: Three, rd: Native, rn: Native, rm: Native) {
    word(buffer, bits.sf() | op as u32 | rd.d() | rn.n() | rm.m());
}

/// `rd = ra - rn * rm`
pub(super) fn multiply_subtract(buffer: &mut Buffer, bits: Bits, rd: Native, rn: Native, rm: Native, ra: Native) {
    word(buffer, bits.sf() | 0x1b00_8000 | rd.d() | rn.n() | rm.m() | ra.d() << 10);
}

/// `rd = rm`; clears the upper half where it has 32 bits.
pub(super) fn mov(buffer: &mut Buffer, bits: Bits, rd: Native, rm: Native) {
    three(buffer, bits, Three::Or, rd, ZERO, rm);
}

/// Adds or subtracts a constant. Returns false, and writes nothing, if it cannot be encoded: 12 bits, or 12 bits
/// followed by 12 zeros.
pub(super) fn add_immediate(buffer: &mut Buffer, bits: Bits, op: Sum, rd: Native, rn: Native, value: u64) -> bool {
    let field = match value {
        0..=0xfff => (value as u32) << 10,
        _ if value & 0xfff == 0 && value <= 0xff_f000 => 1 << 22 | (value >> 12 << 10) as u32,
        _ => return false,
    };
    word(buffer, bits.sf() | op as u32 | field | rd.d() | rn.n());
    true
}

/// Sums and differences with constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Sum {
    Add = 0x1100_0000,
    Sub = 0x5100_0000,
    /// Sets flags.
    Adds = 0x3100_0000,
    /// Sets flags.
    Subs = 0x7100_0000,
}

/// Logical operations with constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Logic {
    And = 0x1200_0000,
    Or = 0x3200_0000,
    Xor = 0x5200_0000,
    /// Sets flags.
    Ands = 0x7200_0000,
}

/// A logical operation with a constant. Returns false, and writes nothing, if it cannot be encoded.
pub(super) fn logic_immediate(buffer: &mut Buffer, bits: Bits, op: Logic, rd: Native, rn: Native, value: u64) -> bool {
    let Some(field) = bit_mask(bits, value) else { return false };
    word(buffer, bits.sf() | op as u32 | field | rd.d() | rn.n());
    true
}

/// Returns the fields N, immr and imms for a constant: a repeated pattern of 2 to 64 bits, in which one run of bits is
/// set that may wrap around (`DecodeBitMasks`, appendix J).
fn bit_mask(bits: Bits, value: u64) -> Option<u32> {
    let value = match bits {
        Bits::B32 => value & 0xffff_ffff | value << 32,
        Bits::B64 => value,
    };
    if value == 0 || value == u64::MAX {
        return None;
    }
    // The shortest pattern that repeats.
    let mut size = 64;
    while size > 2 && value.rotate_right(size / 2) == value {
        size /= 2;
    }
    let pattern = if size == 64 { value } else { value & ((1 << size) - 1) };
    let ones = pattern.count_ones();
    // How far the run is rotated right from the lowest bits.
    let rotation = (0..size).find(|rotation| {
        let run = if ones == 64 { u64::MAX } else { (1 << ones) - 1 };
        let rotated = (run >> rotation | run.checked_shl(size - rotation).unwrap_or(0)) & mask(size);
        rotated == pattern
    })?;
    let n = u32::from(size == 64);
    let imms = (!(size * 2 - 1) & 0x3f) | (ones - 1);
    Some(n << 22 | rotation << 16 | imms << 10)
}

const fn mask(size: u32) -> u64 {
    if size == 64 { u64::MAX } else { (1 << size) - 1 }
}

/// `rd = value`, with the fewest instructions: those that clear or set the rest, and those that keep it.
pub(super) fn mov_immediate(buffer: &mut Buffer, bits: Bits, rd: Native, value: u64) {
    let value = if bits == Bits::B32 { value & 0xffff_ffff } else { value };
    let parts = bits.count() / 16;
    let part = |index: u32| (value >> (16 * index)) as u16;
    let zeros = (0..parts).filter(|index| part(*index) == 0).count();
    let ones = (0..parts).filter(|index| part(*index) == u16::MAX).count();
    let (base, skipped, first_opcode) =
        if ones > zeros { (u16::MAX, ones, 0x1280_0000) } else { (0, zeros, 0x5280_0000) };
    if skipped as u32 == parts {
        let field = u32::from(if base == 0 { part(0) } else { !part(0) }) << 5;
        return word(buffer, bits.sf() | first_opcode | field | rd.d());
    }
    let mut is_first = true;
    for index in (0..parts).filter(|index| part(*index) != base) {
        let (opcode, field) = match (is_first, base) {
            (true, 0) => (first_opcode, part(index)),
            (true, _) => (first_opcode, !part(index)),
            (false, _) => (0x7280_0000, part(index)),
        };
        word(buffer, bits.sf() | opcode | index << 21 | u32::from(field) << 5 | rd.d());
        is_first = false;
    }
}

/// Bit fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Field {
    Signed = 0x1300_0000,
    Unsigned = 0x5300_0000,
}

/// `SBFM` and `UBFM`: shifts by constants and extensions are forms of them.
pub(super) fn bit_field(buffer: &mut Buffer, bits: Bits, op: Field, rd: Native, rn: Native, immr: u32, imms: u32) {
    let n = if bits == Bits::B64 { 1 << 22 } else { 0 };
    word(buffer, bits.sf() | op as u32 | n | immr << 16 | imms << 10 | rn.n() | rd.d());
}

/// Operations on one register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum One {
    Reverse16 = 0x5ac0_0400,
    Reverse32 = 0x5ac0_0800,
    /// Only with 64 bits.
    Reverse64 = 0x5ac0_0c00,
}

pub(super) fn one(buffer: &mut Buffer, bits: Bits, op: One, rd: Native, rn: Native) {
    word(buffer, bits.sf() | op as u32 | rn.n() | rd.d());
}

/// An access to memory: its length as a power of 2 of bytes, and what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    pub(super) log: u32,
    pub(super) kind: Kind,
}

/// What an access does: the field `opc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Kind {
    Store = 0,
    Load = 1 << 22,
    /// Extends with the sign to 64 bits.
    LoadSigned = 2 << 22,
}

/// Loads or stores at `base + offset`; uses `scratch` for the offset if no form of the instruction holds it.
pub(super) fn access(buffer: &mut Buffer, access: Access, rt: Native, base: Native, offset: i32, scratch: Native) {
    let opcode = 0x3800_0000 | access.log << 30 | access.kind as u32 | base.n() | rt.d();
    let scaled = offset >> access.log;
    if offset >= 0 && scaled << access.log == offset && scaled < 1 << 12 {
        word(buffer, opcode | 1 << 24 | (scaled as u32) << 10);
    } else if (-256..256).contains(&offset) {
        word(buffer, opcode | (offset as u32 & 0x1ff) << 12);
    } else {
        mov_immediate(buffer, Bits::B64, scratch, offset as i64 as u64);
        // The register form, whose index is not extended.
        word(buffer, opcode | 1 << 21 | 0x6800 | scratch.m());
    }
}

/// Pushes and pops pairs of registers: `stp`, `ldp` of 64 bits.
pub(super) fn push_pair(buffer: &mut Buffer, first: Native, second: Native) {
    // stp first, second, [sp, #-16]!
    word(buffer, 0xa9bf_0000 | second.d() << 10 | SP.n() | first.d());
}

pub(super) fn pop_pair(buffer: &mut Buffer, first: Native, second: Native) {
    // ldp first, second, [sp], #16
    word(buffer, 0xa8c1_0000 | second.d() << 10 | SP.n() | first.d());
}

/// Loads that nothing later precedes, and stores that nothing earlier follows; the exclusive ones form a pair that
/// fails if something came between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Ordered {
    LoadAcquire = 0x08df_fc00,
    StoreRelease = 0x089f_fc00,
    LoadExclusive = 0x085f_7c00,
    /// The register for the outcome is added above.
    StoreReleaseExclusive = 0x0800_fc00,
}

pub(super) fn ordered(buffer: &mut Buffer, op: Ordered, log: u32, rt: Native, rn: Native, outcome: Native) {
    let outcome = if op == Ordered::StoreReleaseExclusive { outcome.m() } else { 0 };
    word(buffer, log << 30 | op as u32 | outcome | rn.n() | rt.d());
}

/// `dmb ish`
pub(super) fn barrier(buffer: &mut Buffer) {
    word(buffer, 0xd503_3bbf);
}

/// Nothing after it begins before everything before it is done: `dsb nsh; isb`, which machines without `sb` have, too
/// (Linux, `spec_bar` in `arch/arm64/include/asm/barrier.h`).
pub(super) fn speculation_barrier(buffer: &mut Buffer) {
    word(buffer, 0xd503_379f);
    word(buffer, 0xd503_3fdf);
}

/// `rd = rn if rn < end, else 0`, even in speculation (`csdb`: results of conditions are not guessed behind it).
pub(super) fn mask_below(buffer: &mut Buffer, rd: Native, rn: Native, end: Native) {
    three(buffer, Bits::B64, Three::Subs, ZERO, rn, end);
    // sbc rd, xzr, xzr: all ones if the difference has borrowed.
    word(buffer, 0xda00_0000 | rd.d() | ZERO.n() | ZERO.m());
    // csdb
    word(buffer, 0xd503_229f);
    three(buffer, Bits::B64, Three::And, rd, rd, rn);
}

/// Conditions, by their codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Flag {
    Equal = 0,
    NotEqual = 1,
    AboveEqual = 2,
    Below = 3,
    Minus = 4,
    Plus = 5,
    Above = 8,
    BelowEqual = 9,
    GreaterEqual = 10,
    Less = 11,
    Greater = 12,
    LessEqual = 13,
}

impl Flag {
    const fn opposite(self) -> u32 {
        self as u32 ^ 1
    }
}

/// A jump over what comes next, unless the flag is set; [`end_hole`] fills it in.
pub(super) fn hole_unless(buffer: &mut Buffer, flag: Flag) -> usize {
    word(buffer, 0x5400_0000 | flag.opposite());
    buffer.len() - 4
}

/// Forms of distances: 26 bits at the bottom, or 19 bits from bit 5. Both count words.
pub(super) const FAR: u8 = 26;
pub(super) const NEAR: u8 = 19;

pub(super) fn jump(buffer: &mut Buffer, to: Mark) {
    word(buffer, 0x1400_0000);
    buffer.gap(4, FAR, to);
}

/// `bti c`: where calls through registers lead in memory with `PROT_BTI` (Arm ARM, D8.4.7.3); elsewhere, and before
/// Armv8.5, an instruction without effect.
pub(super) fn landing_pad(buffer: &mut Buffer) {
    word(buffer, 0xd503_245f);
}

pub(super) fn call(buffer: &mut Buffer, to: Mark) {
    word(buffer, 0x9400_0000);
    buffer.gap(4, FAR, to);
}

/// What a distance of 19 bits reaches, in bytes.
pub(super) const REACH: usize = 1 << 20;

/// A jump with the opcode and a near distance, or with the opposite one over a far jump.
fn jump_by(buffer: &mut Buffer, opcode: u32, opposite: u32, to: Mark) {
    if buffer.is_near(to, REACH as i64) {
        word(buffer, opcode);
        buffer.gap(4, NEAR, to);
    } else {
        word(buffer, opposite | 2 << 5);
        jump(buffer, to);
    }
}

pub(super) fn jump_if(buffer: &mut Buffer, flag: Flag, to: Mark) {
    jump_by(buffer, 0x5400_0000 | flag as u32, 0x5400_0000 | flag.opposite(), to);
}

/// Jumps if the low 32 bits of `rt` are 0.
pub(super) fn jump_if_zero(buffer: &mut Buffer, rt: Native, to: Mark) {
    jump_by(buffer, 0x3400_0000 | rt.d(), 0x3500_0000 | rt.d(), to);
}

/// A jump to the code at `to`, which comes before, if the low 32 bits of `rt` are not 0.
pub(super) fn back_if_not_zero(buffer: &mut Buffer, rt: Native, to: usize) {
    let words = (buffer.len() - to) as u32 / 4;
    word(buffer, 0x3500_0000 | (words.wrapping_neg() & 0x7_ffff) << 5 | rt.d());
}

/// A jump over the next `words` instructions, if the flag is set.
pub(super) fn skip_if(buffer: &mut Buffer, flag: Flag, words: u32) {
    word(buffer, 0x5400_0000 | (words + 1) << 5 | flag as u32);
}

/// A jump over what comes next, if the low 32 bits of `rt` are not 0; [`end_hole`] fills it in.
pub(super) fn hole_unless_zero_word(buffer: &mut Buffer, rt: Native) -> usize {
    word(buffer, 0x3500_0000 | rt.d());
    buffer.len() - 4
}

/// A jump over what comes next, if `rt` is 0; [`end_hole`] fills it in.
pub(super) fn hole_if_zero(buffer: &mut Buffer, rt: Native) -> usize {
    word(buffer, 0xb400_0000 | rt.d());
    buffer.len() - 4
}

/// The same if the flag is set.
pub(super) fn hole_if(buffer: &mut Buffer, flag: Flag) -> usize {
    word(buffer, 0x5400_0000 | flag as u32);
    buffer.len() - 4
}

/// Makes the jump at `at` go here.
pub(super) fn end_hole(buffer: &mut Buffer, at: usize) {
    let words = (buffer.len() - at) as u32 / 4;
    // Bits 5 to 23 are the distance; its non-zero bits lie in the first, second and third byte.
    buffer.set(at, buffer.byte(at) | ((words << 5) & 0xff) as u8);
    buffer.set(at + 1, (words >> 3) as u8);
    buffer.set(at + 2, (words >> 11) as u8);
}

/// A distance of 32 bits, in two instructions behind an `adr`.
pub(super) const ADDRESS: u8 = 32;

/// `rd = to`, as an address. `adr` alone does not reach all code.
pub(super) fn address(buffer: &mut Buffer, rd: Native, scratch: Native, to: Mark) {
    // adr rd, 0
    word(buffer, 0x1000_0000 | rd.d());
    // movz scratch, low; movk scratch, high, lsl 16
    word(buffer, 0x5280_0000 | scratch.d());
    buffer.gap(4, ADDRESS, to);
    word(buffer, 0x72a0_0000 | scratch.d());
    // add rd, rd, scratch, sxtw
    word(buffer, 0x8b20_c000 | scratch.m() | rd.n() | rd.d());
}

/// Fills in the distance from the `adr` before `at` to `place`.
pub(super) fn fill_address(code: &mut [u8], at: usize, place: usize) {
    let distance = (place as i64 - (at as i64 - 4)) as u32;
    for (at, half) in [(at, distance & 0xffff), (at + 4, distance >> 16)] {
        if let Some(bytes) = code.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *bytes = (u32::from_le_bytes(*bytes) | half << 5).to_le_bytes();
        }
    }
}

/// Calls the address in `rn`.
pub(super) fn call_register(buffer: &mut Buffer, rn: Native) {
    word(buffer, 0xd63f_0000 | rn.n());
}

pub(super) fn ret(buffer: &mut Buffer) {
    word(buffer, 0xd65f_0000 | LR.n());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes the fields as a machine does (`DecodeBitMasks`).
    fn decoded(bits: Bits, field: u32) -> u64 {
        let (n, immr, imms) = (field >> 22 & 1, field >> 16 & 0x3f, field >> 10 & 0x3f);
        let len = 31 - (n << 6 | !imms & 0x3f).leading_zeros();
        let size = 1 << len;
        let (s, r) = (imms & (size - 1), immr & (size - 1));
        let run = if s == 63 { u64::MAX } else { (1 << (s + 1)) - 1 };
        let rotated = (run >> r | run.checked_shl(size - r).unwrap_or(0)) & mask(size);
        let whole = (0..64 / size).fold(0, |whole, index| whole | rotated << (index * size));
        if bits == Bits::B32 { whole & 0xffff_ffff } else { whole }
    }

    #[test]
    fn masks_that_can_be_encoded_decode_to_what_they_were() {
        let mut encoded = 0;
        for size in [2, 4, 8, 16, 32, 64] {
            for ones in 1..size {
                for rotation in 0..size {
                    let run: u64 = (1 << ones) - 1;
                    let pattern = (run >> rotation | run.checked_shl(size - rotation).unwrap_or(0)) & mask(size);
                    let value = (0..64 / size).fold(0, |whole, index| whole | pattern << (index * size));
                    let field = bit_mask(Bits::B64, value).expect("a pattern");
                    assert_eq!(decoded(Bits::B64, field), value, "{value:#x}");
                    encoded += 1;
                    if size <= 32 {
                        let field = bit_mask(Bits::B32, value & 0xffff_ffff).expect("a pattern");
                        assert_eq!((decoded(Bits::B32, field), field >> 22 & 1), (value & 0xffff_ffff, 0));
                    }
                }
            }
        }
        assert_eq!(encoded, 2 + 12 + 56 + 240 + 992 + 4032, "5334, as the manual counts them");
        for value in [0, u64::MAX, 5, 0x1234, 0xffff_0001] {
            assert_eq!(bit_mask(Bits::B64, value), None, "{value:#x}");
        }
    }
}
