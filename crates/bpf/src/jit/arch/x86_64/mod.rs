//! x86-64.
//!
//! | eBPF | register | |
//! |---|---|---|
//! | `r0` | `rax` | result |
//! | `r1` to `r5` | `rdi`, `rsi`, `rdx`, `rcx`, `r8` | where the System V calling convention has arguments |
//! | `r6` to `r9` | `rbx`, `r13`, `r14`, `r15` | kept by calls |
//! | `r10` | `rbp` | end of the frame |
//! | – | `r12` | the gauge ([`Gauge`](crate::jit::Gauge)), where there is one |
//!
//! `r9`, `r10` and `r11` hold what one instruction needs. A function's frame, downwards from `rbp`: 512 bytes for the
//! program, 16 for the count of loops and for the address of the context if there are any, and the registers that it
//! keeps for its caller.

mod arithmetic;
mod encode;
mod memory;
mod simple;

use super::Isa;
use crate::insn::{AluOp, Callee, Condition, Instruction, Operand, Register, Wide, Width};
use crate::interp::FRAME;
use crate::jit::buffer::{Buffer, Gap, Mark};
use crate::jit::frame::{Frame, KEPT};
use crate::jit::lines::Lines;
use crate::jit::unwinding::{Frames, Step};
use crate::jit::{Bounds, Check, CompileError, Outside, Surroundings, Then};
use crate::verify::{Guard, Side};
use encode::{Bits, FAR, Flag, Group, Native, Place};

/// The compiler for x86-64.
pub(in crate::jit) struct X86_64;

