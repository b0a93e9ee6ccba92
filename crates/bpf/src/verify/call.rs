//! Calls: of functions, of helpers by their signatures, and of functions by helpers.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::TypeId;

use super::fault::{Fault, MissingFunction};
use super::scalar::Scalar;
use super::signature::{Argument, MapUse, Returns, Signature, TAIL_CALL};
use super::state::{Area, Backing, Callback, Content, DYNPTR, Dynptr, Frame, Held, State, Unreadable, Value};
use super::step::{Next, Span, Step, Touched};
use super::{Guard, Leftovers, Unproven};
use crate::code::MOST_FRAMES;
use crate::function::Null;
use crate::insn::{Callee, Register};
use crate::map::{Kind, ValueAccess};

/// Bytes that a helper reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Read,
    Write,
    /// To read, addresses among them if loads need not be proven: who may load anything knows them.
    Print,
}

/// What the previous arguments said.
#[derive(Default)]
struct Before {
    map: Option<u32>,
    /// Bytes of a record.
    size: u32,
    callback: Option<Callback>,
    released: Option<u32>,
    /// Where bytes begin whose length comes next.
    bytes: Option<(Register, Direction)>,
    /// What the helper writes to the stack: the function whose stack it is, where, and whether all of it. It counts as
    /// written once all arguments are checked, as a helper may read any of them before.
    written: Vec<(usize, Span, bool)>,
    dynptr: Option<u32>,
    /// Where a dynptr will be: the function whose stack it is, and the place there.
    made: Option<(usize, i64)>,
    /// The map whose timer it is.
    timer: Option<u32>,
    /// What a timer calls.
    later: Option<Callback>,
}

