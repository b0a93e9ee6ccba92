//! AArch64.
//!
//! | eBPF | register | |
//! |---|---|---|
//! | `r0` | `x7` | result; `x0` where the program or a function that helpers call ends |
//! | `r1` to `r5` | `x0` to `x4` | where the procedure call standard has arguments |
//! | `r6` to `r9` | `x19` to `x22` | kept by calls |
//! | `r10` | `x23` | end of the frame |
//! | – | `x24` | the gauge ([`Gauge`](crate::jit::Gauge)), where there is one |
//!
//! `x9` to `x12` hold what one instruction needs. Only instructions of Armv8.0 are used.

mod arithmetic;
mod encode;
mod memory;

use super::Isa;
use crate::insn::{AluOp, Callee, Condition, Extension, Instruction, Operand, Register, Wide, Width};
use crate::interp::FRAME;
use crate::jit::buffer::{Buffer, Gap, Mark};
use crate::jit::frame::{Frame, KEPT};
use crate::jit::lines::Lines;
use crate::jit::unwinding::{Frames, Step};
use crate::jit::{Bounds, Check, CompileError, Outside, Surroundings, Then};
use crate::verify::{Guard, Side};
use encode::{ADDRESS, Access, Bits, FAR, FP, Flag, Kind, LR, Logic, Native, SP, Sum, Three, ZERO};

/// The compiler for AArch64.
pub(in crate::jit) struct Aarch64;

const RESULT: Native = Native(0);
const SECOND_RESULT: Native = Native(1);
const SIXTH_ARGUMENT: Native = Native(5);
/// Where the gauge is.
const GAUGE: Native = Native(24);
const SCRATCH: [Native; 4] = [Native(9), Native(10), Native(11), Native(12)];

const fn native(register: Register) -> Native {
    match register {
        Register::R0 => Native(7),
        Register::R1 => Native(0),
        Register::R2 => Native(1),
        Register::R3 => Native(2),
        Register::R4 => Native(3),
        Register::R5 => Native(4),
        Register::R6 => Native(19),
        Register::R7 => Native(20),
        Register::R8 => Native(21),
        Register::R9 => Native(22),
        Register::R10 => Native(23),
    }
}

const fn bits(width: Width) -> Bits {
    match width {
        Width::W32 => Bits::B32,
        Width::W64 => Bits::B64,
    }
}

/// Bytes below the program's frame for the count of loops and the address of the context.
const COUNT: usize = 16;
/// Where they are, above the stack pointer.
const COUNT_AT: i32 = 0;
const CONTEXT_AT: i32 = 8;
/// How often a function passes its `may_goto`s before it leaves its loops.
const ROUNDS: u64 = 0xffff;

/// Pairs of registers that a function keeps for its caller.
fn pairs(frame: &Frame) -> impl DoubleEndedIterator<Item = (Native, Native)> {
    let has = |register| frame.used.has(register);
    let links = (frame.calls).then_some((FP, LR));
    let low = (has(KEPT[0]) || has(KEPT[1])).then_some((native(KEPT[0]), native(KEPT[1])));
    let high = (has(KEPT[2]) || has(KEPT[3])).then_some((native(KEPT[2]), native(KEPT[3])));
    let end = if frame.begins_gauge() {
        Some((native(Register::R10), GAUGE))
    } else {
        frame.used.has(Register::R10).then_some((native(Register::R10), ZERO))
    };
    [links, low, high, end].into_iter().flatten()
}

fn room(frame: &Frame) -> u64 {
    let memory = if frame.used.has(Register::R10) { FRAME } else { 0 };
    (memory + if frame.counts || frame.keeps_context() { COUNT } else { 0 }) as u64
}

impl Isa for Aarch64 {
    const LITERALS: super::Place = super::Place::Inside;
    const REACH: usize = encode::REACH;
    // The numbers of the ABI (aadwarf64, section 4.1); the return address is in `x30`.
    const FRAMES: Frames = Frames { stack_pointer: 31, return_address: 30, on_entry: 0 };
    // Not measured on any CPU.
    const LINES: Option<Lines> = None;

