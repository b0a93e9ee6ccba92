//! Loads, stores, and atomic operations on memory.

use super::Source;
use super::encode::{self, Bits, Flag, Group, Native, Place, R10, R11, RAX};
use super::native;
use crate::insn::{AtomicOp, Extension, Register, Size};
use crate::jit::buffer::Buffer;
use crate::map::ArrayPlace;

/// `dst = *place`
pub(super) fn load(buffer: &mut Buffer, size: Size, extension: Extension, dst: Native, place: Place) {
    let (bits, opcode): (Bits, u16) = match (extension, size) {
        (Extension::Zero, Size::Byte) => (Bits::B32, 0x0fb6),
        (Extension::Zero, Size::Half) => (Bits::B32, 0x0fb7),
        (Extension::Zero, Size::Word) => (Bits::B32, 0x8b),
        (_, Size::Double) => (Bits::B64, 0x8b),
        (Extension::Sign, Size::Byte) => (Bits::B64, 0x0fbe),
        (Extension::Sign, Size::Half) => (Bits::B64, 0x0fbf),
        (Extension::Sign, Size::Word) => (Bits::B64, 0x63),
    };
    encode::rm(buffer, bits, opcode, dst, place);
}

/// An unproven load: if there is nothing, `dst` is 0, since the load that faults does not write it.
pub(super) fn probe(buffer: &mut Buffer, size: Size, extension: Extension, dst: Native, place: Place) {
    let mut place = place;
    if place.base == dst {
        encode::mov(buffer, Bits::B64, R11, dst);
        place.base = R11;
    }
    encode::mov_immediate(buffer, dst, 0);
    let start = buffer.len();
    load(buffer, size, extension, dst, place);
    buffer.may_fault(start);
}

/// `*place = value`
pub(super) fn store(buffer: &mut Buffer, size: Size, place: Place, value: Source) {
    let bits = match size {
        Size::Byte => Bits::B8,
        Size::Half => Bits::B16,
        Size::Word => Bits::B32,
        Size::Double => Bits::B64,
    };
    match value {
        Source::Immediate(value) => encode::store_immediate(buffer, bits, place, value),
        Source::Register(src) => {
            let opcode = if bits == Bits::B8 { 0x88 } else { 0x89 };
            encode::rm(buffer, bits, opcode, src, place);
        }
    }
}

/// An atomic operation.
pub(super) fn atomic(buffer: &mut Buffer, op: AtomicOp, bits: Bits, place: Place, src: Native) {
    match op {
        AtomicOp::Add => encode::locked(buffer, bits, Group::Add.opcode(), src, place),
        AtomicOp::Or => encode::locked(buffer, bits, Group::Or.opcode(), src, place),
        AtomicOp::And => encode::locked(buffer, bits, Group::And.opcode(), src, place),
        AtomicOp::Xor => encode::locked(buffer, bits, Group::Xor.opcode(), src, place),
        AtomicOp::FetchAdd => encode::locked(buffer, bits, 0x0fc1, src, place),
        // Locked by itself.
        AtomicOp::Exchange => encode::rm(buffer, bits, 0x87, src, place),
        AtomicOp::CompareExchange => {
            encode::locked(buffer, bits, 0x0fb1, src, place);
            if bits == Bits::B32 {
                // The machine writes it only if they differ.
                encode::mov(buffer, Bits::B32, RAX, RAX);
            }
        }
        AtomicOp::FetchOr => fetch(buffer, Group::Or, bits, place, src),
        AtomicOp::FetchAnd => fetch(buffer, Group::And, bits, place, src),
        AtomicOp::FetchXor => fetch(buffer, Group::Xor, bits, place, src),
    }
}

/// For what the machine has no instruction: `rax` is read, `r10` is what memory should become; tries again until
/// nothing came between.
fn fetch(buffer: &mut Buffer, op: Group, bits: Bits, place: Place, src: Native) {
    let in_rax = |register: Native| if register == RAX { R11 } else { register };
    let operand = in_rax(src);
    let place = Place { base: in_rax(place.base), ..place };
    encode::mov(buffer, Bits::B64, R11, RAX);
    encode::rm(buffer, bits, 0x8b, RAX, place);
    let again = buffer.len();
    encode::mov(buffer, bits, R10, RAX);
    encode::rr(buffer, bits, op.opcode(), operand, R10);
    encode::locked(buffer, bits, 0x0fb1, R10, place);
    encode::back_if(buffer, Flag::NotEqual, again);
    if src != RAX {
        encode::mov(buffer, bits, src, RAX);
        encode::mov(buffer, Bits::B64, RAX, R11);
    }
}

/// `r0` = the address of the value whose number is at `r2`, or 0.
pub(super) fn look_up(buffer: &mut Buffer, array: ArrayPlace) {
    encode::rm(buffer, Bits::B32, 0x8b, R10, Place { base: native(Register::R2), offset: 0 });
    encode::mov_immediate(buffer, RAX, 0);
    encode::group_immediate(buffer, Bits::B32, Group::Compare, R10, array.count as i32);
    let is_none = encode::hole_if(buffer, Flag::AboveEqual);
    if array.stride.is_power_of_two() {
        // shl
        encode::ri8(buffer, Bits::B64, 0xc1, 4, R10, array.stride.trailing_zeros() as i8);
    } else {
        // A value has less than 2 GiB.
        encode::multiply_by(buffer, Bits::B64, R10, array.stride as i32);
    }
    encode::mov_immediate(buffer, RAX, array.values);
    encode::rr(buffer, Bits::B64, Group::Add.opcode(), R10, RAX);
    is_none.ends_here(buffer);
}
