//! The translation: `A` is `r0`, `X` is `r2`, and `r3` is how many bytes of the packet there are.
//!
//! A load at a constant offset comes behind a comparison with `r3`, unless every way to it has one that says as much. A
//! load at `X` computes the end of what it loads, in 64 bits, and compares that; since `r3` is at most [`LIMIT`], so is
//! the end, and the verifier sees that the load stays in the context.

use alloc::vec::Vec;

use super::MOST;
use super::packet::{BESIDE, CAPTURED, HEADER, LIMIT, WIRE};
use super::step::{Accumulator, Second, Step, Value, WORDS};
use crate::insn::{AluOp, ByteOrder, Condition, Extension, Instruction, Operand, Reach, Register, Size, Width, encode};

const A: Register = Register::R0;
const X: Register = Register::R2;
const CONTEXT: Register = Register::R1;
const THERE: Register = Register::R3;
const SCRATCH: Register = Register::R4;

/// Where a jump goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Step(usize),
    /// The packet is refused: it is too short for a load, or something was divided by 0.
    Reject,
}

/// Most slots of the prologue.
const MOST_BEGIN: usize = 4 + WORDS as usize;
/// Most slots of a step: those of a load at `X` in network order, or of a header's length at a high offset.
const MOST_STEP: usize = 6;
// Every jump can reach the refusal, which is behind all of them.
const _: () = assert!(MOST_BEGIN + MOST * MOST_STEP <= i16::MAX as usize);

#[derive(Default)]
struct Output {
    /// Each takes one slot.
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Target)>,
    /// Jumps to a refusal that is not written yet.
    refusals: Vec<usize>,
}

/// Translates `steps` to byte code.
pub(super) fn translate(steps: &[Step]) -> Vec<u8> {
    let mut output = Output::default();
    output.begin(steps);
    // For each step, how many bytes there are whichever way leads to it; `None` if no way was found so far.
    let mut known: Vec<Option<u32>> = alloc::vec![None; steps.len() + 1];
    known[0] = Some(0);
    // A jump back is translated after its target, so that the target must assume nothing.
    for (at, step) in steps.iter().enumerate() {
        if let Step::Jump(to) = *step
            && to <= at
        {
            known[to] = Some(0);
        }
    }
    let mut starts = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        starts.push(output.instructions.len());
        // A step that no way leads to never runs, so that any number will do.
        let behind = output.step(*step, at, known[at].unwrap_or(0));
        debug_assert!(output.instructions.len() - starts[at] <= MOST_STEP, "{step:?}");
        let mut reaches = |to: usize| known[to] = Some(known[to].map_or(behind, |other: u32| other.min(behind)));
        match *step {
            Step::Return(_) => {}
            Step::Jump(to) => reaches(to),
            Step::Branch { then, otherwise, .. } => [then, otherwise].into_iter().for_each(reaches),
            _ => reaches(at + 1),
        }
    }
    output.refuse();
    output.finish(&starts)
}

/// Sets the distance of a jump.
fn set_distance(jump: &mut Instruction, distance: i64) {
    match jump {
        Instruction::Jump { offset, reach } => {
            *offset = distance as i32;
            *reach = if i16::try_from(distance).is_ok() { Reach::Near } else { Reach::Far };
        }
        Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => {
            *offset = distance as i16;
            debug_assert_eq!(i64::from(*offset), distance, "it skips 255 steps at most, or goes to the refusal");
        }
        _ => {}
    }
}

impl Output {
    fn emit(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }

    fn alu(&mut self, width: Width, op: AluOp, dst: Register, operand: Operand) {
        self.emit(Instruction::Alu { width, op, dst, operand });
    }

    /// Sets `dst` to `k`, a number of 32 bits.
    fn set(&mut self, dst: Register, k: u32) {
        self.alu(Width::W32, AluOp::Move, dst, Operand::Immediate(k as i32));
    }

    fn load(&mut self, size: Size, dst: Register, base: Register, offset: i16) {
        self.emit(Instruction::Load { size, extension: Extension::Zero, dst, base, offset });
    }

    fn goto(&mut self, to: Target) {
        self.jump(Instruction::Jump { offset: 0, reach: Reach::Near }, to);
    }

