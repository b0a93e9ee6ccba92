//! Operations on registers.

use super::encode::{self, Bits, Flag, Group, Native, R9, R10, R11, RAX, RCX, RDX};
use super::{Source, group};
use crate::insn::{AluOp, ByteOrder, Size};
use crate::jit::buffer::Buffer;

/// `dst = dst op operand`
pub(super) fn alu(buffer: &mut Buffer, bits: Bits, op: AluOp, dst: Native, operand: Source) {
    match (op, operand) {
        (AluOp::Move, Source::Register(src)) => encode::mov(buffer, bits, dst, src),
        (AluOp::Move, Source::Immediate(value)) => {
            encode::mov_immediate(buffer, dst, if bits == Bits::B64 { value as u64 } else { value as u32 as u64 });
        }
        (AluOp::Mul, Source::Register(src)) => encode::rr(buffer, bits, 0x0faf, dst, src),
        (AluOp::Mul, Source::Immediate(value)) => match i8::try_from(value) {
            Ok(value) => encode::multiply_by_byte(buffer, bits, dst, value),
            Err(_) => encode::multiply_by(buffer, bits, dst, value),
        },
        (AluOp::ShiftLeft | AluOp::ShiftRight | AluOp::ShiftRightSigned, operand) => {
            shift(buffer, bits, op, dst, operand);
        }
        (AluOp::Div | AluOp::Mod, Source::Immediate(value)) if is_power_of_2(bits, value) => {
            by_power_of_2(buffer, bits, op, dst, value);
        }
        (AluOp::Div | AluOp::Mod | AluOp::SignedDiv | AluOp::SignedMod, operand) => {
            divide(buffer, bits, op, dst, operand);
        }
        (op, operand) => {
            let op = group(op).expect("all others are above");
            match operand {
                Source::Register(src) => encode::rr(buffer, bits, op.opcode(), src, dst),
                Source::Immediate(value) => encode::group_immediate(buffer, bits, op, dst, value),
            }
        }
    }
}

/// Whether a divisor without sign is a power of 2.
const fn is_power_of_2(bits: Bits, value: i32) -> bool {
    match bits {
        Bits::B64 => (value as u64).is_power_of_two(),
        _ => (value as u32).is_power_of_two(),
    }
}

fn by_power_of_2(buffer: &mut Buffer, bits: Bits, op: AluOp, dst: Native, value: i32) {
    // -2^31 is one only of 32 bits.
    let log = (value as u32).trailing_zeros();
    match (op, log) {
        // With 32 bits the upper half becomes 0 all the same.
        (AluOp::Div, 0) if bits == Bits::B64 => {}
        (AluOp::Div, 0) => encode::mov(buffer, bits, dst, dst),
        (AluOp::Div, log) => encode::ri8(buffer, bits, 0xc1, 5, dst, log as i8),
        (_, 31) => encode::ri32(buffer, bits, 0x81, Group::And as u8, dst, i32::MAX),
        (_, log) => encode::group_immediate(buffer, bits, Group::And, dst, (1 << log) - 1),
    }
}

/// The extension of the shift's opcode.
const fn shift_code(op: AluOp) -> u8 {
    match op {
        AluOp::ShiftLeft => 4,
        AluOp::ShiftRight => 5,
        _ => 7,
    }
}

fn shift(buffer: &mut Buffer, bits: Bits, op: AluOp, dst: Native, operand: Source) {
    let code = shift_code(op);
    let src = match operand {
        // The machine takes as many low bits as the width needs, as eBPF does.
        Source::Immediate(value) => return encode::ri8(buffer, bits, 0xc1, code, dst, value as i8),
        Source::Register(src) => src,
    };
    if dst == RCX {
        // Shifted elsewhere, since `cl` has the number.
        encode::mov(buffer, bits, R11, RCX);
        encode::mov(buffer, Bits::B32, RCX, src);
        encode::r(buffer, bits, 0xd3, code, R11);
        encode::mov(buffer, bits, RCX, R11);
    } else if src == RCX {
        encode::r(buffer, bits, 0xd3, code, dst);
    } else {
        encode::mov(buffer, Bits::B64, R11, RCX);
        encode::mov(buffer, Bits::B32, RCX, src);
        encode::r(buffer, bits, 0xd3, code, dst);
        encode::mov(buffer, Bits::B64, RCX, R11);
    }
}

