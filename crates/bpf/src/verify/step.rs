//! What one instruction makes of what is known, and when it is refused.

use core::cell::Cell;

use super::alone::Functions;
use super::fault::Fault;
use super::scalar::Scalar;
use super::state::{Area, Callback, FIRST, Sources, State, Unreadable, Value};
use super::stored::Stored;
use super::{ContextAccess, ContextUse, Contract, Guard, Leftovers, Side};
use crate::code::Code;
use crate::insn::{AluOp, AtomicOp, Condition, Extension, Instruction, Operand, Register, Size, Wide, Width};
use crate::interp::FRAME;
use crate::map::{Kind, LOCK, TIMER, ValueAccess};

/// Bytes that an address may be away from where its memory begins: `BPF_MAX_VAR_OFF` of Linux
/// (`include/linux/bpf_verifier.h`).
const MOST_FAR: i64 = 1 << 29;

/// Where a way goes on.
pub(super) enum Next {
    /// With this instruction.
    One(usize),
    /// With this instruction, and, in the other state, with that one.
    Two(usize, usize, State),
    /// With this instruction, and, again and again, in a function that a helper calls.
    Iterate {
        /// Behind the call.
        behind: usize,
        /// The first instruction of the function.
        enter: usize,
        /// The state in which it is entered.
        entered: State,
    },
    /// With this instruction; and, at another time, in a function that a timer calls.
    Later {
        /// Behind the call.
        behind: usize,
        /// What is called, of a map.
        callback: Callback,
    },
    /// Nowhere.
    Ended,
}

/// An instruction in a state.
pub(super) struct Step<'a> {
    pub(super) code: &'a Code,
    pub(super) contract: &'a Contract,
    pub(super) at: usize,
    pub(super) state: &'a mut State,
    pub(super) context_use: &'a Cell<ContextUse>,
    /// Calls of functions that were followed.
    pub(super) instances: &'a Cell<u32>,
    /// Whether the instruction is a load that may find nothing.
    pub(super) is_probe: &'a Cell<bool>,
    /// What was seen of the instruction, if it is a store.
    pub(super) stored: &'a Cell<Stored>,
    /// What guards the instruction, if the program is not trusted.
    pub(super) guard: Option<&'a Cell<Option<Guard>>>,
    /// Functions whose calls need not be followed.
    pub(super) alone: &'a Functions<'a>,
    /// Most functions that were active at once so far.
    pub(super) frames: &'a Cell<usize>,
    /// What `r3` to `r5` are where the program has put nothing.
    pub(super) unset: Value,
    /// What they hold there when the program runs.
    pub(super) leftovers: &'a Cell<Leftovers>,
    /// What the numbers were made of that this instruction uses: on which depends whether it is right, and where the
    /// program goes on.
    pub(super) used: &'a Cell<Sources>,
}

