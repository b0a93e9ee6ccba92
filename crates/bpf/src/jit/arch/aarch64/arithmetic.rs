//! Operations on registers.
//!
//! This machine's division gives what eBPF wants for the divisor 0 and for the least number by -1 (`AArch64.SDIV`): 0
//! and the dividend; remainders follow.

use super::encode::{self, Bits, Field, Logic, Native, One, Sum, Three};
use super::{SCRATCH, Source, extended};
use crate::insn::{AluOp, ByteOrder, Size};
use crate::jit::buffer::Buffer;

/// `dst = dst op operand`
pub(super) fn alu(buffer: &mut Buffer, bits: Bits, op: AluOp, dst: Native, operand: Source) {
    let right = match operand {
        Source::Register(src) => src,
        Source::Immediate(value) => {
            if immediate(buffer, bits, op, dst, value) {
                return;
            }
            encode::mov_immediate(buffer, bits, SCRATCH[0], extended(bits, value));
            SCRATCH[0]
        }
    };
    let three = match op {
        AluOp::Add => Three::Add,
        AluOp::Sub => Three::Sub,
        AluOp::Mul => Three::Mul,
        AluOp::Div => Three::Div,
        AluOp::SignedDiv => Three::SignedDiv,
        AluOp::Or => Three::Or,
        AluOp::And => Three::And,
        AluOp::Xor => Three::Xor,
        AluOp::ShiftLeft => Three::ShiftLeft,
        AluOp::ShiftRight => Three::ShiftRight,
        AluOp::ShiftRightSigned => Three::ShiftRightSigned,
        AluOp::Move => return encode::mov(buffer, bits, dst, right),
        AluOp::Mod => return remainder(buffer, bits, Three::Div, dst, right),
        AluOp::SignedMod => return remainder(buffer, bits, Three::SignedDiv, dst, right),
    };
    encode::three(buffer, bits, three, dst, dst, right);
}

fn remainder(buffer: &mut Buffer, bits: Bits, division: Three, dst: Native, right: Native) {
    let quotient = SCRATCH[1];
    encode::three(buffer, bits, division, quotient, dst, right);
    encode::multiply_subtract(buffer, bits, dst, quotient, right, dst);
}

/// An operation with a constant, if an instruction can contain it.
fn immediate(buffer: &mut Buffer, bits: Bits, op: AluOp, dst: Native, value: i32) -> bool {
    let (count, by) = (bits.count(), value as u32 & (bits.count() - 1));
    let magnitude = u64::from(value.unsigned_abs());
    match op {
        AluOp::Move => encode::mov_immediate(buffer, bits, dst, extended(bits, value)),
        AluOp::Add | AluOp::Sub => {
            let sum = if (op == AluOp::Add) == (value >= 0) { Sum::Add } else { Sum::Sub };
            return encode::add_immediate(buffer, bits, sum, dst, dst, magnitude);
        }
        AluOp::And => return encode::logic_immediate(buffer, bits, Logic::And, dst, dst, extended(bits, value)),
        AluOp::Or => return encode::logic_immediate(buffer, bits, Logic::Or, dst, dst, extended(bits, value)),
        AluOp::Xor => return encode::logic_immediate(buffer, bits, Logic::Xor, dst, dst, extended(bits, value)),
        AluOp::ShiftLeft => {
            let rotation = (count - by) % count;
            encode::bit_field(buffer, bits, Field::Unsigned, dst, dst, rotation, count - 1 - by);
        }
        AluOp::ShiftRight => encode::bit_field(buffer, bits, Field::Unsigned, dst, dst, by, count - 1),
        AluOp::ShiftRightSigned => encode::bit_field(buffer, bits, Field::Signed, dst, dst, by, count - 1),
        _ => return false,
    }
    true
}

/// Changes the order of bytes. This machine is little-endian.
pub(super) fn swap(buffer: &mut Buffer, order: ByteOrder, size: Size, dst: Native) {
    if order != ByteOrder::Little {
        match size {
            Size::Half => encode::one(buffer, Bits::B32, One::Reverse16, dst, dst),
            Size::Double => encode::one(buffer, Bits::B64, One::Reverse64, dst, dst),
            Size::Word | Size::Byte => return encode::one(buffer, Bits::B32, One::Reverse32, dst, dst),
        }
    }
    // What is above becomes 0.
    match size {
        Size::Half => encode::bit_field(buffer, Bits::B32, Field::Unsigned, dst, dst, 0, 15),
        Size::Word => encode::mov(buffer, Bits::B32, dst, dst),
        Size::Double | Size::Byte => {}
    }
}
