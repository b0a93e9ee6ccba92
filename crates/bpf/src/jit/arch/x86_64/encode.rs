//! Encodings of x86-64 (Intel SDM, volume 2, chapter 2 and the pages of the instructions).

use crate::jit::buffer::{Buffer, Mark, Short};

/// A register of the machine, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Native(pub(super) u8);

impl Native {
    /// Returns its number in DWARF (psABI, figure 3.36).
    pub(super) const fn in_dwarf(self) -> u8 {
        // `rax`, `rcx`, `rdx`, `rbx`, `rsp`, `rbp`, `rsi`, `rdi`; the others have the machine's.
        const FIRST: [u8; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
        if self.0 < 8 { FIRST[self.0 as usize] } else { self.0 }
    }
}

pub(super) const RAX: Native = Native(0);
pub(super) const RCX: Native = Native(1);
pub(super) const RDX: Native = Native(2);
pub(super) const RBX: Native = Native(3);
pub(super) const RSP: Native = Native(4);
pub(super) const RBP: Native = Native(5);
pub(super) const RSI: Native = Native(6);
pub(super) const RDI: Native = Native(7);
pub(super) const R8: Native = Native(8);
pub(super) const R9: Native = Native(9);
pub(super) const R10: Native = Native(10);
pub(super) const R11: Native = Native(11);
pub(super) const R12: Native = Native(12);
pub(super) const R13: Native = Native(13);
pub(super) const R14: Native = Native(14);
pub(super) const R15: Native = Native(15);

/// Bits of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bits {
    /// 8, for which registers 4 to 7 need a prefix.
    B8,
    /// 16.
    B16,
    /// 32.
    B32,
    /// 64.
    B64,
}

/// Memory at a register and a distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) base: Native,
    pub(super) offset: i32,
}

/// One instruction on its way into the buffer: the head, and behind it a distance and a constant, each at most 8 bytes.
/// They are numbers rather than bytes in memory, which would be read as a whole before they are complete.
///
/// What an instruction does not have is added as nothing, without a branch: the CPU could not predict that, since each
/// instruction of a program differs from the one before.
struct Line {
    head: u64,
    head_bits: u32,
    tail: u64,
    tail_bits: u32,
}

impl Line {
    const fn new() -> Self {
        Self { head: 0, head_bits: 0, tail: 0, tail_bits: 0 }
    }

    /// Adds a byte to the head.
    fn byte(&mut self, byte: u8) {
        self.head |= u64::from(byte) << self.head_bits;
        self.head_bits += 8;
    }

    /// Adds a byte to the head, if it is wanted.
    fn byte_if(&mut self, byte: u8, is_wanted: bool) {
        self.head |= (u64::from(byte) * u64::from(is_wanted)) << self.head_bits;
        self.head_bits += 8 * u32::from(is_wanted);
    }

    /// Adds as many low bits of a distance or a constant; at most 32.
    fn some(&mut self, value: i32, bits: u32) {
        self.tail |= (u64::from(value as u32) & ((1 << bits) - 1)) << self.tail_bits;
        self.tail_bits += bits;
    }

    /// Adds a distance or a constant of 8 bits.
    fn small(&mut self, value: u8) {
        self.tail |= u64::from(value) << self.tail_bits;
        self.tail_bits += 8;
    }

    /// Adds the same with 32 bits.
    fn word(&mut self, value: i32) {
        self.tail |= u64::from(value as u32) << self.tail_bits;
        self.tail_bits += 32;
    }

    /// Adds prefixes and opcode: 66 for 16 bits, REX if needed, and the opcode; the first byte of two-byte opcodes is
    /// 0f.
    fn opcode(&mut self, bits: Bits, opcode: u16, reg: u8, base: u8) {
        self.byte_if(0x66, bits == Bits::B16);
        let wide = if bits == Bits::B64 { 8 } else { 0 };
        let rex = wide | (reg >> 3) << 2 | base >> 3;
        // Without REX these are AH to BH.
        let low_byte = bits == Bits::B8 && (4..8).contains(&reg);
        self.byte_if(0x40 | rex, rex != 0 || low_byte);
        self.byte_if(0x0f, opcode > 0xff);
        self.byte(opcode as u8);
    }

    fn registers(&mut self, reg: u8, rm: Native) {
        self.byte(0xc0 | (reg & 7) << 3 | rm.0 & 7);
    }