    fn branch(&mut self, width: Width, condition: Condition, dst: Register, operand: Operand, to: Target) {
        self.jump(Instruction::Branch { width, condition, dst, operand, offset: 0 }, to);
    }

    fn jump(&mut self, jump: Instruction, to: Target) {
        let place = self.instructions.len();
        match to {
            Target::Step(_) => self.jumps.push((place, to)),
            Target::Reject => self.refusals.push(place),
        }
        self.emit(jump);
    }

    /// Writes the refusal.
    fn refuse(&mut self) {
        if self.refusals.is_empty() {
            return;
        }
        let here = self.instructions.len();
        for place in core::mem::take(&mut self.refusals) {
            set_distance(&mut self.instructions[place], here as i64 - place as i64 - 1);
        }
        self.set(A, 0);
        self.emit(Instruction::Exit);
    }

    fn begin(&mut self, steps: &[Step]) {
        self.load(Size::Word, THERE, CONTEXT, CAPTURED);
        // Never true; it tells the verifier the bound.
        self.branch(Width::W64, Condition::Greater, THERE, Operand::Immediate(LIMIT as i32), Target::Reject);
        self.set(A, 0);
        self.set(X, 0);
        let is_read = |word: u32| {
            let load = |step: &Step| matches!(step, Step::Load(_, Value::Scratch(read)) if *read == word);
            steps.iter().any(load)
        };
        for word in (0..WORDS).filter(|word| is_read(*word)) {
            let value = Operand::Immediate(0);
            self.emit(Instruction::Store { size: Size::Double, base: Register::R10, offset: place(word), value });
        }
    }

    /// Translates step `at`, before which `known` bytes are known to exist. Returns how many are after it.
    fn step(&mut self, step: Step, at: usize, known: u32) -> u32 {
        match step {
            Step::Load(register, value) => return self.value(accumulator(register), value, known),
            Step::Store(register, word) => {
                let value = Operand::Register(accumulator(register));
                self.emit(Instruction::Store { size: Size::Double, base: Register::R10, offset: place(word), value });
            }
            Step::Alu(op, second) => self.operation(op, second),
            Step::Negate => self.emit(Instruction::Negate { width: Width::W32, dst: A }),
            Step::Jump(to) => {
                if to <= at {
                    self.jump(Instruction::MayGoto { offset: 0 }, Target::Reject);
                }
                self.goto_behind(at, to);
            }
            Step::Branch { then, otherwise, .. } if then == otherwise => self.goto_behind(at, then),
            Step::Branch { condition, second, then, otherwise } => {
                let operand = operand(second);
                match opposite(condition).filter(|_| then == at + 1) {
                    Some(opposite) => self.branch(Width::W32, opposite, A, operand, Target::Step(otherwise)),
                    None => {
                        self.branch(Width::W32, condition, A, operand, Target::Step(then));
                        self.goto_behind(at, otherwise);
                    }
                }
            }
            Step::Return(value) => {
                if let Some(k) = value {
                    self.set(A, k);
                }
                self.emit(Instruction::Exit);
            }
            Step::ToX => self.alu(Width::W32, AluOp::Move, X, Operand::Register(A)),
            Step::ToA => self.alu(Width::W32, AluOp::Move, A, Operand::Register(X)),
        }
        known
    }

    fn goto_behind(&mut self, at: usize, to: usize) {
        if to != at + 1 {
            self.goto(Target::Step(to));
        }
    }

    fn operation(&mut self, op: AluOp, second: Second) {
        match (op, second) {
            (AluOp::Div | AluOp::Mod, Second::X) => {
                self.branch(Width::W32, Condition::Equal, X, Operand::Immediate(0), Target::Reject);
            }
            (AluOp::ShiftLeft | AluOp::ShiftRight, Second::X) => {
                // Over what sets 0, to the shift.
                let (width, condition) = (Width::W32, Condition::Less);
                let operand = Operand::Immediate(32);
                self.emit(Instruction::Branch { width, condition, dst: X, operand, offset: 2 });
                self.set(A, 0);
                self.emit(Instruction::Jump { offset: 1, reach: Reach::Near });
            }
            _ => {}
        }
        self.alu(Width::W32, op, A, operand(second));
    }

