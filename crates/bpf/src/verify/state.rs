//! What is known at one place of a program: registers and stack of every active function.

use alloc::vec::Vec;

use super::scalar::Scalar;
use crate::insn::{Register, Size};
use crate::interp::FRAME;

/// Memory that a pointer is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    /// What the host hands over.
    Context,
    /// The stack of an active function, by how many are around it. Distances count from its end, downwards.
    Stack(usize),
    /// A value of the map with this index.
    MapValue(u32),
    /// A key of the map with this index.
    MapKey(u32),
    /// No memory, but a map that is as the one with this index: only of what may be 0.
    Inner(u32),
    /// A record of a ring buffer.
    Record {
        /// The instruction that has reserved it.
        id: u32,
        /// Its bytes.
        len: u32,
    },
}

/// What is known of a register, or of 8 bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// Nothing was put there, or nobody will look at it.
    Unset,
    /// A number.
    Scalar(Scalar),
    /// An address: an area, and the bytes into it.
    Pointer(Area, Scalar),
    /// The beginning of an area, or 0: the result of the call in this instruction, so that a comparison of one copy
    /// tells of all.
    Maybe(Area, u32),
    /// The map with this index.
    Map(u32),
    /// The function that begins with this instruction.
    Function(u32),
}

impl Value {
    /// Whether it is no number.
    pub(super) const fn is_address(&self) -> bool {
        !matches!(self, Self::Unset | Self::Scalar(_))
    }

    /// Whether whoever is right with this is right with `other`.
    fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unset, _) => true,
            (Self::Scalar(scalar), Self::Scalar(other)) => scalar.includes(other),
            (Self::Pointer(area, offset), Self::Pointer(of, other)) => area == of && offset.includes(other),
            _ => self == other,
        }
    }

    /// What includes both, and does not change again and again as `other` does.
    fn widened(&self, other: &Self) -> Self {
        match (self, other) {
            (kept, other) if kept.includes(other) => *kept,
            (Self::Scalar(_), Self::Scalar(_)) => Self::Scalar(Scalar::UNKNOWN),
            _ => Self::Unset,
        }
    }
}

/// Bytes of a slot of the stack.
const SLOT: usize = 8;

/// 8 aligned bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// Numbers: those bytes whose bits are set have been written.
    Bytes(u8),
    /// A register that was put there as a whole.
    Whole(Value),
}

/// All bytes of a slot.
const ALL: u8 = u8::MAX;

impl Slot {
    const UNSET: Self = Self::Bytes(0);

    fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(0), _) => true,
            (Self::Bytes(mask), Self::Bytes(other)) => mask & !other == 0,
            (Self::Bytes(_), Self::Whole(Value::Scalar(_))) => true,
            (Self::Whole(value), Self::Whole(other)) => value.includes(other),
            _ => false,
        }
    }

    fn widened(&self, other: &Self) -> Self {
        match (self, other) {
            (kept, other) if kept.includes(other) => *kept,
            (Self::Whole(value), Self::Whole(other)) => match value.widened(other) {
                Value::Unset => Self::UNSET,
                value => Self::Whole(value),
            },
            (Self::Bytes(mask), Self::Bytes(other)) => Self::Bytes(mask & other),
            _ => Self::UNSET,
        }
    }
}

/// An active function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    registers: [Value; 11],
    /// From the end of the stack downwards, as far as it was used.
    slots: Vec<Slot>,
    /// Where it goes on once what it has called is done.
    pub(super) next: usize,
    /// What a helper calls it for, if one does.
    pub(super) callback: Option<Callback>,
    /// Whether its `may_goto`s have been passed as often as they can be: from there on all of them jump.
    pub(super) is_spent: bool,
    /// Which call of the function this is: one for all calls that a helper makes of it in a row.
    pub(super) instance: u32,
    /// How often that call has passed a `may_goto`, and how often the helper has called it again.
    pub(super) rounds: u32,
}

/// A function that a helper calls again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Callback {
    /// Its first instruction.
    pub(super) entry: u32,
    /// The map whose elements it is called for; otherwise it gets the number of the call.
    pub(super) map: Option<u32>,
    /// What it gets as it is.
    pub(super) context: Value,
}

impl Frame {
    /// The function that has `depth` around it.
    pub(super) fn new(depth: usize, instance: u32) -> Self {
        let mut registers = [Value::Unset; 11];
        registers[10] = Value::Pointer(Area::Stack(depth), Scalar::constant(0));
        Self { registers, slots: Vec::new(), next: 0, callback: None, is_spent: false, instance, rounds: 0 }
    }