    fn memory(&mut self, reg: u8, place: Place) {
        let (reg, base) = ((reg & 7) << 3, place.base.0 & 7);
        // Without a distance, 5 is not a base.
        let is_none = place.offset == 0 && base != RBP.0;
        let is_near = i8::try_from(place.offset).is_ok();
        let form = usize::from(is_none) + usize::from(is_near);
        self.byte([0x80, 0x40, 0x00][form] | reg | base);
        // As a base, 4 announces another byte.
        self.byte_if(0x24, base == RSP.0);
        self.some(place.offset, [32, 8, 0][form]);
    }

    fn emit(&self, buffer: &mut Buffer) {
        let line = u128::from(self.head) | u128::from(self.tail) << self.head_bits;
        buffer.push_line(line, (self.head_bits + self.tail_bits) as usize / 8);
    }
}

/// An instruction with two registers: `reg` is the one in the field of that name.
pub(super) fn rr(buffer: &mut Buffer, bits: Bits, opcode: u16, reg: Native, rm: Native) {
    let mut line = Line::new();
    line.opcode(bits, opcode, reg.0, rm.0);
    line.registers(reg.0, rm);
    line.emit(buffer);
}

/// The same with an 8-bit source, though the operation has more bits.
pub(super) fn rr_from_byte(buffer: &mut Buffer, bits: Bits, opcode: u16, reg: Native, rm: Native) {
    let mut line = Line::new();
    if bits != Bits::B64 && (4..8).contains(&rm.0) && reg.0 < 8 {
        line.byte(0x40);
    }
    line.opcode(bits, opcode, reg.0, rm.0);
    line.registers(reg.0, rm);
    line.emit(buffer);
}

/// An instruction with a register and a number that extends the opcode.
pub(super) fn r(buffer: &mut Buffer, bits: Bits, opcode: u16, extension: u8, rm: Native) {
    rr(buffer, bits, opcode, Native(extension), rm);
}

/// The same with a constant of 8 bits.
pub(super) fn ri8(buffer: &mut Buffer, bits: Bits, opcode: u16, extension: u8, rm: Native, value: i8) {
    let mut line = Line::new();
    line.opcode(bits, opcode, extension, rm.0);
    line.registers(extension, rm);
    line.small(value as u8);
    line.emit(buffer);
}

/// The same with a constant of 32 bits.
pub(super) fn ri32(buffer: &mut Buffer, bits: Bits, opcode: u16, extension: u8, rm: Native, value: i32) {
    let mut line = Line::new();
    line.opcode(bits, opcode, extension, rm.0);
    line.registers(extension, rm);
    line.word(value);
    line.emit(buffer);
}

/// Operations of the group whose opcodes are 81 and 83, by their extensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Group {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Compare = 7,
}

impl Group {
    /// `rm = rm op reg`
    pub(super) const fn opcode(self) -> u16 {
        (self as u16) << 3 | 1
    }
}

/// `rm = rm op value`
pub(super) fn group_immediate(buffer: &mut Buffer, bits: Bits, op: Group, rm: Native, value: i32) {
    let is_small = i8::try_from(value).is_ok();
    let (opcode, constant_bits) = if is_small { (0x83, 8) } else { (0x81, 32) };
    either(buffer, bits, opcode, op as u8, rm, (value, constant_bits));
}

/// An instruction of 32 or 64 bits with a register in the field of that name, or a number that extends the opcode, and
/// with as many low bits of a constant. Most of a program goes through here: its 7 bytes at most are put together in
/// one number, without a branch.
pub(super) fn either(
    buffer: &mut Buffer,
    bits: Bits,
    opcode: u8,
    reg: u8,
    rm: Native,
    (constant, constant_bits): (i32, u32),
) {
    debug_assert!(matches!(bits, Bits::B32 | Bits::B64), "others have prefixes of their own");
    let rex = u8::from(bits == Bits::B64) << 3 | reg >> 3 << 2 | rm.0 >> 3;
    let registers = 0xc0 | (reg & 7) << 3 | rm.0 & 7;
    let constant = u64::from(constant as u32) & ((1 << constant_bits) - 1);
    let head = u64::from(0x40 | rex) | u64::from(opcode) << 8 | u64::from(registers) << 16;
    // A REX that says nothing is left out.
    let absent = 8 * u32::from(rex == 0);
    buffer.push_short((head | constant << 24) >> absent, (24 - absent + constant_bits) as usize / 8);
}

/// An instruction with a register and memory.
pub(super) fn rm(buffer: &mut Buffer, bits: Bits, opcode: u16, reg: Native, place: Place) {
    let mut line = Line::new();
    line.opcode(bits, opcode, reg.0, place.base.0);
    line.memory(reg.0, place);
    line.emit(buffer);
}