    /// Loads `dst`. Returns how many bytes are known to exist then.
    fn value(&mut self, dst: Register, value: Value, known: u32) -> u32 {
        match value {
            Value::Constant(k) => self.set(dst, k),
            Value::Len => self.load(Size::Word, dst, CONTEXT, WIRE),
            Value::Beside(field) => self.load(Size::Word, dst, CONTEXT, BESIDE + 4 * field as i16),
            Value::Scratch(word) => self.load(Size::Double, dst, Register::R10, place(word)),
            Value::Packet { size, offset } => return self.packet(dst, size, offset, known),
            Value::HeaderLen { offset } => {
                let known = self.packet(dst, Size::Byte, offset, known);
                self.alu(Width::W32, AluOp::And, dst, Operand::Immediate(0xf));
                self.alu(Width::W32, AluOp::ShiftLeft, dst, Operand::Immediate(2));
                return known;
            }
            Value::Indexed { size, offset } => {
                let Some(end) = end(offset, size) else {
                    self.goto(Target::Reject);
                    return known;
                };
                self.alu(Width::W64, AluOp::Move, SCRATCH, Operand::Register(X));
                self.alu(Width::W64, AluOp::Add, SCRATCH, Operand::Immediate(end as i32));
                self.branch(Width::W64, Condition::Greater, SCRATCH, Operand::Register(THERE), Target::Reject);
                self.alu(Width::W64, AluOp::Add, SCRATCH, Operand::Register(CONTEXT));
                self.load(size, dst, SCRATCH, HEADER - size.bytes() as i16);
                self.in_order(size, dst);
                // `X` may be 0.
                return known.max(end);
            }
        }
        known
    }

    fn packet(&mut self, dst: Register, size: Size, offset: u32, known: u32) -> u32 {
        let Some(end) = end(offset, size) else {
            self.goto(Target::Reject);
            return known;
        };
        if end > known {
            self.branch(Width::W64, Condition::Less, THERE, Operand::Immediate(end as i32), Target::Reject);
        }
        match i16::try_from(offset).ok().and_then(|offset| offset.checked_add(HEADER)) {
            Some(offset) => self.load(size, dst, CONTEXT, offset),
            None => {
                self.alu(Width::W64, AluOp::Move, SCRATCH, Operand::Register(CONTEXT));
                self.alu(Width::W64, AluOp::Add, SCRATCH, Operand::Immediate(offset as i32));
                self.load(size, dst, SCRATCH, HEADER);
            }
        }
        self.in_order(size, dst);
        known.max(end)
    }

    /// Converts from network order.
    fn in_order(&mut self, size: Size, dst: Register) {
        if size != Size::Byte {
            self.emit(Instruction::Swap { order: ByteOrder::Big, size, dst });
        }
    }

    fn finish(mut self, starts: &[usize]) -> Vec<u8> {
        for (place, target) in core::mem::take(&mut self.jumps) {
            if let Target::Step(step) = target {
                set_distance(&mut self.instructions[place], starts[step] as i64 - place as i64 - 1);
            }
        }
        let mut bytes = Vec::with_capacity(8 * self.instructions.len());
        for instruction in &self.instructions {
            encode(instruction, &mut |slot| bytes.extend_from_slice(&slot));
        }
        bytes
    }
}

/// Returns where a load ends, if a packet can have that many bytes.
fn end(offset: u32, size: Size) -> Option<u32> {
    offset.checked_add(size.bytes() as u32).filter(|end| *end <= LIMIT)
}

const fn accumulator(register: Accumulator) -> Register {
    match register {
        Accumulator::A => A,
        Accumulator::X => X,
    }
}

const fn operand(second: Second) -> Operand {
    match second {
        Second::K(k) => Operand::Immediate(k as i32),
        Second::X => Operand::Register(X),
    }
}

/// Returns where a word of scratch memory is on the stack: each has a slot.
const fn place(word: u32) -> i16 {
    -8 * (word as i16 + 1)
}

/// Returns the condition that holds where `condition` does not, if there is one.
const fn opposite(condition: Condition) -> Option<Condition> {
    match condition {
        Condition::Equal => Some(Condition::NotEqual),
        Condition::Greater => Some(Condition::LessEqual),
        Condition::GreaterEqual => Some(Condition::Less),
        _ => None,
    }
}