    pub(super) fn get(&self, register: Register) -> &Value {
        &self.registers[usize::from(register.number())]
    }

    pub(super) fn set(&mut self, register: Register, value: Value) {
        self.registers[usize::from(register.number())] = value;
    }

    /// Forgets what nobody looks at again: `live` has a bit for each register that somebody does.
    fn forget_all_but(&mut self, live: u16) {
        for (number, register) in self.registers.iter_mut().enumerate() {
            if live & 1 << number == 0 {
                *register = Value::Unset;
            }
        }
    }

    fn includes(&self, other: &Self) -> bool {
        let slot = |frame: &Self, index: usize| frame.slots.get(index).copied().unwrap_or(Slot::UNSET);
        self.is_function_of(other)
            && self.registers.iter().zip(&other.registers).all(|(value, other)| value.includes(other))
            && (0..self.slots.len()).all(|index| slot(self, index).includes(&slot(other, index)))
    }

    /// Whether it is the same function, which goes on at the same place and leaves its loops in the same way.
    fn is_function_of(&self, other: &Self) -> bool {
        self.next == other.next && self.callback == other.callback && self.is_spent == other.is_spent
    }

    fn widened(&self, other: &Self) -> Self {
        let registers = core::array::from_fn(|index| self.registers[index].widened(&other.registers[index]));
        // What one of them lacks is not set.
        let slots = self.slots.iter().zip(&other.slots).map(|(slot, other)| slot.widened(other)).collect();
        Self { registers, slots, ..*other }
    }

    /// Bytes `start..start + len` below the end, by slot and bit. `offset` is negative and inside the frame.
    fn bytes(offset: i64, len: usize) -> impl Iterator<Item = (usize, u8)> {
        let bottom = FRAME as i64;
        (0..len as i64).map(move |byte| {
            let from_bottom = (bottom + offset + byte) as usize;
            ((FRAME - 1 - from_bottom) / SLOT, 1 << (from_bottom % SLOT))
        })
    }

    fn slot_mut(&mut self, index: usize) -> &mut Slot {
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::UNSET);
        }
        &mut self.slots[index]
    }

    /// The slot that an access covers, if it is one as a whole.
    fn whole(offset: i64, size: Size) -> Option<usize> {
        let is_whole = size == Size::Double && offset % SLOT as i64 == 0;
        is_whole.then(|| ((-offset) as usize) / SLOT - 1)
    }

    /// Notes that a value is written at `offset`; a pointer only as a whole slot.
    pub(super) fn write(&mut self, offset: i64, size: Size, value: Value) {
        if let Some(index) = Self::whole(offset, size) {
            *self.slot_mut(index) = Slot::Whole(value);
            return;
        }
        self.write_some(offset, size.bytes(), true);
    }

    /// Notes that up to `len` bytes of numbers are written at `offset`, and all of them if that is `certain`.
    pub(super) fn write_some(&mut self, offset: i64, len: usize, certain: bool) {
        for (index, bit) in Self::bytes(offset, len) {
            let slot = self.slot_mut(index);
            let known = match *slot {
                Slot::Bytes(mask) => mask,
                Slot::Whole(Value::Scalar(_)) => ALL,
                Slot::Whole(_) => 0,
            };
            *slot = Slot::Bytes(if certain { known | bit } else { known });
        }
    }

    /// Whether `len` bytes at `offset` are numbers.
    pub(super) fn read_all(&self, offset: i64, len: usize) -> Result<(), Unreadable> {
        for (index, bit) in Self::bytes(offset, len) {
            match self.slots.get(index).copied().unwrap_or(Slot::UNSET) {
                Slot::Bytes(mask) if mask & bit != 0 => {}
                Slot::Bytes(_) | Slot::Whole(Value::Unset) => return Err(Unreadable::Unset),
                Slot::Whole(Value::Scalar(_)) => {}
                Slot::Whole(_) => return Err(Unreadable::PartOfPointer),
            }
        }
        Ok(())
    }

    /// Replaces every value by what `change` makes of it.
    fn change(&mut self, mut change: impl FnMut(Value) -> Value) {
        for register in &mut self.registers {
            *register = change(*register);
        }
        for slot in &mut self.slots {
            if let Slot::Whole(value) = slot {
                *value = change(*value);
            }
        }
    }

    /// What is read at `offset`.
    pub(super) fn read(&self, offset: i64, size: Size) -> Result<Value, Unreadable> {
        let slot = |index: usize| self.slots.get(index).copied().unwrap_or(Slot::UNSET);
        if let Some(Slot::Whole(value)) = Self::whole(offset, size).map(slot) {
            return Ok(value);
        }
        self.read_all(offset, size.bytes())?;
        Ok(Value::Scalar(Scalar::of_size(size)))
    }
}

