//! Stores, ordered accesses, and atomic operations on memory.

use super::encode::{self, Access, Bits, Flag, Kind, Native, Ordered, Sum, Three, ZERO};
use super::{SCRATCH, Source, bits, extended, native};
use crate::insn::{AtomicOp, Register, Size, Width};
use crate::jit::buffer::Buffer;
use crate::map::ArrayPlace;

/// The bytes of an access as a power of 2.
pub(super) const fn log(size: Size) -> u32 {
    size.bytes().trailing_zeros()
}

/// `*(base + offset) = value`
pub(super) fn store(buffer: &mut Buffer, size: Size, base: Native, offset: i16, value: Source) {
    let [scratch, other, ..] = SCRATCH;
    let src = match value {
        Source::Register(src) => src,
        Source::Immediate(value) => {
            encode::mov_immediate(buffer, Bits::B64, other, extended(Bits::B64, value));
            other
        }
    };
    encode::access(buffer, Access { log: log(size), kind: Kind::Store }, src, base, offset.into(), scratch);
}

/// An unproven load: if there is nothing, `dst` is 0, since the load that faults does not write it.
pub(super) fn probe(buffer: &mut Buffer, access: Access, dst: Native, base: Native, offset: i16) {
    let [scratch, copy, ..] = SCRATCH;
    let mut base = base;
    if base == dst {
        encode::mov(buffer, Bits::B64, copy, base);
        base = copy;
    }
    encode::mov_immediate(buffer, Bits::B64, dst, 0);
    encode::access(buffer, access, dst, base, offset.into(), scratch);
    // Its last instruction is the load.
    buffer.may_fault(buffer.len() - 4);
}

/// Returns a register with `base + offset`: a register of its own if necessary.
pub(super) fn address(buffer: &mut Buffer, base: Native, offset: i16) -> Native {
    let scratch = SCRATCH[0];
    if offset == 0 {
        return base;
    }
    let sum = if offset < 0 { Sum::Sub } else { Sum::Add };
    if !encode::add_immediate(buffer, Bits::B64, sum, scratch, base, offset.unsigned_abs().into()) {
        encode::mov_immediate(buffer, Bits::B64, scratch, i64::from(offset) as u64);
        encode::three(buffer, Bits::B64, Three::Add, scratch, base, scratch);
    }
    scratch
}

pub(super) fn load_acquire(buffer: &mut Buffer, size: Size, dst: Native, base: Native, offset: i16) {
    let address = address(buffer, base, offset);
    encode::ordered(buffer, Ordered::LoadAcquire, log(size), dst, address, dst);
}

pub(super) fn store_release(buffer: &mut Buffer, size: Size, src: Native, base: Native, offset: i16) {
    let address = address(buffer, base, offset);
    encode::ordered(buffer, Ordered::StoreRelease, log(size), src, address, src);
}

/// An atomic operation: tries again until the store succeeds.
///
/// Fetching operations are full barriers in Linux's memory model. The load is not an acquire and the store is a
/// release: with the barrier behind them nothing passes the pair in either direction, which `ldaxr` and `stlxr` alone
/// would not forbid (Linux, `arch/arm64/include/asm/atomic_ll_sc.h`).
pub(super) fn atomic(buffer: &mut Buffer, op: AtomicOp, width: Width, base: Native, offset: i16, src: Native) {
    let [_, old, new, outcome] = SCRATCH;
    let (bits, log) = (bits(width), if width == Width::W32 { 2 } else { 3 });
    let address = address(buffer, base, offset);
    let again = buffer.len();
    encode::ordered(buffer, Ordered::LoadExclusive, log, old, address, old);
    let stored = match op {
        AtomicOp::Add | AtomicOp::FetchAdd => combined(buffer, bits, Three::Add, new, old, src),
        AtomicOp::Or | AtomicOp::FetchOr => combined(buffer, bits, Three::Or, new, old, src),
        AtomicOp::And | AtomicOp::FetchAnd => combined(buffer, bits, Three::And, new, old, src),
        AtomicOp::Xor | AtomicOp::FetchXor => combined(buffer, bits, Three::Xor, new, old, src),
        AtomicOp::Exchange => src,
        AtomicOp::CompareExchange => {
            encode::three(buffer, bits, Three::Subs, ZERO, old, native(Register::R0));
            // Over the store and its jump.
            encode::skip_if(buffer, Flag::NotEqual, 2);
            src
        }
    };
    encode::ordered(buffer, Ordered::StoreReleaseExclusive, log, stored, address, outcome);
    encode::back_if_not_zero(buffer, outcome, again);
    let result = match op {
        AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor => return,
        AtomicOp::CompareExchange => native(Register::R0),
        _ => src,
    };
    encode::barrier(buffer);
    encode::mov(buffer, bits, result, old);
}

fn combined(buffer: &mut Buffer, bits: Bits, op: Three, new: Native, old: Native, src: Native) -> Native {
    encode::three(buffer, bits, op, new, old, src);
    new
}

/// `r0` = the address of the value whose number is at `r2`, or 0.
pub(super) fn look_up(buffer: &mut Buffer, array: ArrayPlace) {
    let [index, other, ..] = SCRATCH;
    let result = native(Register::R0);
    encode::access(buffer, Access { log: 2, kind: Kind::Load }, index, native(Register::R2), 0, other);
    encode::mov_immediate(buffer, Bits::B64, result, 0);
    if !encode::add_immediate(buffer, Bits::B32, Sum::Subs, ZERO, index, array.count.into()) {
        encode::mov_immediate(buffer, Bits::B32, other, array.count.into());
        encode::three(buffer, Bits::B32, Three::Subs, ZERO, index, other);
    }
    let is_none = encode::hole_if(buffer, Flag::AboveEqual);
    encode::mov_immediate(buffer, Bits::B64, other, array.stride.into());
    encode::three(buffer, Bits::B64, Three::Mul, index, index, other);
    encode::mov_immediate(buffer, Bits::B64, result, array.values);
    encode::three(buffer, Bits::B64, Three::Add, result, result, index);
    encode::end_hole(buffer, is_none);
}