/// Divides by a number that is not a power of 2; may use `rax` and `rdx`.
///
/// The machine traps where eBPF has results: for the divisor 0, and for the least number divided by -1.
fn divide(buffer: &mut Buffer, bits: Bits, op: AluOp, dst: Native, operand: Source) {
    let is_signed = matches!(op, AluOp::SignedDiv | AluOp::SignedMod);
    let is_mod = matches!(op, AluOp::Mod | AluOp::SignedMod);
    match operand {
        Source::Immediate(0) => return by_zero(buffer, bits, is_mod, dst),
        Source::Immediate(-1) if is_signed => return by_minus_1(buffer, bits, is_mod, dst),
        Source::Immediate(value) => {
            let value = if bits == Bits::B64 { value as u64 } else { value as u32 as u64 };
            encode::mov_immediate(buffer, R11, value);
        }
        Source::Register(src) => encode::mov(buffer, bits, R11, src),
    }
    if matches!(operand, Source::Immediate(_)) {
        return quotient(buffer, bits, is_signed, is_mod, dst);
    }
    // By zero, else (with signs) by -1, else by the machine: each way ends with a jump behind the others.
    encode::rr(buffer, bits, 0x85, R11, R11);
    let other = encode::hole_if(buffer, Flag::NotEqual);
    by_zero(buffer, bits, is_mod, dst);
    let zero_done = encode::hole(buffer);
    other.ends_here(buffer);
    let mut minus_done = None;
    if is_signed {
        encode::group_immediate(buffer, bits, Group::Compare, R11, -1);
        let other = encode::hole_if(buffer, Flag::NotEqual);
        by_minus_1(buffer, bits, is_mod, dst);
        minus_done = Some(encode::hole(buffer));
        other.ends_here(buffer);
    }
    quotient(buffer, bits, is_signed, is_mod, dst);
    zero_done.ends_here(buffer);
    if let Some(done) = minus_done {
        done.ends_here(buffer);
    }
}

/// The result of a division by 0.
fn by_zero(buffer: &mut Buffer, bits: Bits, is_mod: bool, dst: Native) {
    match (is_mod, bits) {
        (false, _) => encode::mov_immediate(buffer, dst, 0),
        (true, Bits::B64) => {}
        // Clears the upper half.
        (true, _) => encode::mov(buffer, bits, dst, dst),
    }
}

/// The result of a division with signs by -1.
fn by_minus_1(buffer: &mut Buffer, bits: Bits, is_mod: bool, dst: Native) {
    if is_mod { encode::mov_immediate(buffer, dst, 0) } else { encode::r(buffer, bits, 0xf7, 3, dst) }
}

/// Divides by `r11`.
fn quotient(buffer: &mut Buffer, bits: Bits, is_signed: bool, is_mod: bool, dst: Native) {
    if dst != RAX {
        encode::mov(buffer, Bits::B64, R10, RAX);
        encode::mov(buffer, bits, RAX, dst);
    }
    if dst != RDX {
        encode::mov(buffer, Bits::B64, R9, RDX);
    }
    if is_signed {
        // cdq, cqo: the sign of rax in all of rdx.
        if bits == Bits::B64 {
            buffer.push(&[0x48]);
        }
        buffer.push(&[0x99]);
        encode::r(buffer, bits, 0xf7, 7, R11);
    } else {
        encode::mov_immediate(buffer, RDX, 0);
        encode::r(buffer, bits, 0xf7, 6, R11);
    }
    let result = if is_mod { RDX } else { RAX };
    if dst != result {
        encode::mov(buffer, bits, dst, result);
    }
    if dst != RAX {
        encode::mov(buffer, Bits::B64, RAX, R10);
    }
    if dst != RDX {
        encode::mov(buffer, Bits::B64, RDX, R9);
    }
}

/// `dst = src`, with the low bytes extended by their sign.
pub(super) fn move_signed(buffer: &mut Buffer, bits: Bits, from: Size, dst: Native, src: Native) {
    match from {
        Size::Byte => encode::rr_from_byte(buffer, bits, 0x0fbe, dst, src),
        Size::Half => encode::rr(buffer, bits, 0x0fbf, dst, src),
        Size::Word | Size::Double => encode::rr(buffer, Bits::B64, 0x63, dst, src),
    }
}

/// Changes the order of bytes. This machine is little-endian.
pub(super) fn swap(buffer: &mut Buffer, order: ByteOrder, size: Size, dst: Native) {
    if order != ByteOrder::Little {
        match size {
            // rol: exchanges the two.
            Size::Half => encode::ri8(buffer, Bits::B16, 0xc1, 0, dst, 8),
            Size::Double => encode::byte_swap(buffer, Bits::B64, dst),
            Size::Word | Size::Byte => return encode::byte_swap(buffer, Bits::B32, dst),
        }
    }
    // What is above becomes 0.
    match size {
        Size::Half => encode::rr(buffer, Bits::B32, 0x0fb7, dst, dst),
        Size::Word => encode::mov(buffer, Bits::B32, dst, dst),
        Size::Double | Size::Byte => {}
    }
}