/// Why bytes of the stack cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unreadable {
    /// Nothing was written there.
    Unset,
    /// They are some of a pointer's.
    PartOfPointer,
}

/// All active functions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    /// The outermost first; never empty.
    pub(super) frames: Vec<Frame>,
    /// Records that are to be given back, by the instructions that have reserved them.
    pub(super) records: Vec<u32>,
}

impl State {
    pub(super) fn new() -> Self {
        Self { frames: Vec::from([Frame::new(0, 0)]), records: Vec::new() }
    }

    pub(super) fn top(&self) -> &Frame {
        self.frames.last().expect("a function is active")
    }

    pub(super) fn top_mut(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a function is active")
    }

    /// How many values it has: what it takes to keep it.
    pub(super) fn weight(&self) -> usize {
        self.frames.iter().map(|frame| frame.registers.len() + frame.slots.len()).sum()
    }

    /// Forgets what nobody looks at again, before the instruction `at`; `live` tells it for every instruction.
    pub(super) fn forget(&mut self, at: usize, live: &[u16]) {
        /// `r6` to `r10`, which calls keep.
        const KEPT: u16 = 0b111_1100_0000;
        let (top, callers) = self.frames.split_last_mut().expect("a function is active");
        top.forget_all_but(live[at]);
        for caller in callers {
            caller.forget_all_but(live[caller.next] & KEPT);
        }
    }

    /// Whether whatever is right from here is right from `other`.
    pub(super) fn includes(&self, other: &Self) -> bool {
        self.records == other.records
            && self.frames.len() == other.frames.len()
            && self.frames.iter().zip(&other.frames).all(|(frame, other)| frame.includes(other))
    }

    /// What includes both, and is the same again after few rounds of a loop. Both have the same functions active.
    pub(super) fn widened(&self, other: &Self) -> Self {
        let frames = self.frames.iter().zip(&other.frames).map(|(frame, other)| frame.widened(other)).collect();
        Self { frames, records: other.records.clone() }
    }

    /// Whether the same functions are active, with the same records.
    pub(super) fn has_functions_of(&self, other: &Self) -> bool {
        self.records == other.records
            && self.frames.len() == other.frames.len()
            && self.frames.iter().zip(&other.frames).all(|(frame, other)| frame.is_function_of(other))
    }

    /// Whether this is the same call of the same function.
    pub(super) fn is_call_of(&self, other: &Self) -> bool {
        self.frames.len() == other.frames.len() && self.top().instance == other.top().instance
    }

    /// Whether nothing was counted between the two.
    pub(super) fn has_rounds_of(&self, other: &Self) -> bool {
        self.frames.iter().map(|frame| frame.rounds).eq(other.frames.iter().map(|frame| frame.rounds))
    }

    /// Forgets what the call in this instruction has returned before: a comparison would tell of both.
    pub(super) fn renew(&mut self, id: u32) {
        self.change(|value| if matches!(value, Value::Maybe(_, of) if of == id) { Value::Unset } else { value });
    }

    /// Says of what the call in this instruction has returned that it is an area, or 0.
    pub(super) fn resolve(&mut self, id: u32, area: Option<Area>) {
        let known = match area {
            None => Value::Scalar(Scalar::constant(0)),
            Some(Area::Inner(map)) => Value::Map(map),
            Some(area) => Value::Pointer(area, Scalar::constant(0)),
        };
        self.change(|value| if matches!(value, Value::Maybe(_, of) if of == id) { known } else { value });
        if area.is_none() {
            // There is none that could be given back.
            self.records.retain(|record| *record != id);
        }
    }

    /// Notes that a record is given back.
    pub(super) fn release(&mut self, id: u32) {
        self.records.retain(|record| *record != id);
        let is_of = |value: &Value| matches!(value, Value::Pointer(Area::Record { id: of, .. }, _) if *of == id);
        self.change(|value| if is_of(&value) { Value::Unset } else { value });
    }

    fn change(&mut self, mut change: impl FnMut(Value) -> Value) {
        for frame in &mut self.frames {
            frame.change(&mut change);
            if let Some(callback) = &mut frame.callback {
                callback.context = change(callback.context);
            }
        }
    }
}