/// The same, with `lock` before it.
pub(super) fn locked(buffer: &mut Buffer, bits: Bits, opcode: u16, reg: Native, place: Place) {
    let mut line = Line::new();
    line.byte(0xf0);
    line.opcode(bits, opcode, reg.0, place.base.0);
    line.memory(reg.0, place);
    line.emit(buffer);
}

/// Stores a constant.
pub(super) fn store_immediate(buffer: &mut Buffer, bits: Bits, place: Place, value: i32) {
    let mut line = Line::new();
    let opcode = if bits == Bits::B8 { 0xc6 } else { 0xc7 };
    line.opcode(bits, opcode, 0, place.base.0);
    line.memory(0, place);
    match bits {
        Bits::B8 => line.small(value as u8),
        Bits::B16 => {
            line.small(value as u8);
            line.small((value >> 8) as u8);
        }
        Bits::B32 | Bits::B64 => line.word(value),
    }
    line.emit(buffer);
}

/// `rm op= value` in memory, for a value of 8 bits.
pub(super) fn group_memory(buffer: &mut Buffer, bits: Bits, op: Group, place: Place, value: i8) {
    let mut line = Line::new();
    line.opcode(bits, 0x83, op as u8, place.base.0);
    line.memory(op as u8, place);
    line.small(value as u8);
    line.emit(buffer);
}

/// `dst = src`
pub(super) fn mov(buffer: &mut Buffer, bits: Bits, dst: Native, src: Native) {
    rr(buffer, bits, 0x89, src, dst);
}

/// `dst = value`, in the shortest way that leaves the flags alone unless the value is 0.
pub(super) fn mov_immediate(buffer: &mut Buffer, dst: Native, value: u64) {
    if value == 0 {
        rr(buffer, Bits::B32, 0x31, dst, dst);
    } else if let Ok(value) = u32::try_from(value) {
        let mut line = Line::new();
        line.opcode(Bits::B32, 0xb8 | u16::from(dst.0 & 7), 0, dst.0);
        line.word(value as i32);
        line.emit(buffer);
    } else if let Ok(value) = i32::try_from(value as i64) {
        ri32(buffer, Bits::B64, 0xc7, 0, dst, value);
    } else {
        let mut line = Line::new();
        line.opcode(Bits::B64, 0xb8 | u16::from(dst.0 & 7), 0, dst.0);
        line.word(value as i32);
        line.word((value >> 32) as i32);
        line.emit(buffer);
    }
}

pub(super) fn push(buffer: &mut Buffer, register: Native) {
    let mut line = Line::new();
    line.opcode(Bits::B32, 0x50 | u16::from(register.0 & 7), 0, register.0);
    line.emit(buffer);
}

pub(super) fn pop(buffer: &mut Buffer, register: Native) {
    let mut line = Line::new();
    line.opcode(Bits::B32, 0x58 | u16::from(register.0 & 7), 0, register.0);
    line.emit(buffer);
}

/// Conditions of jumps, by their codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Flag {
    Below = 0x2,
    AboveEqual = 0x3,
    Equal = 0x4,
    NotEqual = 0x5,
    BelowEqual = 0x6,
    Above = 0x7,
    Sign = 0x8,
    NotSign = 0x9,
    Less = 0xc,
    GreaterEqual = 0xd,
    LessEqual = 0xe,
    Greater = 0xf,
}

impl Flag {
    pub(super) const fn opposite(self) -> Self {
        match self {
            Self::Below => Self::AboveEqual,
            Self::AboveEqual => Self::Below,
            Self::Equal => Self::NotEqual,
            Self::NotEqual => Self::Equal,
            Self::BelowEqual => Self::Above,
            Self::Above => Self::BelowEqual,
            Self::Sign => Self::NotSign,
            Self::NotSign => Self::Sign,
            Self::Less => Self::GreaterEqual,
            Self::GreaterEqual => Self::Less,
            Self::LessEqual => Self::Greater,
            Self::Greater => Self::LessEqual,
        }
    }
}

/// Forms of distances: the bytes of the number, which ends the instruction.
pub(super) const NEAR: u8 = 1;
pub(super) const FAR: u8 = 4;

pub(super) fn jump(buffer: &mut Buffer, to: Mark) {
    buffer.push(&[0xe9, 0, 0, 0, 0]);
    buffer.jump(FAR, Short { opcode: 0xeb, form: NEAR, long: 5 }, to);
}

pub(super) fn jump_if(buffer: &mut Buffer, flag: Flag, to: Mark) {
    buffer.push(&[0x0f, 0x80 | flag as u8, 0, 0, 0, 0]);
    buffer.jump(FAR, Short { opcode: 0x70 | flag as u8, form: NEAR, long: 6 }, to);
}

