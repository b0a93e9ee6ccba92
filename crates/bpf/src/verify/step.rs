//! What one instruction makes of what is known, and when it is refused.

use super::fault::Fault;
use super::scalar::Scalar;
use super::state::{Area, Frame, State, Unreadable, Value};
use super::{ContextAccess, Contract};
use crate::code::Code;
use crate::insn::{AluOp, AtomicOp, Callee, Condition, Extension, Instruction, Operand, Register, Size, Wide, Width};
use crate::interp::FRAME;

/// Bytes that an address may be away from where its memory begins: `BPF_MAX_VAR_OFF` of Linux
/// (`include/linux/bpf_verifier.h`).
const MOST_FAR: i64 = 1 << 29;

/// Where a way goes on.
pub(super) enum Next {
    /// With this instruction.
    One(usize),
    /// With this instruction, and with that one in the other state.
    Two(usize, usize, State),
    /// Nowhere.
    Ended,
}

/// An instruction in a state.
pub(super) struct Step<'a> {
    pub(super) code: &'a Code,
    pub(super) contract: &'a Contract,
    pub(super) at: usize,
    pub(super) state: &'a mut State,
}

impl Step<'_> {
    /// Follows the instruction.
    pub(super) fn follow(mut self) -> Result<Next, Fault> {
        let behind = self.at + 1;
        match self.code.instructions()[self.at] {
            Instruction::Alu { width, op, dst, operand } => {
                let value = self.alu(width, op, dst, operand)?;
                self.state.top_mut().set(dst, value);
            }
            Instruction::Negate { width, dst } => {
                let value = self.number(dst)?.negated(width);
                self.set(dst, value);
            }
            Instruction::MoveSigned { width, from, dst, src } => {
                let value = self.number(src)?.sign_extended(width, from);
                self.set(dst, value);
            }
            Instruction::Swap { order, size, dst } => {
                let value = self.number(dst)?.swapped(order, size);
                self.set(dst, value);
            }
            Instruction::LoadWide { dst, value: Wide::Value(value) } => self.set(dst, Scalar::constant(value)),
            Instruction::Load { size, extension, dst, base, offset } => {
                let value = self.load(size, base, offset, Alignment::Any)?;
                let value = match (extension, value) {
                    (Extension::Sign, Value::Scalar(number)) => Value::Scalar(number.sign_extended(Width::W64, size)),
                    (_, value) => value,
                };
                self.state.top_mut().set(dst, value);
            }
            Instruction::LoadAcquire { size, dst, base, offset } => {
                let value = self.load(size, base, offset, Alignment::Natural)?;
                self.state.top_mut().set(dst, value);
            }
            Instruction::Store { size, base, offset, value } => {
                let value = match value {
                    Operand::Immediate(value) => (Value::Scalar(Scalar::constant(value as u64)), None),
                    Operand::Register(src) => (self.get(src)?, Some(src)),
                };
                self.store(size, base, offset, value, Alignment::Any)?;
            }
            Instruction::StoreRelease { size, base, offset, src } => {
                let value = (self.get(src)?, Some(src));
                self.store(size, base, offset, value, Alignment::Natural)?;
            }
            Instruction::Atomic { op, width, base, offset, src } => self.atomic(op, width, base, offset, src)?,
            Instruction::Jump { offset, .. } => return Ok(Next::One(self.target(offset))),
            Instruction::Branch { width, condition, dst, operand, offset } => {
                let target = self.target(offset.into());
                return self.branch(width, condition, dst, operand, target);
            }
            Instruction::MayGoto { offset } => {
                return Ok(Next::Two(behind, self.target(offset.into()), self.state.clone()));
            }
            Instruction::Call(callee) => return self.call(callee),
            Instruction::Exit => return self.exit(),
            Instruction::LoadWide { .. } | Instruction::Packet { .. } | Instruction::Cast { .. } => {
                return Err(Fault::Unknown);
            }
        }
        Ok(Next::One(behind))
    }

    fn target(&self, distance: i32) -> usize {
        self.code.target(self.at, distance).expect("targets were checked when the code was made")
    }

    fn set(&mut self, register: Register, number: Scalar) {
        self.state.top_mut().set(register, Value::Scalar(number));
    }

    /// A register that has a value.
    fn get(&self, register: Register) -> Result<Value, Fault> {
        match self.state.top().get(register) {
            Value::Unset => Err(Fault::Unset { register }),
            value => Ok(value),
        }
    }

    /// A register that is a number.
    fn number(&self, register: Register) -> Result<Scalar, Fault> {
        match self.get(register)? {
            Value::Scalar(number) => Ok(number),
            _ => Err(Fault::Address { register }),
        }
    }

    fn alu(&self, width: Width, op: AluOp, dst: Register, operand: Operand) -> Result<Value, Fault> {
        let right = match operand {
            Operand::Immediate(value) => Value::Scalar(Scalar::constant(value as u64)),
            Operand::Register(src) => self.get(src)?,
        };
        if op == AluOp::Move {
            return match (width, right, operand) {
                (Width::W64, value, _) => Ok(value),
                (Width::W32, Value::Scalar(number), _) => Ok(Value::Scalar(number.alu(width, op, number))),
                (_, _, Operand::Register(register)) => Err(Fault::Address { register }),
                (_, _, Operand::Immediate(_)) => Err(Fault::Unknown),
            };
        }
        let left = self.get(dst)?;
        let register = if let Operand::Register(src) = operand { src } else { dst };
        match (left, right, op, width) {
            (Value::Scalar(left), Value::Scalar(right), ..) => Ok(Value::Scalar(left.alu(width, op, right))),
            (Value::Pointer(area, offset), Value::Scalar(by), AluOp::Add | AluOp::Sub, Width::W64)
            | (Value::Scalar(by), Value::Pointer(area, offset), AluOp::Add, Width::W64) => {
                let offset = offset.alu(width, op, by);
                let (min, max) = (offset.signed_min(), offset.signed_max());
                if min < -MOST_FAR || max > MOST_FAR {
                    return Err(Fault::Far { register: dst, min, max });
                }
                Ok(Value::Pointer(area, offset))
            }
            (Value::Pointer(area, _), Value::Pointer(of, _), AluOp::Sub, Width::W64) if area == of => {
                Ok(Value::Scalar(Scalar::UNKNOWN))
            }
            (Value::Pointer(..), ..) => Err(Fault::Address { register: dst }),
            _ => Err(Fault::Address { register }),
        }
    }

    /// The memory that an access means: an area, and the bytes into it, which are all inside.
    fn place(&self, size: Size, base: Register, offset: i16, alignment: Alignment) -> Result<(Area, Scalar), Fault> {
        let Value::Pointer(area, start) = self.get(base)? else { return Err(Fault::NoAddress { register: base }) };
        let place = start.alu(Width::W64, AluOp::Add, Scalar::constant(i64::from(offset) as u64));
        let len = size.bytes() as i64;
        let (min, end) = (place.signed_min(), place.signed_max() + len);
        match area {
            Area::Context => {
                let len = self.contract.context.map_or(0, |(len, _)| len);
                if min < 0 || end > i64::from(len) {
                    return Err(Fault::Context { min, end, len });
                }
            }
            Area::Stack(_) => {
                if min < -(FRAME as i64) || end > 0 {
                    return Err(Fault::Stack { min, end });
                }
                if place.as_constant().is_none() {
                    return Err(Fault::VariableStack { min, max: place.signed_max() });
                }
            }
        }
        if alignment == Alignment::Natural && !place.is_aligned(size.bytes() as u64) {
            return Err(Fault::Unaligned { align: size.bytes() });
        }
        Ok((area, place))
    }

    fn may_write_context(&self) -> Result<(), Fault> {
        match self.contract.context {
            Some((_, ContextAccess::Write)) => Ok(()),
            _ => Err(Fault::ReadOnly),
        }
    }

    fn load(&self, size: Size, base: Register, offset: i16, alignment: Alignment) -> Result<Value, Fault> {
        let (area, place) = self.place(size, base, offset, alignment)?;
        match area {
            Area::Context => Ok(Value::Scalar(Scalar::of_size(size))),
            Area::Stack(depth) => {
                let (offset, len) = (place.signed_min(), size.bytes());
                self.state.frames[depth].read(offset, size).map_err(|unreadable| match unreadable {
                    Unreadable::Unset => Fault::StackUnset { offset, len },
                    Unreadable::PartOfPointer => Fault::PartOfAddress { offset, len },
                })
            }
        }
    }

    fn store(
        &mut self,
        size: Size,
        base: Register,
        offset: i16,
        (value, register): (Value, Option<Register>),
        alignment: Alignment,
    ) -> Result<(), Fault> {
        let (area, place) = self.place(size, base, offset, alignment)?;
        if let (Value::Pointer(of, _), Some(register)) = (value, register) {
            let is_whole = size == Size::Double && place.is_aligned(8);
            let outlives = match (area, of) {
                (Area::Stack(_), Area::Context) => true,
                (Area::Stack(depth), Area::Stack(of)) => of <= depth,
                (Area::Context, _) => false,
            };
            if !is_whole || !outlives {
                return Err(Fault::StoredAddress { register });
            }
        }
        match area {
            Area::Context => self.may_write_context(),
            Area::Stack(depth) => {
                self.state.frames[depth].write(place.signed_min(), size, value);
                Ok(())
            }
        }
    }

    fn atomic(&mut self, op: AtomicOp, width: Width, base: Register, offset: i16, src: Register) -> Result<(), Fault> {
        let size = match width {
            Width::W32 => Size::Word,
            Width::W64 => Size::Double,
        };
        self.number(src)?;
        if op == AtomicOp::CompareExchange {
            self.number(Register::R0)?;
        }
        let old = self.load(size, base, offset, Alignment::Natural)?;
        if matches!(old, Value::Pointer(..)) {
            return Err(Fault::PartOfAddress { offset: offset.into(), len: size.bytes() });
        }
        let (area, place) = self.place(size, base, offset, Alignment::Natural)?;
        match area {
            Area::Context => self.may_write_context()?,
            Area::Stack(depth) => {
                let unknown = Value::Scalar(Scalar::of_size(size));
                self.state.frames[depth].write(place.signed_min(), size, unknown);
            }
        }
        match op {
            AtomicOp::CompareExchange => self.set(Register::R0, Scalar::of_size(size)),
            op if op.fetches_to_source() => self.set(src, Scalar::of_size(size)),
            _ => {}
        }
        Ok(())
    }

    fn branch(
        self,
        width: Width,
        condition: Condition,
        dst: Register,
        operand: Operand,
        target: usize,
    ) -> Result<Next, Fault> {
        let behind = self.at + 1;
        let left = self.get(dst)?;
        let right = match operand {
            Operand::Immediate(value) => Value::Scalar(Scalar::constant(value as u64)),
            Operand::Register(src) => self.get(src)?,
        };
        let (left, right) = match (left, right) {
            (Value::Scalar(left), Value::Scalar(right)) => (left, right),
            // Which one is higher says nothing of where they are.
            (Value::Pointer(area, _), Value::Pointer(of, _)) if area == of && width == Width::W64 => {
                return Ok(Next::Two(behind, target, self.state.clone()));
            }
            (Value::Scalar(_), _) => {
                let Operand::Register(register) = operand else { return Err(Fault::Unknown) };
                return Err(Fault::Address { register });
            }
            _ => return Err(Fault::Address { register: dst }),
        };
        let taken = left.assume(width, condition, right, true);
        let passed = left.assume(width, condition, right, false);
        let learn = |state: &mut State, (left, right): (Scalar, Scalar)| {
            state.top_mut().set(dst, Value::Scalar(left));
            match operand {
                // Both are the same, and both were learnt of.
                Operand::Register(src) if src == dst => {}
                Operand::Register(src) => state.top_mut().set(src, Value::Scalar(right)),
                Operand::Immediate(_) => {}
            }
        };
        match (passed, taken) {
            (Some(passed), Some(taken)) => {
                let mut other = self.state.clone();
                learn(&mut other, taken);
                learn(self.state, passed);
                Ok(Next::Two(behind, target, other))
            }
            (Some(passed), None) => {
                learn(self.state, passed);
                Ok(Next::One(behind))
            }
            (None, Some(taken)) => {
                learn(self.state, taken);
                Ok(Next::One(target))
            }
            // Only where what is known contradicts itself, which it never does.
            (None, None) => Ok(Next::Two(behind, target, self.state.clone())),
        }
    }

    fn call(self, callee: Callee) -> Result<Next, Fault> {
        let behind = self.at + 1;
        match callee {
            Callee::Helper(id) => self.call_helper(id),
            Callee::Register(register) => {
                let id = self.number(register)?.as_constant().ok_or(Fault::VariableCall { register })?;
                self.call_helper(id as i32)
            }
            Callee::Local(distance) => {
                let target = self.target(distance);
                let depth = self.state.frames.len();
                let caller = self.state.top_mut();
                caller.next = behind;
                let mut callee = Frame::new(depth);
                for register in &Register::ALL[1..6] {
                    callee.set(*register, caller.get(*register));
                }
                for register in &Register::ALL[..6] {
                    caller.set(*register, Value::Unset);
                }
                self.state.frames.push(callee);
                Ok(Next::One(target))
            }
            Callee::Kernel { .. } => Err(Fault::Unknown),
        }
    }

    fn call_helper(mut self, id: i32) -> Result<Next, Fault> {
        let known = self.contract.helpers.iter().find(|(known, _)| *known == id);
        let (_, arguments) = *known.ok_or(Fault::Helper { id })?;
        for register in &Register::ALL[1..=usize::from(arguments)] {
            self.number(*register)?;
        }
        for register in &Register::ALL[1..6] {
            self.state.top_mut().set(*register, Value::Unset);
        }
        self.set(Register::R0, Scalar::UNKNOWN);
        Ok(Next::One(self.at + 1))
    }

    fn exit(self) -> Result<Next, Fault> {
        let result = self.state.top().get(Register::R0);
        if matches!(result, Value::Pointer(..)) {
            return Err(Fault::ReturnedAddress);
        }
        if self.state.frames.len() == 1 {
            // The host gets it.
            self.number(Register::R0)?;
            return Ok(Next::Ended);
        }
        self.state.frames.pop();
        let caller = self.state.top_mut();
        caller.set(Register::R0, result);
        Ok(Next::One(core::mem::take(&mut caller.next)))
    }
}

/// Whether an access must be aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alignment {
    Any,
    Natural,
}