impl Step<'_> {
    /// Follows the instruction.
    pub(super) fn follow(mut self) -> Result<Next, Fault> {
        let behind = self.at + 1;
        match self.code.instructions()[self.at] {
            Instruction::Alu { width, op, dst, operand } => {
                let (value, sources) = self.alu(width, op, dst, operand)?;
                self.state.top_mut().set_made(dst, value, sources);
            }
            Instruction::Negate { width, dst } => self.remake(dst, dst, |number| number.negated(width))?,
            Instruction::MoveSigned { width, from, dst, src } => {
                self.remake(dst, src, |number| number.sign_extended(width, from))?;
            }
            Instruction::Swap { order, size, dst } => self.remake(dst, dst, |number| number.swapped(order, size))?,
            Instruction::LoadWide { dst, value } => {
                let value = self.wide(value)?;
                self.state.top_mut().set(dst, value);
            }
            Instruction::Load { size, extension, dst, base, offset } => {
                let (value, sources) = match self.load(size, base, offset, Alignment::Any) {
                    Err(_) if self.may_probe(base) => {
                        self.is_probe.set(true);
                        (Value::Scalar(Scalar::of_size(size)), Sources::NONE)
                    }
                    result => result?,
                };
                let value = match (extension, value) {
                    (Extension::Sign, Value::Scalar(number)) => Value::Scalar(number.sign_extended(Width::W64, size)),
                    (_, value) => value,
                };
                self.state.top_mut().set_made(dst, value, sources);
            }
            Instruction::LoadAcquire { size, dst, base, offset } => {
                let (value, sources) = self.load(size, base, offset, Alignment::Natural)?;
                self.state.top_mut().set_made(dst, value, sources);
            }
            Instruction::Store { size, base, offset, value } => {
                let value = match value {
                    Operand::Immediate(value) => (Value::Scalar(Scalar::constant(value as u64)), None),
                    Operand::Register(src) => (*self.look_at(src)?, Some(src)),
                };
                self.store(size, base, offset, value, Alignment::Any)?;
            }
            Instruction::StoreRelease { size, base, offset, src } => {
                let value = (*self.look_at(src)?, Some(src));
                self.store(size, base, offset, value, Alignment::Natural)?;
            }
            Instruction::Atomic { op, width, base, offset, src } => self.atomic(op, width, base, offset, src)?,
            Instruction::Jump { offset, .. } => return Ok(Next::One(self.target(offset))),
            Instruction::Branch { width, condition, dst, operand, offset } => {
                let target = self.target(offset.into());
                return self.branch(width, condition, dst, operand, target);
            }
            Instruction::MayGoto { offset } => {
                let target = self.target(offset.into());
                if let (Some(held), None) = (self.state.lock, self.contract.fuel) {
                    // Nested ones go round for hours, while everybody waits for the lock.
                    return Err(Fault::CountsLocked { slot: self.code.slot(held.at as usize) });
                }
                if self.state.top().is_spent {
                    self.guard(Guard::Edges);
                    return Ok(Next::One(target));
                }
                let mut spent = self.state.clone();
                spent.top_mut().is_spent = true;
                self.state.top_mut().rounds += 1;
                return Ok(Next::Two(behind, target, spent));
            }
            Instruction::Call(callee) => return self.call(callee),
            Instruction::Exit => return self.exit(),
            Instruction::Packet { .. } | Instruction::Cast { .. } => return Err(Fault::Unknown),
        }
        Ok(Next::One(behind))
    }

    /// Notes how many functions are active at once.
    pub(super) fn note_frames(&self, frames: usize) {
        self.frames.set(self.frames.get().max(frames));
    }

    /// Notes what guards the instruction. If different states need different masks, or one needs none, it waits.
    pub(super) fn guard(&self, guard: Guard) {
        let Some(noted) = self.guard else { return };
        noted.set(match (noted.get(), guard) {
            (None, guard) => Some(guard),
            (Some(noted), guard) if noted == guard => Some(guard),
            (Some(Guard::Unmasked | Guard::Mask { .. } | Guard::Before), _) => Some(Guard::Before),
            (noted, _) => noted,
        });
    }

    /// Guards the sum of an address and `by`, which is in a register: in speculation it could be any number.
    fn guard_sum(&self, by: Scalar, number: Side) {
        // Greater ones are not accepted as distances.
        let most = by.signed_max().try_into().ok().filter(|most| by.signed_min() >= 0 && *most < 1 << 31);
        self.guard(most.map_or(Guard::Before, |most| Guard::Mask { most, number }));
    }

    /// Notes that in this state the operation makes no address. Then a mask for another state must not change its
    /// result.
    fn note_plain_sum(&self, width: Width, op: AluOp, operand: Operand) {
        let may_be_masked = width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub);
        if let (true, Operand::Register(_)) = (may_be_masked, operand) {
            self.guard(Guard::Unmasked);
        }
    }

    pub(super) fn target(&self, distance: i32) -> usize {
        self.code.target(self.at, distance).expect("targets were checked when the code was made")
    }

    fn set(&mut self, register: Register, number: Scalar) {
        self.state.top_mut().set(register, Value::Scalar(number));
    }

    /// Notes that the number of a register is used.
    fn use_number(&self, register: Register) {
        self.used.set(self.used.get().and(self.state.top().sources_of(register)));
    }

    /// Sets `dst` to what `make` makes of a number.
    fn remake(&mut self, dst: Register, src: Register, make: impl FnOnce(Scalar) -> Scalar) -> Result<(), Fault> {
        let Value::Scalar(number) = self.look_at(src)? else { return Err(Fault::Address { register: src }) };
        let (value, sources) = (Value::Scalar(make(*number)), self.state.top().sources_of(src));
        self.state.top_mut().set_made(dst, value, sources);
        Ok(())
    }

    /// Returns a register that has a value.
    pub(super) fn get(&self, register: Register) -> Result<Value, Fault> {
        self.see(register).copied()
    }

    /// Looks at a register that has a value, without a copy.
    fn see(&self, register: Register) -> Result<&Value, Fault> {
        self.use_number(register);
        self.look_at(register)
    }

    /// The same for those who use the number only to make others of it, whose sources they note.
    fn look_at(&self, register: Register) -> Result<&Value, Fault> {
        match self.state.top().get(register) {
            Value::Unset | Value::Cleared => Err(Fault::Unset { register }),
            value => Ok(value),
        }
    }

    /// Returns a register that is a number.
    pub(super) fn number(&self, register: Register) -> Result<Scalar, Fault> {
        match self.see(register)? {
            Value::Scalar(number) => Ok(*number),
            _ => Err(Fault::Address { register }),
        }
    }

    fn wide(&self, value: Wide) -> Result<Value, Fault> {
        match value {
            Wide::Value(value) => Ok(Value::Scalar(Scalar::constant(value))),
            Wide::Function(distance) => Ok(Value::Function(self.target(distance) as u32)),
            Wide::MapByIndex(index) => Ok(Value::Map(self.map(index)?)),
            Wide::MapValueByIndex { map, offset } => {
                let number = self.map(map)?;
                let kind = self.contract.maps[number as usize].kind;
                if kind != Kind::Array {
                    return Err(Fault::NoFirstValue { kind });
                }
                let (area, offset) = (self.found(number, FIRST), Scalar::constant(offset.into()));
                // At most its end.
                self.is_inside(area, offset, 0)?;
                Ok(Value::Pointer(area, offset))
            }
            Wide::MapByDescriptor(_) | Wide::MapValueByDescriptor { .. } | Wide::Variable(_) => Err(Fault::Unknown),
        }
    }

    /// The value of a map that was found in this way.
    pub(super) fn found(&self, map: u32, id: u32) -> Area {
        let has_lock = self.contract.maps[map as usize].lock.is_some();
        if has_lock { Area::Lockable { map, id } } else { Area::MapValue(map) }
    }

    fn map(&self, index: i32) -> Result<u32, Fault> {
        let number = u32::try_from(index).map_err(|_| Fault::Map { index })?;
        // Numbers above those of the host's own maps stand for maps inside maps.
        let is_there = (number as usize) < self.contract.own_maps;
        if is_there { Ok(number) } else { Err(Fault::Map { index }) }
    }

    /// Returns the result, and the sources of what it was made of.
    fn alu(&self, width: Width, op: AluOp, dst: Register, operand: Operand) -> Result<(Value, Sources), Fault> {
        let constant;
        let (right, sources) = match operand {
            Operand::Immediate(value) => {
                constant = Value::Scalar(Scalar::constant(value as u64));
                (&constant, Sources::NONE)
            }
            Operand::Register(src) => (self.look_at(src)?, self.state.top().sources_of(src)),
        };
        if op == AluOp::Move {
            return match (width, right, operand) {
                (Width::W64, value, _) => Ok((*value, sources)),
                (Width::W32, Value::Scalar(number), _) => Ok((Value::Scalar(number.alu(width, op, *number)), sources)),
                (_, _, Operand::Register(register)) => Err(Fault::Address { register }),
                (_, _, Operand::Immediate(_)) => Err(Fault::Unknown),
            };
        }
        let left = self.look_at(dst)?;
        let sources = sources.and(self.state.top().sources_of(dst));
        let register = if let Operand::Register(src) = operand { src } else { dst };
        if let (Value::Scalar(left), Value::Scalar(right)) = (left, right) {
            self.note_plain_sum(width, op, operand);
            return Ok((Value::Scalar(left.alu(width, op, *right)), sources));
        }
        // An address depends on every number that it was made of.
        self.used.set(self.used.get().and(sources));
        let result = match (left, right, op, width) {
            (Value::Pointer(area, offset), Value::Scalar(by), AluOp::Add | AluOp::Sub, Width::W64)
            | (Value::Scalar(by), Value::Pointer(area, offset), AluOp::Add, Width::W64) => {
                let offset = offset.alu(width, op, *by);
                let (min, max) = (offset.signed_min(), offset.signed_max());
                if (min < -MOST_FAR || max > MOST_FAR) && !self.may_be_far(*area) {
                    return Err(Fault::Far { register: dst, min, max });
                }
                match (left, operand) {
                    (Value::Scalar(_), _) => self.guard_sum(*by, Side::Left),
                    (_, Operand::Register(_)) => self.guard_sum(*by, Side::Right),
                    (_, Operand::Immediate(_)) => {}
                }
                Ok(Value::Pointer(*area, offset))
            }
            // Not inside maps of maps: the two addresses may be in different maps.
            (Value::Pointer(area, _), Value::Pointer(of, _), AluOp::Sub, Width::W64)
                if area == of && !self.is_inner(*area) =>
            {
                self.note_plain_sum(width, op, operand);
                Ok(Value::Scalar(Scalar::UNKNOWN))
            }
            (Value::Maybe(..), Value::Scalar(_), AluOp::Add | AluOp::Sub, _) => Err(Fault::MaybeNull { register: dst }),
            (Value::Scalar(_), ..) => Err(Fault::Address { register }),
            _ => Err(Fault::Address { register: dst }),
        };
        result.map(|value| (value, Sources::NONE))
    }

    /// Returns the memory that an access means: an area, and the bytes into it, which are all inside.
    fn place(&self, size: Size, base: Register, offset: i16, alignment: Alignment) -> Result<(Area, Scalar), Fault> {
        let (area, start) = match self.see(base)? {
            Value::Pointer(area, start) => (*area, start),
            Value::Maybe(..) => return Err(Fault::MaybeNull { register: base }),
            _ => return Err(Fault::NoAddress { register: base }),
        };
        let place = start.alu(Width::W64, AluOp::Add, Scalar::constant(i64::from(offset) as u64));
        self.is_inside(area, place, size.bytes() as i64)?;
        let wanted = size.bytes();
        let is_aligned = area == Area::Context || wanted <= area.align().into();
        if alignment == Alignment::Natural && !(is_aligned && place.is_aligned(wanted as u64)) {
            return Err(Fault::Unaligned { align: wanted });
        }
        if alignment == Alignment::Natural && area == Area::Context {
            self.context_use.set(ContextUse::Atomic);
        }
        Ok((area, place))
    }

    /// Whether `len` bytes at `place` are all inside.
    pub(super) fn is_inside(&self, area: Area, place: Scalar, len: i64) -> Result<(), Fault> {
        let (min, end) = (place.signed_min(), place.signed_max().saturating_add(len));
        let map = |map: u32| self.contract.maps[map as usize];
        let (what, room) = match area {
            Area::Context => {
                let len = self.contract.context.map_or(0, |(len, _)| len);
                let is_inside = min >= 0 && end <= i64::from(len);
                return if is_inside { Ok(()) } else { Err(Fault::Context { min, end, len }) };
            }
            Area::Stack(_) if min < -(FRAME as i64) || end > 0 => return Err(Fault::Stack { min, end }),
            Area::Stack(_) if place.as_constant().is_none() => {
                return Err(Fault::VariableStack { min, max: place.signed_max() });
            }
            Area::Stack(_) => return Ok(()),
            Area::MapValue(number) | Area::Lockable { map: number, .. } => {
                let shape = map(number);
                let touches = |at: u32, bytes: u32| len > 0 && min < i64::from(at + bytes) && end > i64::from(at);
                if let Some(at) = shape.timer.filter(|at| touches(*at, TIMER)) {
                    return Err(Fault::TimerBytes { min, end, at });
                }
                if let Some(at) = shape.lock.filter(|at| touches(*at, LOCK)) {
                    return Err(Fault::LockBytes { min, end, at });
                }
                ("the value", shape.value_len)
            }
            Area::MapKey(number) => ("the key", map(number).key_len),
            Area::Inner(_) => ("the map", 0),
            Area::Object { .. } => ("the object", 0),
            Area::Slice { len, .. } => ("the slice", len),
            Area::Record { len, .. } => ("the record", len),
            Area::Argument { len, .. } => ("the memory that the function gets", len),
        };
        let is_inside = min >= 0 && end <= i64::from(room);
        if is_inside { Ok(()) } else { Err(Fault::Outside { what, min, end, len: room }) }
    }

    /// Whether an area belongs to a map inside a map, of which there may be several.
    fn is_inner(&self, area: Area) -> bool {
        matches!(area, Area::MapValue(map) | Area::MapKey(map) if map as usize >= self.contract.own_maps)
    }

    /// Whether an area may be written to.
    pub(super) fn may_write(&self, area: Area) -> Result<(), Fault> {
        match area {
            Area::Context => match self.contract.context {
                Some((_, ContextAccess::Write)) => Ok(()),
                _ => Err(Fault::ReadOnly),
            },
            Area::MapValue(map) | Area::Lockable { map, .. }
                if self.contract.maps[map as usize].access == ValueAccess::Read =>
            {
                Err(Fault::ReadOnlyMap)
            }
            Area::MapKey(_) | Area::Inner(_) | Area::Object { .. } => Err(Fault::ReadOnlyMap),
            Area::Stack(_)
            | Area::MapValue(_)
            | Area::Lockable { .. }
            | Area::Slice { .. }
            | Area::Record { .. }
            | Area::Argument { .. } => Ok(()),
        }
    }

    /// Forgets dynptrs that bytes written to the stack overlap.
    pub(super) fn overwrite(&mut self, depth: usize, offset: i64, len: usize) -> Result<(), Fault> {
        let overwritten = self.state.frames[depth].overwrite(offset, len);
        overwritten.map_err(|dynptr| Fault::DynptrLost { slot: self.code.slot(dynptr.id as usize) })
    }

    /// Returns what is loaded, and the sources of the number.
    fn load(&self, size: Size, base: Register, offset: i16, alignment: Alignment) -> Result<(Value, Sources), Fault> {
        let (area, place) = self.place(size, base, offset, alignment)?;
        match area {
            Area::Stack(depth) => {
                let (offset, len) = (place.signed_min(), size.bytes());
                self.state.frames[depth].read(offset, size).map_err(|unreadable| match unreadable {
                    Unreadable::Unset => Fault::StackUnset { offset, len },
                    Unreadable::PartOfPointer => Fault::PartOfAddress { offset, len },
                })
            }
            _ => Ok((Value::Scalar(Scalar::of_size(size)), Sources::NONE)),
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
        let (area, place) = match self.place(size, base, offset, alignment) {
            Ok((area, place)) => (area, place),
            Err(fault) if alignment == Alignment::Any && !value.is_address() => return self.check_store(base, fault),
            Err(fault) => return Err(fault),
        };
        self.note_proven(area)?;
        if let (true, Some(register)) = (value.is_address(), register) {
            let is_whole = size == Size::Double && place.is_aligned(8);
            let outlives = match (area, value) {
                (Area::Stack(depth), Value::Pointer(Area::Stack(of), _)) => of <= depth,
                (Area::Stack(_), _) => true,
                _ => false,
            };
            if !is_whole || !outlives {
                return Err(Fault::StoredAddress { register });
            }
        }
        self.may_write(area)?;
        if let Area::Stack(depth) = area {
            if let Some(register) = register {
                // Numbers on the stack have no other sources than what was on it.
                self.use_number(register);
            }
            self.overwrite(depth, place.signed_min(), size.bytes())?;
            let frame = &mut self.state.frames[depth];
            let was_number = frame.read_all(place.signed_min(), size.bytes()).is_ok();
            frame.write(place.signed_min(), size, value);
            if !was_number || value.is_address() {
                // A load in speculation may get the old contents: an address, or what another program has left.
                self.guard(Guard::Behind);
            }
        }
        Ok(())
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
        match self.load(size, base, offset, Alignment::Natural)?.0 {
            Value::Scalar(_) => {}
            // The value that the program gets back would be an address.
            _ => return Err(Fault::PartOfAddress { offset: offset.into(), len: size.bytes() }),
        }
        let (area, place) = self.place(size, base, offset, Alignment::Natural)?;
        self.may_write(area)?;
        if let Area::Stack(depth) = area {
            let unknown = Value::Scalar(Scalar::of_size(size));
            self.state.frames[depth].write(place.signed_min(), size, unknown);
        }
        match op {
            AtomicOp::CompareExchange => self.set(Register::R0, Scalar::of_size(size)),
            op if op.fetches_to_source() => self.set(src, Scalar::of_size(size)),
            _ => {}
        }
        Ok(())
    }

    /// Compares an address with 0.
    fn null_check(self, condition: Condition, address: Value, target: usize) -> Next {
        self.guard(Guard::Edges);
        let behind = self.at + 1;
        let (if_null, if_not) = if condition == Condition::Equal { (target, behind) } else { (behind, target) };
        let (area, id) = match address {
            Value::Maybe(area, id) => (area, id),
            // Outside its memory it can be any number, also 0: who knows where the memory lies can see to that.
            Value::Pointer(area, offset) if self.is_inside(area, offset, 0).is_err() => {
                return Next::Two(if_not, if_null, self.state.clone());
            }
            // Memory does not begin at 0, nor end there; and so are maps and functions known to programs.
            _ => return Next::One(if_not),
        };
        let mut null = self.state.clone();
        null.resolve(id, None);
        self.state.resolve(id, Some(area));
        Next::Two(if_not, if_null, null)
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
        let left = *self.look_at(dst)?;
        let sources = self.state.top().sources_of(dst);
        let (right, sources) = match operand {
            Operand::Immediate(value) => (Value::Scalar(Scalar::constant(value as u64)), sources),
            Operand::Register(src) => (*self.look_at(src)?, sources.and(self.state.top().sources_of(src))),
        };
        let use_both = || self.used.set(self.used.get().and(sources));
        if !matches!((left, right), (Value::Scalar(_), Value::Scalar(_))) {
            use_both();
        }
        let is_zero = |value: Value| matches!(value, Value::Scalar(number) if number.as_constant() == Some(0));
        let is_equality = matches!(condition, Condition::Equal | Condition::NotEqual) && width == Width::W64;
        let (left, right) = match (left, right) {
            (Value::Scalar(left), Value::Scalar(right)) => (left, right),
            (address, number) | (number, address) if is_equality && address.is_address() && is_zero(number) => {
                return Ok(self.null_check(condition, address, target));
            }
            // Which of two addresses is higher does not tell where they are: nothing is learned.
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
            // What is learned of one depends on the other.
            state.top_mut().set_made(dst, Value::Scalar(left), sources);
            match operand {
                // A register is compared with itself; what was learned is in it already.
                Operand::Register(src) if src == dst => {}
                Operand::Register(src) => state.top_mut().set_made(src, Value::Scalar(right), sources),
                Operand::Immediate(_) => {}
            }
        };
        if passed.is_none() || taken.is_none() {
            // Only one way is followed: with other numbers it could be the other one.
            use_both();
            // The CPU may follow the other in speculation.
            self.guard(Guard::Edges);
        }
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
            // Neither way is possible: what is known contradicts itself, which never happens.
            (None, None) => Ok(Next::Two(behind, target, self.state.clone())),
        }
    }
}

/// Whether an access must be aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alignment {
    Any,
    Natural,
}