const fn native(register: Register) -> Native {
    match register {
        Register::R0 => encode::RAX,
        Register::R1 => encode::RDI,
        Register::R2 => encode::RSI,
        Register::R3 => encode::RDX,
        Register::R4 => encode::RCX,
        Register::R5 => encode::R8,
        Register::R6 => encode::RBX,
        Register::R7 => encode::R13,
        Register::R8 => encode::R14,
        Register::R9 => encode::R15,
        Register::R10 => encode::RBP,
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
/// How often a function passes its `may_goto`s before it leaves its loops.
const ROUNDS: i32 = 0xffff;

/// Where the gauge is.
const GAUGE: Native = encode::R12;

/// Where the count of loops is.
const fn count() -> Place {
    Place { base: encode::RBP, offset: -(FRAME as i32) - 8 }
}

/// Where the address of the context is.
const fn context() -> Place {
    Place { base: encode::RBP, offset: -(FRAME as i32) - 16 }
}

/// The registers that a function must keep for its caller, in the order in which they are pushed.
fn kept(frame: &Frame) -> impl DoubleEndedIterator<Item = Native> + '_ {
    let gauge = frame.begins_gauge().then_some(GAUGE);
    gauge.into_iter().chain(KEPT.into_iter().filter(|register| frame.used.has(*register)).map(native))
}

/// Returns the bytes between `rbp` and the kept registers: as many as align the stack to 16 where calls are made, as
/// the calling convention wants.
fn room(frame: &Frame) -> usize {
    let memory = if frame.has_memory() { FRAME } else { 0 };
    let count = if frame.counts || frame.keeps_context() { COUNT } else { 0 };
    let odd = if kept(frame).count() % 2 == 1 { 8 } else { 0 };
    memory + count + odd
}

/// Whether a function needs `rbp`.
const fn has_frame(frame: &Frame) -> bool {
    frame.has_memory() || frame.calls
}

impl Isa for X86_64 {
    const LITERALS: super::Place = super::Place::BehindTheCode;
    // The short form of a jump is chosen once all places are known.
    const REACH: usize = usize::MAX;
    // The numbers of the psABI, figure 3.36; the return address is on the stack.
    const FRAMES: Frames = Frames { stack_pointer: 7, return_address: 16, on_entry: 8 };
    const LINES: Option<Lines> = Some(Lines { len: 64, idle: encode::idle });

    fn prologue(buffer: &mut Buffer, frame: &Frame) {
        if frame.is_called_through_registers() {
            encode::landing_pad(buffer);
        }
        if has_frame(frame) {
            keep(buffer, encode::RBP);
            encode::mov(buffer, Bits::B64, encode::RBP, encode::RSP);
            if room(frame) != 0 {
                encode::group_immediate(buffer, Bits::B64, Group::Sub, encode::RSP, room(frame) as i32);
                buffer.step(Step::Grown(room(frame) as i32));
            }
        }
        for register in kept(frame) {
            keep(buffer, register);
        }
        if frame.counts {
            encode::store_immediate(buffer, Bits::B32, count(), ROUNDS);
        }
        if frame.keeps_context() {
            encode::rm(buffer, Bits::B64, 0x89, native(Register::R1), context());
        }
        if frame.begins_gauge() {
            // The sixth argument.
            encode::mov(buffer, Bits::B64, GAUGE, encode::R9);
        }
        if frame.function == 0 {
            for register in [Register::R0].into_iter().chain(KEPT).filter(|register| frame.used.has(*register)) {
                encode::mov_immediate(buffer, native(register), 0);
            }
            clear(buffer, frame.cleared());
        }
    }

    // In the one loop that calls it.
    #[inline(always)]
    fn instruction(buffer: &mut Buffer, surroundings: &Surroundings<'_>) -> Result<(), CompileError> {
        match surroundings.code.instructions()[surroundings.index] {
            Instruction::Alu { width, op, dst, operand }
                if surroundings.is_plain() && simple::alu(buffer, bits(width), op, dst, operand) => {}
            Instruction::Alu { width, op, dst, operand } => {
                let operand = operand_of(buffer, surroundings, op, operand);
                match surroundings.guard() {
                    Some(Guard::Mask { most, number }) => {
                        masked_sum(buffer, surroundings, (op, native(dst), operand), (most, number));
                    }
                    Some(_) => {
                        encode::barrier(buffer);
                        arithmetic::alu(buffer, bits(width), op, native(dst), operand);
                    }
                    None => arithmetic::alu(buffer, bits(width), op, native(dst), operand),
                }
            }
            Instruction::Negate { width, dst } => encode::r(buffer, bits(width), 0xf7, 3, native(dst)),
            Instruction::MoveSigned { width, from, dst, src } => {
                arithmetic::move_signed(buffer, bits(width), from, native(dst), native(src));
            }
            Instruction::Swap { order, size, dst } => arithmetic::swap(buffer, order, size, native(dst)),
            Instruction::LoadWide { dst, value: Wide::Function(distance) } => {
                encode::address(buffer, native(dst), surroundings.entry(distance));
            }
            Instruction::LoadWide { dst, value } => {
                let value = surroundings.resolved(value).ok_or_else(|| surroundings.unsupported())?;
                if surroundings.key().is_some() {
                    blinded(buffer, surroundings, native(dst), value);
                } else {
                    encode::mov_immediate(buffer, native(dst), value);
                }
            }
            Instruction::Load { size, extension, dst, base, offset } if surroundings.is_probe() => {
                memory::probe(buffer, size, extension, native(dst), place(base, offset));
            }
            Instruction::Load { size, extension, dst, base, offset } => {
                memory::load(buffer, size, extension, native(dst), place(base, offset));
            }
            // Loads and stores are not reordered with any that would matter (Intel SDM, volume 3, section 10.2.2).
            Instruction::LoadAcquire { size, dst, base, offset } => {
                memory::load(buffer, size, crate::insn::Extension::Zero, native(dst), place(base, offset));
            }
            Instruction::Store { size, base, offset, value } => {
                if let Some(check) = surroundings.check() {
                    check_store(buffer, surroundings, check, (place(base, offset), size.bytes()));
                }
                let value = constant_of(buffer, surroundings, value);
                memory::store(buffer, size, place(base, offset), value);
                if surroundings.guard().is_some() {
                    encode::barrier(buffer);
                }
            }
            Instruction::StoreRelease { size, base, offset, src } => {
                memory::store(buffer, size, place(base, offset), Source::Register(native(src)));
                if surroundings.guard().is_some() {
                    encode::barrier(buffer);
                }
            }
            Instruction::Atomic { op, width, base, offset, src } => {
                memory::atomic(buffer, op, bits(width), place(base, offset), native(src));
            }
            Instruction::Jump { offset, .. } if surroundings.pays() => pay(buffer, surroundings, offset),
            Instruction::Jump { offset, .. } => encode::jump(buffer, surroundings.jump(offset)),
            Instruction::Branch { width, condition, dst, operand, offset } => {
                if !(surroundings.is_plain() && simple::compare(buffer, bits(width), condition, dst, operand)) {
                    let operand = constant_of(buffer, surroundings, operand);
                    compare(buffer, bits(width), condition, native(dst), operand);
                }
                branch(buffer, surroundings, flag(condition), offset);
            }
            Instruction::MayGoto { offset } => {
                encode::group_memory(buffer, Bits::B32, Group::Compare, count(), 0);
                branch(buffer, surroundings, Flag::Equal, offset);
                encode::group_memory(buffer, Bits::B32, Group::Sub, count(), 1);
            }
            Instruction::Call(callee) => {
                call(buffer, surroundings, callee)?;
                clear(buffer, surroundings.frame.cleared());
                if surroundings.guard().is_some() {
                    encode::barrier(buffer);
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
        keep(buffer, GAUGE);
        encode::mov(buffer, Bits::B64, GAUGE, native(Register::R5));
        if frame.cleared().contains(&Register::R5) {
            clear(buffer, &[Register::R5]);
        }
        encode::call(buffer, function);
        encode::mov(buffer, Bits::B64, encode::RDX, GAUGE);
        give_back(buffer, GAUGE);
        // ret
        buffer.push(&[0xc3]);
    }

    fn patch(code: &mut [u8], gap: Gap, place: usize) {
        let at = gap.at as usize;
        let distance = place as i64 - (at + usize::from(gap.form)) as i64;
        if gap.form == FAR {
            code[at..at + 4].copy_from_slice(&(distance as i32).to_le_bytes());
        } else {
            code[at] = distance as i8 as u8;
        }
    }
}

const fn place(base: Register, offset: i16) -> Place {
    Place { base: native(base), offset: offset as i32 }
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

/// Sets the flags by two operands.
fn compare(buffer: &mut Buffer, bits: Bits, condition: Condition, left: Native, right: Source) {
    match (condition, right) {
        (Condition::Common, Source::Register(right)) => encode::rr(buffer, bits, 0x85, right, left),
        (Condition::Common, Source::Immediate(value)) => encode::ri32(buffer, bits, 0xf7, 0, left, value),
        (_, Source::Register(right)) => encode::rr(buffer, bits, Group::Compare.opcode(), right, left),
        // Shorter, with the same flags as a comparison with 0.
        (_, Source::Immediate(0)) => encode::rr(buffer, bits, 0x85, left, left),
        (_, Source::Immediate(value)) => encode::group_immediate(buffer, bits, Group::Compare, left, value),
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
    let key = surroundings.key().unwrap_or_default();
    // Not the register of an instruction's constant.
    let other = if dst == encode::R10 { encode::R11 } else { encode::R10 };
    encode::mov_immediate(buffer, dst, value ^ key);
    encode::mov_immediate(buffer, other, key);
    encode::rr(buffer, Bits::B64, Group::Xor.opcode(), other, dst);
}

/// A second operand, in `r10` if it is a blinded constant.
fn constant_of(buffer: &mut Buffer, surroundings: &Surroundings<'_>, operand: Operand) -> Source {
    match operand {
        Operand::Register(register) => Source::Register(native(register)),
        Operand::Immediate(value) if surroundings.key().is_some() => {
            blinded(buffer, surroundings, encode::R10, value as u64);
            Source::Register(encode::R10)
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
    let number = if side == Side::Left { dst } else { src };
    let mask = encode::R11;
    // mov mask, most + 1; cmp number, mask; sbb mask, mask; and mask, number
    blinded(buffer, surroundings, mask, u64::from(most) + 1);
    encode::rr(buffer, Bits::B64, Group::Compare.opcode(), mask, number);
    encode::rr(buffer, Bits::B64, 0x19, mask, mask);
    encode::rr(buffer, Bits::B64, Group::And.opcode(), number, mask);
    if side == Side::Left {
        encode::mov(buffer, Bits::B64, dst, mask);
        arithmetic::alu(buffer, Bits::B64, op, dst, Source::Register(src));
    } else {
        arithmetic::alu(buffer, Bits::B64, op, dst, Source::Register(mask));
    }
}

/// Jumps if the flag is set.
fn branch(buffer: &mut Buffer, surroundings: &Surroundings<'_>, flag: Flag, offset: i16) {
    let is_guarded = surroundings.guard().is_some();
    if !surroundings.pays() && !is_guarded {
        return encode::jump_if(buffer, flag, surroundings.jump(offset.into()));
    }
    let goes_on = encode::hole_if(buffer, flag.opposite());
    if is_guarded {
        encode::barrier(buffer);
    }
    if surroundings.pays() {
        pay(buffer, surroundings, offset.into());
    } else {
        encode::jump(buffer, surroundings.jump(offset.into()));
    }
    goes_on.ends_here(buffer);
    if is_guarded {
        encode::barrier(buffer);
    }
}

/// Jumps back if there is fuel for it, and otherwise ends the program.
fn pay(buffer: &mut Buffer, surroundings: &Surroundings<'_>, offset: i32) {
    encode::group_immediate(buffer, Bits::B64, Group::Sub, GAUGE, 1);
    encode::jump_if(buffer, Flag::NotSign, surroundings.jump(offset));
    encode::jump(buffer, surroundings.leave());
}

/// Ends the program if a store of `size` bytes at `to` is out of bounds. Uses `r10` and `r11`.
#[cold]
fn check_store(buffer: &mut Buffer, surroundings: &Surroundings<'_>, check: Check, (to, size): (Place, usize)) {
    let Check { bounds, ended } = check;
    let inside = bounds.last(size).map(|last| {
        // lea
        encode::rm(buffer, Bits::B64, 0x8d, encode::R11, to);
        match bounds {
            Bounds::Fixed { start, .. } => encode::mov_immediate(buffer, encode::R10, start),
            Bounds::Context { .. } => encode::rm(buffer, Bits::B64, 0x8b, encode::R10, context()),
        }
        encode::rr(buffer, Bits::B64, Group::Sub.opcode(), encode::R10, encode::R11);
        if let Ok(last) = last.try_into() {
            encode::group_immediate(buffer, Bits::B64, Group::Compare, encode::R11, last);
        } else {
            encode::mov_immediate(buffer, encode::R10, last);
            encode::rr(buffer, Bits::B64, Group::Compare.opcode(), encode::R10, encode::R11);
        }
        encode::hole_if(buffer, Flag::BelowEqual)
    });
    encode::mov_immediate(buffer, GAUGE, ended as u64);
    encode::jump(buffer, surroundings.leave());
    if let Some(inside) = inside {
        inside.ends_here(buffer);
    }
}

/// Leaves if the program was ended.
fn leave_if_ended(buffer: &mut Buffer, surroundings: &Surroundings<'_>) {
    encode::rr(buffer, Bits::B64, 0x85, GAUGE, GAUGE);
    encode::jump_if(buffer, Flag::Sign, surroundings.leave());
}

fn clear(buffer: &mut Buffer, registers: &[Register]) {
    for register in registers {
        encode::mov_immediate(buffer, native(*register), 0);
    }
}

fn call(buffer: &mut Buffer, surroundings: &Surroundings<'_>, callee: Callee) -> Result<(), CompileError> {
    match callee {
        Callee::Local(distance) => {
            encode::call(buffer, surroundings.function(distance));
            if surroundings.has_gauge() {
                leave_if_ended(buffer, surroundings);
            }
        }
        Callee::Helper(_) | Callee::Kernel { .. } => {
            if let (Callee::Helper(_), Some(array)) = (callee, surroundings.lookup()) {
                memory::look_up(buffer, array);
                return Ok(());
            }
            let who = match callee {
                Callee::Kernel { id, .. } => Outside::Function(id),
                Callee::Helper(id) | Callee::Local(id) => Outside::Helper(id),
                Callee::Register(_) => Outside::Dispatcher,
            };
            let called = surroundings.literals.called(who);
            if called.then == Then::Calls {
                encode::mov(buffer, Bits::B64, native(Register::R5), GAUGE);
            }
            if let Some(data) = called.data {
                // The sixth argument.
                encode::mov_immediate(buffer, encode::R9, data);
            }
            encode::call_through(buffer, surroundings.literals.mark(who));
            match called.then {
                Then::GoOn => {}
                Then::Calls => {
                    encode::mov(buffer, Bits::B64, GAUGE, encode::RDX);
                    leave_if_ended(buffer, surroundings);
                }
                _ => {
                    encode::rr(buffer, Bits::B64, Group::Or.opcode(), encode::RDX, GAUGE);
                    encode::jump_if(buffer, Flag::Sign, surroundings.leave());
                }
            }
            if called.then == Then::LeaveUnlessZero {
                encode::rr(buffer, Bits::B64, 0x85, encode::RAX, encode::RAX);
                let goes_on = encode::hole_if(buffer, Flag::Equal);
                exit(buffer, &surroundings.frame);
                goes_on.ends_here(buffer);
            }
        }
        Callee::Register(register) => {
            // The sixth argument.
            encode::mov(buffer, Bits::B64, encode::R9, native(register));
            encode::call_through(buffer, surroundings.literals.mark(Outside::Dispatcher));
        }
    }
    Ok(())
}

fn exit(buffer: &mut Buffer, frame: &Frame) {
    if !buffer.begin_leave() {
        return encode::jump(buffer, Mark::Leave(frame.function));
    }
    if frame.begins_gauge() {
        encode::mov(buffer, Bits::B64, encode::RDX, GAUGE);
    }
    buffer.step(Step::Leaves);
    for register in kept(frame).rev() {
        give_back(buffer, register);
    }
    if has_frame(frame) {
        if room(frame) == 0 {
            give_back(buffer, encode::RBP);
        } else {
            // leave
            buffer.push(&[0xc9]);
            buffer.step(Step::Empty);
            buffer.step(Step::GivenBack { register: encode::RBP.in_dwarf() });
        }
    }
    // ret
    buffer.push(&[0xc3]);
    buffer.step(Step::Left);
}

/// Pushes a register of the caller's.
fn keep(buffer: &mut Buffer, register: Native) {
    encode::push(buffer, register);
    buffer.step(Step::Grown(8));
    buffer.step(Step::Kept { register: register.in_dwarf(), above: 0 });
}

/// Pops it.
fn give_back(buffer: &mut Buffer, register: Native) {
    encode::pop(buffer, register);
    buffer.step(Step::Grown(-8));
    buffer.step(Step::GivenBack { register: register.in_dwarf() });
}

/// Returns the group's operation for `op`, if there is one.
const fn group(op: AluOp) -> Option<Group> {
    match op {
        AluOp::Add => Some(Group::Add),
        AluOp::Sub => Some(Group::Sub),
        AluOp::Or => Some(Group::Or),
        AluOp::And => Some(Group::And),
        AluOp::Xor => Some(Group::Xor),
        _ => None,
    }
}