    fn prologue(buffer: &mut Buffer, frame: &Frame) {
        if frame.is_called_through_registers() {
            encode::landing_pad(buffer);
        }
        for (first, second) in pairs(frame) {
            keep(buffer, first, second);
            if first == FP {
                encode::add_immediate(buffer, Bits::B64, Sum::Add, FP, SP, 0);
            }
        }
        if frame.used.has(Register::R10) {
            encode::add_immediate(buffer, Bits::B64, Sum::Add, native(Register::R10), SP, 0);
        }
        if room(frame) != 0 {
            encode::add_immediate(buffer, Bits::B64, Sum::Sub, SP, SP, room(frame));
            buffer.step(Step::Grown(room(frame) as i32));
        }
        if frame.counts {
            encode::mov_immediate(buffer, Bits::B64, SCRATCH[0], ROUNDS);
            encode::access(buffer, Access { log: 2, kind: Kind::Store }, SCRATCH[0], SP, COUNT_AT, SCRATCH[1]);
        }
        if frame.keeps_context() {
            let store = Access { log: 3, kind: Kind::Store };
            encode::access(buffer, store, native(Register::R1), SP, CONTEXT_AT, SCRATCH[1]);
        }
        if frame.begins_gauge() {
            encode::mov(buffer, Bits::B64, GAUGE, SIXTH_ARGUMENT);
        }
        if frame.function == 0 {
            // The result is always set, so that nothing of the host's leaks.
            for register in [Register::R0].into_iter().chain(KEPT.into_iter().filter(|kept| frame.used.has(*kept))) {
                encode::mov_immediate(buffer, Bits::B64, native(register), 0);
            }
            clear(buffer, frame.cleared());
        }
    }