impl Step<'_> {
    pub(super) fn call(mut self, callee: Callee) -> Result<Next, Fault> {
        let behind = self.at + 1;
        match callee {
            Callee::Helper(id) => self.call_helper(id),
            Callee::Register(register) => {
                let id = self.number(register)?.as_constant().ok_or(Fault::VariableCall { register })?;
                self.call_helper(id as i32)
            }
            Callee::Local(distance) => {
                let target = self.target(distance);
                if let Some(next) = self.call_alone(target) {
                    return Ok(next);
                }
                let depth = self.state.frames.len();
                // `Code` has not counted the calls in functions that helpers call.
                if depth >= MOST_FRAMES {
                    return Err(Fault::Depth);
                }
                let mut callee = Frame::new(depth, self.instance());
                for register in &Register::ALL[1..6] {
                    let link = self.linked(*register);
                    callee.put(*register, Content { link, ..*self.state.top().content(*register) });
                }
                let caller = self.state.top_mut();
                caller.next = behind as u32;
                caller.lose(self.shared.unset);
                self.state.frames.push(callee);
                self.note_frames(depth + 1);
                Ok(Next::One(target))
            }
            Callee::Kernel { id: index, module: 0 } => {
                let function = usize::try_from(index).ok().and_then(|index| self.shared.contract.functions.get(index));
                let function = function.copied().unwrap_or(Err(MissingFunction::NotGiven));
                self.call_by(function.map_err(|reason| Fault::Function { index, reason })?)
            }
            Callee::Kernel { .. } => Err(Fault::Unknown),
        }
    }

    fn call_helper(self, id: i32) -> Result<Next, Fault> {
        let signature = self.shared.contract.signature(id).ok_or(Fault::Helper { id })?;
        if id == TAIL_CALL && !(self.state.is_program() && self.state.records.is_empty()) {
            return Err(Fault::TailCall);
        }
        self.call_by(signature)
    }

    /// Calls something with this signature.
    fn call_by(mut self, signature: Signature) -> Result<Next, Fault> {
        let behind = self.at + 1;
        if signature.returns == Returns::Probed && self.shared.contract.unproven != Unproven::Probe {
            return Err(Fault::Probes);
        }
        let may_call = matches!(signature.arguments(), [Argument::Unlock]);
        if let (Some(held), false) = (self.state.lock, may_call) {
            return Err(Fault::CallLocked { slot: self.shared.code.slot(held.at as usize) });
        }
        let before = self.arguments(&signature)?;
        self.state.top_mut().lose(self.shared.unset);
        if let Some(record) = before.released {
            self.state.release(record, &self.shared.effort);
        }
        let result = self.returned(&signature, &before)?;
        self.state.top_mut().set(Register::R0, result);
        if let Some(callback) = before.later {
            return Ok(Next::Later { behind, callback });
        }
        match before.callback {
            None => Ok(Next::One(behind)),
            Some(_) if self.state.frames.len() >= MOST_FRAMES => Err(Fault::Depth),
            Some(callback) => {
                self.state.top_mut().next = behind as u32;
                let mut entered = self.state.clone();
                // The helper has not returned a value yet.
                entered.top_mut().set(Register::R0, Value::Unset);
                entered.enter(callback, self.has_lock(callback), self.shared.unset, (self.instance(), 0));
                self.note_frames(entered.frames.len());
                Ok(Next::Iterate { behind, enter: callback.entry as usize, entered })
            }
        }
    }

    /// Returns a number for a call of a function.
    fn instance(&self) -> u32 {
        // Cannot overflow: there are fewer calls than followed instructions.
        let number = self.shared.instances.get();
        self.shared.instances.set(number + 1);
        number
    }

    /// Whether a function gets values with locks.
    fn has_lock(&self, callback: Callback) -> bool {
        callback.map.is_some_and(|map| self.shared.contract.maps[map as usize].lock.is_some())
    }

    fn arguments(&mut self, signature: &Signature) -> Result<Before, Fault> {
        let mut before = Before::default();
        for (register, argument) in signature.registers() {
            let map = before.map.map(|map| self.shared.contract.maps[map as usize]);
            let (key_len, value_len) = map.map_or((0, 0), |shape| (shape.key_len, shape.value_len));
            match argument {
                Argument::Number => drop(self.number(register)?),
                Argument::Context => {
                    let start = Value::Pointer(Area::Context, Scalar::constant(0));
                    if self.get(register)? != start {
                        return Err(Fault::NotContext { register });
                    }
                }
                Argument::Map(wanted) => {
                    let Value::Map(map) = self.get(register)? else { return Err(Fault::NoMap { register }) };
                    let kind = self.shared.contract.maps[map as usize].kind;
                    if !wanted.takes(kind) {
                        return Err(Fault::MapKind { register, kind });
                    }
                    let takes_out = matches!(wanted, MapUse::Remove | MapUse::Pop);
                    if wanted == MapUse::Timers && before.timer != Some(map) {
                        return Err(Fault::TimerMap { register });
                    }
                    if takes_out && self.shared.contract.maps[map as usize].access == ValueAccess::Read {
                        return Err(Fault::ReadOnlyMap);
                    }
                    before.map = Some(map);
                }
                Argument::Key => self.bytes(register, key_len.into(), key_len.into(), Direction::Read, &mut before)?,
                // It is put into the map.
                Argument::Value if map.is_some_and(|shape| shape.access == ValueAccess::Read) => {
                    return Err(Fault::ReadOnlyMap);
                }
                Argument::Value => {
                    self.bytes(register, value_len.into(), value_len.into(), Direction::Read, &mut before)?;
                }
                Argument::ValueOut => {
                    let is_set = map.is_some_and(|shape| shape.kind == Kind::BloomFilter);
                    let direction = if is_set { Direction::Read } else { Direction::Write };
                    self.bytes(register, value_len.into(), value_len.into(), direction, &mut before)?;
                }
                Argument::Text => {
                    let Value::Pointer(area, start) = self.get(register)? else {
                        return Err(Fault::NoText { register });
                    };
                    let map = area.value_of().ok_or(Fault::NoText { register })?;
                    let shape = self.shared.contract.maps[map as usize];
                    // The host finds text only in its own maps, and only in the first value.
                    let is_single = (map as usize) < self.shared.contract.own_maps && shape.max_entries == 1;
                    if shape.access != ValueAccess::Read || shape.kind != Kind::Array || !is_single {
                        return Err(Fault::NoText { register });
                    }
                    self.is_inside(area, start, 1)?;
                }
                Argument::NumberOut => self.bytes(register, 8, 8, Direction::Write, &mut before)?,
                Argument::Bytes => before.bytes = Some((register, Direction::Read)),
                Argument::BytesOut => before.bytes = Some((register, Direction::Write)),
                Argument::PrintedBytes => before.bytes = Some((register, Direction::Print)),
                // The interpreter and compilers clear it.
                Argument::Printed if *self.state.top().get(register) == Value::Cleared => {
                    self.shared.leftovers.set(Leftovers::Zero);
                }
                Argument::Printed if self.shared.contract.unproven == Unproven::Probe => drop(self.get(register)?),
                Argument::Printed => drop(self.number(register)?),
                Argument::Size => {
                    let size = self.number(register)?;
                    let (min, max) = (size.signed_min(), size.signed_max());
                    if min < 0 || max > u32::MAX.into() {
                        return Err(Fault::Size { register, min, max });
                    }
                    if let Some((start, direction)) = before.bytes.take() {
                        self.bytes(start, min, max, direction, &mut before)?;
                    }
                }
                Argument::Loop | Argument::Each | Argument::Drain => {
                    let Value::Function(entry) = self.get(register)? else {
                        return Err(Fault::NoFunction { register });
                    };
                    let map = if argument == Argument::Each { before.map } else { None };
                    let sample = (argument == Argument::Drain).then_some(self.at as u32);
                    before.callback = Some(Callback { entry, map, sample, context: Value::Unset });
                }
                Argument::Object(of) => drop(self.kept_object(register, of, &before)?),
                Argument::Release(of) => before.released = Some(self.kept_object(register, of, &before)?),
                Argument::ObjectOrNull(of) => {
                    let wanted = self.shared.contract.object(of);
                    match self.get(register)? {
                        Value::Scalar(number) if number.as_constant() == Some(0) => {}
                        Value::Maybe(Area::Object { of, .. }, _) if Some(of) == wanted => {}
                        _ => drop(self.kept_object(register, of, &before)?),
                    }
                }
                Argument::Lock => {
                    let (map, id) = self.lock(register)?;
                    self.state.lock = Some(Held { map, id, at: self.at as u32 });
                }
                Argument::Unlock => {
                    let lock = self.lock(register)?;
                    match self.state.lock.take() {
                        Some(held) if (held.map, held.id) == lock => {}
                        Some(held) => return Err(Fault::OtherLock { slot: self.shared.code.slot(held.at as usize) }),
                        None => return Err(Fault::NotLocked),
                    }
                }
                Argument::Timer => before.timer = Some(self.timer(register)?),
                Argument::OnTimer => {
                    let Value::Function(entry) = self.get(register)? else {
                        return Err(Fault::NoFunction { register });
                    };
                    before.later = Some(Callback { entry, map: before.timer, sample: None, context: Value::Unset });
                }
                Argument::Anything => {
                    let context = self.get(register)?;
                    if let Some(callback) = &mut before.callback {
                        callback.context = context;
                    }
                }
                Argument::RecordSize => {
                    let size = self.number(register)?.as_constant().and_then(|size| u32::try_from(size).ok());
                    before.size = size.ok_or(Fault::VariableSize { register })?;
                }
                Argument::MapBytes => {
                    let area = match self.get(register)? {
                        Value::Pointer(area, _) if area.value_of().is_some() => area,
                        _ => return Err(Fault::NoMapBytes { register }),
                    };
                    self.may_write(area)?;
                    // Helpers read and write them, and check that they exist.
                    before.bytes = Some((register, Direction::Read));
                }
                Argument::Dynptr => {
                    before.dynptr = Some(match self.get(register)? {
                        Value::Sample(sample) => sample,
                        _ => self.dynptr(register)?.id,
                    });
                }
                Argument::RecordDynptr => {
                    let dynptr = self.dynptr(register)?;
                    if dynptr.of != Backing::Record {
                        return Err(Fault::NoDynptr { register });
                    }
                    before.released = Some(dynptr.id);
                }
                Argument::DynptrOut => before.made = Some(self.place_of_dynptr(register)?),
                Argument::Record => match self.get(register)? {
                    Value::Pointer(Area::Record { id, .. }, offset) if offset.as_constant() == Some(0) => {
                        before.released = Some(id);
                    }
                    Value::Maybe(..) => return Err(Fault::MaybeNull { register }),
                    _ => return Err(Fault::NoRecord { register }),
                },
            }
        }
        for (depth, span, is_all) in core::mem::take(&mut before.written) {
            let frame = &mut self.state.frames[depth];
            let was_number = frame.read_all(span.offset, span.len).is_ok();
            frame.write_some(span.offset, span.len, is_all);
            if !was_number {
                // A load in speculation may get the old contents.
                self.guard(Guard::Behind);
            }
        }
        Ok(before)
    }

    fn returned(&mut self, signature: &Signature, before: &Before) -> Result<Value, Fault> {
        let id = self.at as u32;
        match (signature.returns, before.map) {
            (Returns::ValueOrNull, Some(map)) => {
                self.state.renew(id, &self.shared.effort);
                let inner = self.shared.contract.maps[map as usize].inner;
                Ok(Value::Maybe(inner.map_or_else(|| self.found(map, id), Area::Inner), id))
            }
            (Returns::SliceOrNull, _) => {
                let Some(of) = before.dynptr else { return Err(Fault::Unknown) };
                self.state.renew(id, &self.shared.effort);
                Ok(Value::Maybe(Area::Slice { id: of, len: before.size }, id))
            }
            (Returns::Dynptr(of), _) => {
                let Some((depth, offset)) = before.made else { return Err(Fault::Unknown) };
                if self.state.records.contains(&id) {
                    return Err(Fault::Reserved);
                }
                // Its old contents are overwritten.
                self.overwrite(depth, Span { offset, len: DYNPTR as usize, touched: Touched::All })?;
                self.state.release(id, &self.shared.effort);
                self.state.frames[depth].put_dynptr(offset, id, of);
                if of == Backing::Record {
                    self.hold()?;
                }
                // A load in speculation may get the old contents.
                self.guard(Guard::Behind);
                Ok(Value::Scalar(Scalar::UNKNOWN))
            }
            (Returns::Object(of, null), _) => {
                let Some(of) = self.shared.contract.object(of) else { return Err(Fault::Unknown) };
                self.hold()?;
                self.state.renew(id, &self.shared.effort);
                let area = Area::Object { id, of };
                Ok(match null {
                    Null::Possible => Value::Maybe(area, id),
                    Null::Excluded => Value::Pointer(area, Scalar::constant(0)),
                })
            }
            (Returns::RecordOrNull, _) => {
                self.hold()?;
                self.state.renew(id, &self.shared.effort);
                Ok(Value::Maybe(Area::Record { id, len: before.size }, id))
            }
            _ => Ok(Value::Scalar(Scalar::UNKNOWN)),
        }
    }

    /// Notes that what this instruction gets is to be given back.
    fn hold(&mut self) -> Result<(), Fault> {
        let (id, records) = (self.at as u32, &mut self.state.records);
        if records.contains(&id) {
            return Err(Fault::Reserved);
        }
        // Also more than a run can hold: what it cannot is 0.
        records.push(id);
        Ok(())
    }

    /// The map in one of whose values a register points at the timer.
    fn timer(&self, register: Register) -> Result<u32, Fault> {
        match self.get(register)? {
            // Of a map inside a map nobody knows which one it is; none has timers.
            Value::Pointer(area, offset) if area.value_of().is_some() => {
                let map = area.value_of().ok_or(Fault::NoTimer { register })?;
                let at = self.shared.contract.maps[map as usize].timer.map(u64::from);
                if at.is_some() && offset.as_constant() == at { Ok(map) } else { Err(Fault::NoTimer { register }) }
            }
            Value::Maybe(..) => Err(Fault::MaybeNull { register }),
            _ => Err(Fault::NoTimer { register }),
        }
    }

    /// The object of this type that is in a register, and that the call does not release as an argument before.
    fn kept_object(&self, register: Register, of: TypeId, before: &Before) -> Result<u32, Fault> {
        let object = self.object(register, of)?;
        if before.released == Some(object) { Err(Fault::NoObject { register }) } else { Ok(object) }
    }

    /// The object of this type that is in a register: the instruction that has got it.
    fn object(&self, register: Register, of: TypeId) -> Result<u32, Fault> {
        let wanted = self.shared.contract.object(of);
        match self.get(register)? {
            Value::Pointer(Area::Object { id, of }, offset)
                if Some(of) == wanted && offset.as_constant() == Some(0) =>
            {
                Ok(id)
            }
            Value::Maybe(Area::Object { of, .. }, _) if Some(of) == wanted => Err(Fault::MaybeNull { register }),
            _ => Err(Fault::NoObject { register }),
        }
    }

    /// The lock at which a register points: the map, and which of its values.
    fn lock(&self, register: Register) -> Result<(u32, u32), Fault> {
        match self.get(register)? {
            Value::Pointer(Area::Lockable { map, id }, offset) => {
                let at = self.shared.contract.maps[map as usize].lock.map(u64::from);
                if offset.as_constant() == at { Ok((map, id)) } else { Err(Fault::NoLock { register }) }
            }
            Value::Maybe(..) => Err(Fault::MaybeNull { register }),
            _ => Err(Fault::NoLock { register }),
        }
    }

    /// Where on a stack a register points: the function, and the place.
    fn stack_place(&self, register: Register) -> Result<(usize, i64), Fault> {
        match self.get(register)? {
            Value::Pointer(area @ Area::Stack(depth), start) => {
                self.is_inside(area, start, DYNPTR)?;
                let (min, max) = (start.signed_min(), start.signed_max());
                if min == max { Ok((depth, min)) } else { Err(Fault::VariableStack { min, max }) }
            }
            _ => Err(Fault::DynptrPlace { register }),
        }
    }

    /// Returns the dynptr at which a register points.
    fn dynptr(&self, register: Register) -> Result<Dynptr, Fault> {
        let (depth, offset) = self.stack_place(register)?;
        self.state.frames[depth].dynptr(offset).ok_or(Fault::NoDynptr { register })
    }

    /// Returns the place for a dynptr at which a register points.
    fn place_of_dynptr(&self, register: Register) -> Result<(usize, i64), Fault> {
        let (depth, offset) = self.stack_place(register)?;
        if Frame::has_place(offset) { Ok((depth, offset)) } else { Err(Fault::DynptrPlace { register }) }
    }

    /// Checks an argument that is the address of `min` to `max` bytes, and notes which are written.
    fn bytes(
        &mut self,
        register: Register,
        min: i64,
        max: i64,
        direction: Direction,
        before: &mut Before,
    ) -> Result<(), Fault> {
        let (area, start) = match self.get(register)? {
            Value::Pointer(area, start) => (area, start),
            Value::Maybe(..) => return Err(Fault::MaybeNull { register }),
            _ => return Err(Fault::NoAddress { register }),
        };
        self.is_inside(area, start, max)?;
        if direction == Direction::Write {
            self.may_write(area)?;
        }
        let Area::Stack(depth) = area else { return Ok(()) };
        let span = Span::of(start, max as usize);
        if direction == Direction::Write {
            self.overwrite(depth, span)?;
            before.written.push((depth, span, span.touched == Touched::All && min == max));
            return Ok(());
        }
        let frame = &self.state.frames[depth];
        let may_print = direction == Direction::Print && self.shared.contract.unproven == Unproven::Probe;
        let readable = match frame.read_all(span.offset, span.len) {
            Err(Unreadable::PartOfPointer) if may_print => {
                // The bytes beside the address must have been written, too.
                let is_unset = |byte| frame.read_all(span.offset + byte, 1) == Err(Unreadable::Unset);
                if (0..span.len as i64).any(is_unset) { Err(Unreadable::Unset) } else { Ok(()) }
            }
            readable => readable,
        };
        readable.map_err(|unreadable| span.fault(unreadable))
    }

    pub(super) fn exit(self) -> Result<Next, Fault> {
        let result = *self.state.top().get(Register::R0);
        let is_called = self.state.frames.len() == 1 || self.state.top().callback.is_some();
        if let (Some(held), true) = (self.state.lock, is_called) {
            // The host goes on, or a helper.
            return Err(Fault::StillLocked { slot: self.shared.code.slot(held.at as usize) });
        }
        // Whoever goes on is the host, a helper, or the function that has called this one: only the last may have
        // addresses, and none of a stack that ends here.
        let ends_here = matches!(result, Value::Pointer(Area::Stack(depth), _) if depth + 1 == self.state.frames.len());
        if result.is_address() && (is_called || ends_here) {
            return Err(Fault::ReturnedAddress);
        }
        if self.state.frames.len() == 1 {
            if self.state.top().callback.is_some() && self.number(Register::R0)?.as_constant() != Some(0) {
                return Err(Fault::TimerResult);
            }
            if result == Value::Unset {
                // The host gets it, whatever the number is.
                return Err(Fault::Unset { register: Register::R0 });
            }
            if let Some(record) = self.state.records.first() {
                return Err(Fault::Unreleased { slot: self.shared.code.slot(*record as usize) });
            }
            return Ok(Next::Ended);
        }
        let callback = self.state.top().callback.as_deref().copied();
        if callback.is_some() {
            // By its result the helper decides whether to call it again.
            self.number(Register::R0)?;
        }
        let returned = *self.state.top().content(Register::R0);
        let Some(left) = self.state.frames.pop() else { return Err(Fault::Unknown) };
        let caller = self.state.top_mut();
        // What ways that met meanwhile have kept of it lacks these registers.
        caller.lose(self.shared.unset);
        let Some(callback) = callback else {
            caller.put(Register::R0, returned);
            return Ok(Next::One(core::mem::take(&mut caller.next) as usize));
        };
        let (behind, instance, rounds) = (caller.next as usize, left.instance, left.rounds);
        if let Some(sample) = callback.sample {
            // The next one is copied over it.
            self.state.release(sample, &self.shared.effort);
        }
        let mut entered = self.state.clone();
        entered.enter(callback, self.has_lock(callback), self.shared.unset, (instance, rounds + 1));
        self.state.top_mut().set(Register::R0, Value::Scalar(Scalar::UNKNOWN));
        Ok(Next::Iterate { behind, enter: callback.entry as usize, entered })
    }
}