/// A short jump whose target is not known yet.
#[must_use]
pub(super) struct Hole {
    /// Where its distance is; it counts from behind itself.
    at: usize,
}

impl Hole {
    /// Makes the jump go here, at most 127 bytes behind it.
    pub(super) fn ends_here(self, buffer: &mut Buffer) {
        let distance = buffer.len() - (self.at + 1);
        debug_assert!(distance <= 127, "{distance} bytes are too far for a short jump");
        buffer.set(self.at, distance as u8);
        buffer.end_hole(self.at);
    }
}

/// A short jump forward.
pub(super) fn hole(buffer: &mut Buffer) -> Hole {
    buffer.push(&[0xeb, 0]);
    Hole { at: buffer.len() - 1 }
}

/// The same, if the flag is set.
pub(super) fn hole_if(buffer: &mut Buffer, flag: Flag) -> Hole {
    buffer.push(&[0x70 | flag as u8, 0]);
    Hole { at: buffer.len() - 1 }
}

/// A short jump back to `to`, if the flag is set.
pub(super) fn back_if(buffer: &mut Buffer, flag: Flag, to: usize) {
    let distance = buffer.len() + 2 - to;
    debug_assert!(distance <= 128, "{distance} bytes are too far for a short jump");
    buffer.push(&[0x70 | flag as u8, (distance as u8).wrapping_neg()]);
}

/// Nothing after it begins before everything before it is done (`lfence`; Intel's and AMD's guidance on speculation).
pub(super) fn barrier(buffer: &mut Buffer) {
    buffer.push(&[0x0f, 0xae, 0xe8]);
}

/// `endbr64`: where calls through registers may lead, should the kernel ever track them (Intel SDM, volume 1, section
/// 17.3); elsewhere an instruction without effect.
pub(super) fn landing_pad(buffer: &mut Buffer) {
    buffer.push(&[0xf3, 0x0f, 0x1e, 0xfa]);
}

pub(super) fn call(buffer: &mut Buffer, to: Mark) {
    buffer.push(&[0xe8, 0, 0, 0, 0]);
    buffer.gap(4, FAR, to);
}

/// Calls the address that lies at `to`.
pub(super) fn call_through(buffer: &mut Buffer, to: Mark) {
    buffer.push(&[0xff, 0x15, 0, 0, 0, 0]);
    buffer.gap(4, FAR, to);
}

/// `dst = to`, as an address.
pub(super) fn address(buffer: &mut Buffer, dst: Native, to: Mark) {
    // lea dst, [rip + distance]
    buffer.push(&[0x48 | (dst.0 >> 3) << 2, 0x8d, 0x05 | (dst.0 & 7) << 3, 0, 0, 0, 0]);
    buffer.gap(4, FAR, to);
}

/// `dst *= value`
pub(super) fn multiply_by(buffer: &mut Buffer, bits: Bits, dst: Native, value: i32) {
    let mut line = Line::new();
    line.opcode(bits, 0x69, dst.0, dst.0);
    line.registers(dst.0, dst);
    line.word(value);
    line.emit(buffer);
}

/// The same for a value of 8 bits.
pub(super) fn multiply_by_byte(buffer: &mut Buffer, bits: Bits, dst: Native, value: i8) {
    let mut line = Line::new();
    line.opcode(bits, 0x6b, dst.0, dst.0);
    line.registers(dst.0, dst);
    line.small(value as u8);
    line.emit(buffer);
}

/// Turns the bytes of `dst` around.
pub(super) fn byte_swap(buffer: &mut Buffer, bits: Bits, dst: Native) {
    let mut line = Line::new();
    line.opcode(bits, 0x0fc8 | u16::from(dst.0 & 7), 0, dst.0);
    line.emit(buffer);
}

/// Fills `code` with instructions that do nothing (Intel SDM, volume 2, NOP, table 4-12).
pub(super) fn idle(code: &mut [u8]) {
    const LONGEST: [u8; 9] = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    for piece in code.chunks_mut(LONGEST.len()) {
        let nop: &[u8] = match piece.len() {
            1 => &[0x90],
            2 => &[0x66, 0x90],
            3 => &[0x0f, 0x1f, 0x00],
            4 => &[0x0f, 0x1f, 0x40, 0],
            5 => &[0x0f, 0x1f, 0x44, 0, 0],
            6 => &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
            7 => &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
            8 => &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            _ => &LONGEST,
        };
        piece.copy_from_slice(nop);
    }
}