    // In the one loop that calls it.
    #[inline(always)]
    fn instruction(buffer: &mut Buffer, surroundings: &Surroundings<'_>) -> Result<(), CompileError> {
        match surroundings.code.instructions()[surroundings.index] {
            Instruction::Alu { width, op, dst, operand } => {
                let operand = operand_of(buffer, surroundings, op, operand);
                match surroundings.guard() {
                    Some(Guard::Mask { most, number }) => {
                        masked_sum(buffer, surroundings, (op, native(dst), operand), (most, number));
                    }
                    Some(_) => {
                        encode::speculation_barrier(buffer);
                        arithmetic::alu(buffer, bits(width), op, native(dst), operand);
                    }
                    None => arithmetic::alu(buffer, bits(width), op, native(dst), operand),
                }
            }
            Instruction::Negate { width, dst } => {
                encode::three(buffer, bits(width), Three::Sub, native(dst), ZERO, native(dst));
            }
            Instruction::MoveSigned { width, from, dst, src } => {
                let (dst, src) = (native(dst), native(src));
                encode::bit_field(buffer, bits(width), encode::Field::Signed, dst, src, 0, from.bits() - 1);
            }
            Instruction::Swap { order, size, dst } => arithmetic::swap(buffer, order, size, native(dst)),
            Instruction::LoadWide { dst, value: Wide::Function(distance) } => {
                encode::address(buffer, native(dst), SCRATCH[0], surroundings.entry(distance));
            }
            Instruction::LoadWide { dst, value } => {
                let value = surroundings.resolved(value).ok_or_else(|| surroundings.unsupported())?;
                if surroundings.key().is_some() {
                    blinded(buffer, surroundings, native(dst), value);
                } else {
                    encode::mov_immediate(buffer, Bits::B64, native(dst), value);
                }
            }
            Instruction::Load { size, extension, dst, base, offset } => {
                let kind = match (extension, size) {
                    (Extension::Sign, size) if size.bytes() < 8 => Kind::LoadSigned,
                    _ => Kind::Load,
                };
                let access = Access { log: memory::log(size), kind };
                if surroundings.is_probe() {
                    memory::probe(buffer, access, native(dst), native(base), offset);
                } else {
                    encode::access(buffer, access, native(dst), native(base), offset.into(), SCRATCH[0]);
                }
            }
            Instruction::Store { size, base, offset, value } => {
                if let Some(check) = surroundings.check() {
                    check_store(buffer, surroundings, check, (native(base), offset, size.bytes()));
                }
                let value = constant_of(buffer, surroundings, value);
                memory::store(buffer, size, native(base), offset, value);
                if surroundings.guard().is_some() {
                    encode::speculation_barrier(buffer);
                }
            }
            Instruction::LoadAcquire { size, dst, base, offset } => {
                memory::load_acquire(buffer, size, native(dst), native(base), offset);
            }
            Instruction::StoreRelease { size, base, offset, src } => {
                memory::store_release(buffer, size, native(src), native(base), offset);
                if surroundings.guard().is_some() {
                    encode::speculation_barrier(buffer);
                }
            }
            Instruction::Atomic { op, width, base, offset, src } => {
                memory::atomic(buffer, op, width, native(base), offset, native(src));
            }
            Instruction::Jump { offset, .. } if surroundings.pays() => pay(buffer, surroundings, offset),
            Instruction::Jump { offset, .. } => encode::jump(buffer, surroundings.jump(offset)),
            Instruction::Branch { width, condition, dst, operand, offset } => {
                let operand = constant_of(buffer, surroundings, operand);
                compare(buffer, bits(width), condition, native(dst), operand);
                if is_plain(surroundings) {
                    encode::jump_if(buffer, flag(condition), surroundings.jump(offset.into()));
                } else {
                    let goes_on = encode::hole_unless(buffer, flag(condition));
                    take(buffer, surroundings, offset, goes_on);
                }
            }
            Instruction::MayGoto { offset } => {
                let [count, scratch, ..] = SCRATCH;
                encode::access(buffer, Access { log: 2, kind: Kind::Load }, count, SP, COUNT_AT, scratch);
                if is_plain(surroundings) {
                    encode::jump_if_zero(buffer, count, surroundings.jump(offset.into()));
                } else {
                    let goes_on = encode::hole_unless_zero_word(buffer, count);
                    take(buffer, surroundings, offset, goes_on);
                }
                encode::add_immediate(buffer, Bits::B32, Sum::Sub, count, count, 1);
                encode::access(buffer, Access { log: 2, kind: Kind::Store }, count, SP, COUNT_AT, scratch);
            }
            Instruction::Call(callee) => {
                call(buffer, surroundings, callee)?;
                clear(buffer, surroundings.frame.cleared());
                if surroundings.guard().is_some() {
                    encode::speculation_barrier(buffer);
                }
            }
            Instruction::Exit => exit(buffer, &surroundings.frame),
            Instruction::Packet { .. } | Instruction::Cast { .. } => {
                return Err(surroundings.unsupported());
            }
        }
        Ok(())
    }

    fn leave(buffer: &mut Buffer, frame: &Frame) {
        exit(buffer, frame);
    }

    fn entry(buffer: &mut Buffer, function: Mark, frame: &Frame) {
        encode::landing_pad(buffer);
        keep(buffer, FP, LR);
        encode::add_immediate(buffer, Bits::B64, Sum::Add, FP, SP, 0);
        keep(buffer, GAUGE, ZERO);
        encode::mov(buffer, Bits::B64, GAUGE, native(Register::R5));
        if frame.cleared().contains(&Register::R5) {
            clear(buffer, &[Register::R5]);
        }
        // The function moves its result to where helpers expect it.
        encode::call(buffer, function);
        encode::mov(buffer, Bits::B64, SECOND_RESULT, GAUGE);
        buffer.step(Step::Leaves);
        give_back(buffer, GAUGE, ZERO);
        give_back(buffer, FP, LR);
        encode::ret(buffer);
        buffer.step(Step::Left);
    }