impl State {
    /// Returns the state in which a timer enters a function.
    pub(super) fn of_timer(callback: Callback, has_lock: bool, unset: Value, instance: u32) -> Self {
        let mut state = Self { frames: Vec::new(), records: Vec::new(), lock: None };
        state.enter(callback, has_lock, unset, (instance, 0));
        state
    }

    /// Enters a function that a helper calls. The value that it gets may have a lock; what it does not get is `unset`;
    /// earlier calls have counted `rounds`.
    fn enter(&mut self, callback: Callback, has_lock: bool, unset: Value, (instance, rounds): (u32, u32)) {
        let value = callback.map.map(|map| self.value_for_function(map, has_lock));
        let mut frame = Frame::new(self.frames.len(), instance);
        frame.rounds = rounds;
        frame.lose(unset);
        let start = |area| Value::Pointer(area, Scalar::constant(0));
        let arguments = match (callback.map, callback.sample) {
            (None, None) => [Value::Scalar(Scalar::UNKNOWN), callback.context, Value::Unset, Value::Unset],
            (_, Some(sample)) => [Value::Sample(sample), callback.context, Value::Unset, Value::Unset],
            (Some(map), None) => {
                let value = value.unwrap_or(Area::MapValue(map));
                [Value::Map(map), start(Area::MapKey(map)), start(value), callback.context]
            }
        };
        for (register, value) in Register::ALL[1..].iter().zip(arguments) {
            if value != Value::Unset {
                frame.set(*register, value);
            }
        }
        frame.callback = Some(Box::new(callback));
        // No more than is counted: it is kept until its way is followed.
        self.frames.reserve_exact(1);
        self.frames.push(frame);
    }
}