    fn patch(code: &mut [u8], gap: Gap, place: usize) {
        if gap.form == ADDRESS {
            return encode::fill_address(code, gap.at as usize, place);
        }
        let words = (place as i64 - i64::from(gap.at)) / 4;
        let field = if gap.form == FAR { words as u32 & 0x3ff_ffff } else { (words as u32 & 0x7_ffff) << 5 };
        if let Some(bytes) = code.get_mut(gap.at as usize..).and_then(|rest| rest.first_chunk_mut()) {
            *bytes = (u32::from_le_bytes(*bytes) | field).to_le_bytes();
        }
    }
}

const fn flag(condition: Condition) -> Flag {
    match condition {
        Condition::Equal => Flag::Equal,
        Condition::NotEqual | Condition::Common => Flag::NotEqual,
        Condition::Greater => Flag::Above,
        Condition::GreaterEqual => Flag::AboveEqual,
        Condition::Less => Flag::Below,
        Condition::LessEqual => Flag::BelowEqual,
        Condition::SignedGreater => Flag::Greater,
        Condition::SignedGreaterEqual => Flag::GreaterEqual,
        Condition::SignedLess => Flag::Less,
        Condition::SignedLessEqual => Flag::LessEqual,
    }
}

/// Returns a constant extended for an operation of these bits.
const fn extended(bits: Bits, value: i32) -> u64 {
    match bits {
        Bits::B32 => value as u32 as u64,
        Bits::B64 => value as i64 as u64,
    }
}

/// A second operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Register(Native),
    Immediate(i32),
}

/// Puts `value` into `dst` so that it appears nowhere in the code.
fn blinded(buffer: &mut Buffer, surroundings: &Surroundings<'_>, dst: Native, value: u64) {
    let (key, other) = (surroundings.key().unwrap_or_default(), SCRATCH[3]);
    encode::mov_immediate(buffer, Bits::B64, dst, value ^ key);
    encode::mov_immediate(buffer, Bits::B64, other, key);
    encode::three(buffer, Bits::B64, Three::Xor, dst, dst, other);
}

/// A second operand, in a register of its own if it is a blinded constant.
fn constant_of(buffer: &mut Buffer, surroundings: &Surroundings<'_>, operand: Operand) -> Source {
    match operand {
        Operand::Register(register) => Source::Register(native(register)),
        Operand::Immediate(value) if surroundings.key().is_some() => {
            blinded(buffer, surroundings, SCRATCH[2], value as u64);
            Source::Register(SCRATCH[2])
        }
        Operand::Immediate(value) => Source::Immediate(value),
    }
}

/// The same for an operation; shifts, whose constants are small, are not blinded.
fn operand_of(buffer: &mut Buffer, surroundings: &Surroundings<'_>, op: AluOp, operand: Operand) -> Source {
    match (op, operand) {
        (AluOp::ShiftLeft | AluOp::ShiftRight | AluOp::ShiftRightSigned, Operand::Immediate(by)) => {
            Source::Immediate(by & 63)
        }
        _ => constant_of(buffer, surroundings, operand),
    }
}

/// A sum of an address and a number, or their difference; even in speculation the number is at most `most`.
fn masked_sum(
    buffer: &mut Buffer,
    surroundings: &Surroundings<'_>,
    (op, dst, operand): (AluOp, Native, Source),
    (most, side): (u32, Side),
) {
    let Source::Register(src) = operand else { return arithmetic::alu(buffer, Bits::B64, op, dst, operand) };
    let [end, masked, ..] = SCRATCH;
    let number = if side == Side::Left { dst } else { src };
    blinded(buffer, surroundings, end, u64::from(most) + 1);
    encode::mask_below(buffer, masked, number, end);
    if side == Side::Left {
        encode::mov(buffer, Bits::B64, dst, masked);
        arithmetic::alu(buffer, Bits::B64, op, dst, Source::Register(src));
    } else {
        arithmetic::alu(buffer, Bits::B64, op, dst, Source::Register(masked));
    }
}

/// Whether a branch is just a jump.
fn is_plain(surroundings: &Surroundings<'_>) -> bool {
    !surroundings.pays() && surroundings.guard().is_none()
}

/// The jump of a branch; `goes_on` leads behind it.
fn take(buffer: &mut Buffer, surroundings: &Surroundings<'_>, offset: i16, goes_on: usize) {
    let is_guarded = surroundings.guard().is_some();
    if is_guarded {
        encode::speculation_barrier(buffer);
    }
    if surroundings.pays() {
        pay(buffer, surroundings, offset.into());
    } else {
        encode::jump(buffer, surroundings.jump(offset.into()));
    }
    encode::end_hole(buffer, goes_on);
    if is_guarded {
        encode::speculation_barrier(buffer);
    }
}

/// Sets the flags by two operands.
fn compare(buffer: &mut Buffer, bits: Bits, condition: Condition, left: Native, right: Source) {
    let is_test = condition == Condition::Common;
    let op = if is_test { Three::Ands } else { Three::Subs };
    let right = match right {
        Source::Register(right) => right,
        Source::Immediate(value) => {
            let done = if is_test {
                encode::logic_immediate(buffer, bits, Logic::Ands, ZERO, left, extended(bits, value))
            } else if value < 0 {
                // A comparison with a negative number is an addition.
                encode::add_immediate(buffer, bits, Sum::Adds, ZERO, left, value.unsigned_abs().into())
            } else {
                encode::add_immediate(buffer, bits, Sum::Subs, ZERO, left, value as u64)
            };
            if done {
                return;
            }
            encode::mov_immediate(buffer, bits, SCRATCH[0], extended(bits, value));
            SCRATCH[0]
        }
    };
    encode::three(buffer, bits, op, ZERO, left, right);
}

/// Jumps back if there is fuel for it, and otherwise ends the program.
fn pay(buffer: &mut Buffer, surroundings: &Surroundings<'_>, offset: i32) {
    encode::add_immediate(buffer, Bits::B64, Sum::Subs, GAUGE, GAUGE, 1);
    encode::jump_if(buffer, Flag::Plus, surroundings.jump(offset));
    encode::jump(buffer, surroundings.leave());
}

/// Ends the program if a store of `size` bytes at `base + offset` is out of bounds. Uses two scratch registers.
#[cold]
fn check_store(
    buffer: &mut Buffer,
    surroundings: &Surroundings<'_>,
    check: Check,
    (base, offset, size): (Native, i16, usize),
) {
    let Check { bounds, ended } = check;
    let [distance, other, ..] = SCRATCH;
    let inside = bounds.last(size).map(|last| {
        let address = memory::address(buffer, base, offset);
        match bounds {
            Bounds::Fixed { start, .. } => encode::mov_immediate(buffer, Bits::B64, other, start),
            Bounds::Context { .. } => {
                encode::access(buffer, Access { log: 3, kind: Kind::Load }, other, SP, CONTEXT_AT, other);
            }
        }
        encode::three(buffer, Bits::B64, Three::Sub, distance, address, other);
        if !encode::add_immediate(buffer, Bits::B64, Sum::Subs, ZERO, distance, last) {
            encode::mov_immediate(buffer, Bits::B64, other, last);
            encode::three(buffer, Bits::B64, Three::Subs, ZERO, distance, other);
        }
        encode::hole_if(buffer, Flag::BelowEqual)
    });
    encode::mov_immediate(buffer, Bits::B64, GAUGE, ended as u64);
    encode::jump(buffer, surroundings.leave());
    if let Some(inside) = inside {
        encode::end_hole(buffer, inside);
    }
}

/// Leaves if the program was ended.
fn leave_if_ended(buffer: &mut Buffer, surroundings: &Surroundings<'_>) {
    encode::three(buffer, Bits::B64, Three::Ands, ZERO, GAUGE, GAUGE);
    encode::jump_if(buffer, Flag::Minus, surroundings.leave());
}

fn clear(buffer: &mut Buffer, registers: &[Register]) {
    for register in registers {
        encode::mov_immediate(buffer, Bits::B64, native(*register), 0);
    }
}

fn call(buffer: &mut Buffer, surroundings: &Surroundings<'_>, callee: Callee) -> Result<(), CompileError> {
    let who = match callee {
        Callee::Local(distance) => {
            encode::call(buffer, surroundings.function(distance));
            if surroundings.has_gauge() {
                leave_if_ended(buffer, surroundings);
            }
            return Ok(());
        }
        Callee::Helper(id) => {
            if let Some(array) = surroundings.lookup() {
                memory::look_up(buffer, array);
                return Ok(());
            }
            Outside::Helper(id)
        }
        Callee::Register(register) => {
            encode::mov(buffer, Bits::B64, SIXTH_ARGUMENT, native(register));
            Outside::Dispatcher
        }
        Callee::Kernel { id, .. } => Outside::Function(id),
    };
    let called = surroundings.literals.called(who);
    if called.then == Then::Calls {
        encode::mov(buffer, Bits::B64, native(Register::R5), GAUGE);
    }
    if let Some(data) = called.data {
        encode::mov_immediate(buffer, Bits::B64, SIXTH_ARGUMENT, data);
    }
    encode::mov_immediate(buffer, Bits::B64, SCRATCH[0], called.function);
    encode::call_register(buffer, SCRATCH[0]);
    encode::mov(buffer, Bits::B64, native(Register::R0), RESULT);
    match called.then {
        Then::GoOn => {}
        Then::Calls => {
            encode::mov(buffer, Bits::B64, GAUGE, SECOND_RESULT);
            leave_if_ended(buffer, surroundings);
        }
        _ => {
            encode::three(buffer, Bits::B64, Three::Or, GAUGE, GAUGE, SECOND_RESULT);
            leave_if_ended(buffer, surroundings);
        }
    }
    if called.then == Then::LeaveUnlessZero {
        let goes_on = encode::hole_if_zero(buffer, native(Register::R0));
        exit(buffer, &surroundings.frame);
        encode::end_hole(buffer, goes_on);
    }
    Ok(())
}

fn exit(buffer: &mut Buffer, frame: &Frame) {
    if !buffer.begin_leave() {
        return encode::jump(buffer, Mark::Leave(frame.function));
    }
    buffer.step(Step::Leaves);
    if room(frame) != 0 {
        encode::add_immediate(buffer, Bits::B64, Sum::Add, SP, SP, room(frame));
        buffer.step(Step::Grown(-(room(frame) as i32)));
    }
    if frame.begins_gauge() {
        encode::mov(buffer, Bits::B64, SECOND_RESULT, GAUGE);
    }
    for (first, second) in pairs(frame).rev() {
        give_back(buffer, first, second);
    }
    if frame.function == 0 || frame.is_named {
        encode::mov(buffer, Bits::B64, RESULT, native(Register::R0));
    }
    encode::ret(buffer);
    buffer.step(Step::Left);
}

/// Pushes two registers of the caller's.
fn keep(buffer: &mut Buffer, first: Native, second: Native) {
    encode::push_pair(buffer, first, second);
    buffer.step(Step::Grown(16));
    for (register, above) in [(first, 0), (second, 8)].into_iter().filter(|(register, _)| *register != ZERO) {
        buffer.step(Step::Kept { register: register.0, above });
    }
}

/// Pops them.
fn give_back(buffer: &mut Buffer, first: Native, second: Native) {
    encode::pop_pair(buffer, first, second);
    buffer.step(Step::Grown(-16));
    for register in [first, second].into_iter().filter(|register| *register != ZERO) {
        buffer.step(Step::GivenBack { register: register.0 });
    }
}
