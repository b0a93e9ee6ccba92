//! What is known at one place of a program: the registers and stack of every active function.

mod slot;
mod sources;
mod written;

use alloc::vec::Vec;

pub(crate) use slot::Backing;
pub(super) use slot::{DYNPTR, Dynptr};
use slot::{Half, SLOT, Slot};
pub(super) use sources::{Origins, Sources};
use written::Written;

use super::scalar::Scalar;
use crate::insn::{Register, Size};
use crate::interp::FRAME;

/// The memory that a pointer points into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    /// What the host hands over.
    Context,
    /// The stack of an active function, by the number of functions around it. Distances count from its end, downwards.
    Stack(usize),
    /// A value of the map with this index.
    MapValue(u32),
    /// A value of the map with this index, whose values have locks, and how it was found: no other value has the same
    /// `id` at the same time.
    Lockable {
        /// The map.
        map: u32,
        /// The instruction that has found it; [`FIRST`], or [`each`].
        id: u32,
    },
    /// A key of the map with this index.
    MapKey(u32),
    /// Not memory but a map like the one with this index: only in what may be 0.
    Inner(u32),
    /// The memory of a [`Dynptr`].
    Slice {
        /// Its [`Dynptr::id`].
        id: u32,
        /// Its bytes.
        len: u32,
    },
    /// A record of a ring buffer.
    Record {
        /// The instruction that reserved it.
        id: u32,
        /// Its bytes.
        len: u32,
    },
    /// Not memory but an object of the host.
    Object {
        /// The instruction that has got it.
        id: u32,
        /// The number of its type.
        of: u32,
    },
    /// Memory that the caller of a function passes, which is verified alone.
    Argument {
        /// The register in which it comes.
        number: u8,
        /// Its bytes.
        len: u32,
        /// To how many bytes it is aligned.
        align: u8,
    },
}

/// The [`Area::Lockable::id`] of the first value of an array, which programs know by itself.
pub(super) const FIRST: u32 = u32::MAX;

/// Returns the [`Area::Lockable::id`] of the value that a helper passes to a function with so many around it.
const fn each(depth: usize) -> u32 {
    FIRST - 1 - depth as u32
}

impl Area {
    /// The map whose value this is.
    pub(super) const fn value_of(self) -> Option<u32> {
        match self {
            Self::MapValue(map) | Self::Lockable { map, .. } => Some(map),
            _ => None,
        }
    }

    /// To how many bytes it is certainly aligned, 8 at most.
    pub(super) const fn align(self) -> u8 {
        match self {
            // The context only if the program asks its caller for it; where a slice begins is not known.
            Self::Context | Self::Slice { .. } | Self::Inner(_) | Self::Object { .. } => 1,
            Self::Argument { align, .. } => align,
            Self::Stack(_) | Self::MapValue(_) | Self::Lockable { .. } | Self::MapKey(_) | Self::Record { .. } => 8,
        }
    }
}

/// What is known of a register, or of 8 bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// Nothing was put there, or nobody will look at it.
    Unset,
    /// Nothing was put there, and it is 0 if the program passes such a register on
    /// ([`Leftovers`](super::Leftovers::Zero)).
    Cleared,
    /// A number.
    Scalar(Scalar),
    /// An address: an area, and the offset in bytes.
    Pointer(Area, Scalar),
    /// The beginning of an area, or 0: the result of the call in this instruction, so that comparing one copy tells
    /// about all.
    Maybe(Area, u32),
    /// The map with this index.
    Map(u32),
    /// The function that begins with this instruction.
    Function(u32),
    /// The address of a dynptr that the helper in this instruction gives what it calls.
    Sample(u32),
}

impl Value {
    /// Whether it is an address.
    pub(super) const fn is_address(&self) -> bool {
        !matches!(self, Self::Unset | Self::Cleared | Self::Scalar(_))
    }

    /// Whether every program that is right with this value is right with `other`.
    fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unset, _) => true,
            (Self::Scalar(scalar), Self::Scalar(other)) => scalar.includes(other),
            (Self::Pointer(area, offset), Self::Pointer(of, other)) => area == of && offset.includes(other),
            _ => self == other,
        }
    }

    /// Returns a value that includes both, and does not change again and again as `other` does.
    fn widened(&self, other: &Self) -> Self {
        match (self, other) {
            (kept, other) if kept.includes(other) => *kept,
            (Self::Scalar(_), Self::Scalar(_)) => Self::Scalar(Scalar::UNKNOWN),
            _ => Self::Unset,
        }
    }
}

/// What counts in slots that were written in parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parts {
    /// The numbers.
    Numbers,
    /// Only which bytes were written.
    Bytes,
}

/// An active function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    registers: [Value; 11],
    /// Of which registers each number was made whose numbers nobody has used yet.
    sources: [Sources; 11],
    /// From the end of the stack downwards, as far as it was used.
    slots: Vec<Slot>,
    /// Where it goes on after the function that it called.
    pub(super) next: usize,
    /// What a helper calls it for, if one does.
    pub(super) callback: Option<Callback>,
    /// Whether its `may_goto`s were passed as often as they can be: from there on all of them jump.
    pub(super) is_spent: bool,
    /// Which call of the function this is; all calls that a helper makes of it in a row are one.
    pub(super) instance: u32,
    /// How often that call has passed a `may_goto`, and how often the helper has called it again.
    pub(super) rounds: u32,
}

/// A function that a helper calls again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Callback {
    /// Its first instruction.
    pub(super) entry: u32,
    /// The map for whose elements it is called; otherwise it gets the number of the call.
    pub(super) map: Option<u32>,
    /// The instruction of the helper that calls it with a dynptr.
    pub(super) sample: Option<u32>,
    /// What it gets unchanged.
    pub(super) context: Value,
}

impl Frame {
    /// Makes the function with `depth` functions around it.
    pub(super) fn new(depth: usize, instance: u32) -> Self {
        let mut registers = [Value::Unset; 11];
        registers[10] = Value::Pointer(Area::Stack(depth), Scalar::constant(0));
        let sources = [Sources::NONE; 11];
        Self { registers, sources, slots: Vec::new(), next: 0, callback: None, is_spent: false, instance, rounds: 0 }
    }

    pub(super) fn get(&self, register: Register) -> &Value {
        &self.registers[usize::from(register.number())]
    }

    /// Sets a register to what depends on no number, or only on numbers whose [`sources`](Self::sources_of) were used.
    pub(super) fn set(&mut self, register: Register, value: Value) {
        self.set_made(register, value, Sources::NONE);
    }

    /// Sets a register to what was made of numbers with these sources.
    pub(super) fn set_made(&mut self, register: Register, value: Value, sources: Sources) {
        let index = usize::from(register.number());
        (self.registers[index], self.sources[index]) = (value, sources);
    }

    /// Takes `r0` to `r5` away, as calls do: `r3` to `r5` are then `unset`.
    pub(super) fn lose(&mut self, unset: Value) {
        for register in &Register::ALL[..3] {
            self.set(*register, Value::Unset);
        }
        for register in &Register::ALL[3..6] {
            self.set(*register, unset);
        }
    }

    /// Forgets what nobody looks at again: `live` has a bit for each register that is read.
    fn forget_all_but(&mut self, live: u16) {
        for (number, register) in self.registers.iter_mut().enumerate() {
            if live & 1 << number == 0 {
                *register = Value::Unset;
            }
        }
    }

    fn includes(&self, other: &Self) -> bool {
        self.includes_with(other, Parts::Numbers)
    }

    fn includes_with(&self, other: &Self, parts: Parts) -> bool {
        self.is_function_of(other)
            && self.registers.iter().zip(&other.registers).all(|(value, other)| value.includes(other))
            && self.stack_includes(other, parts)
    }

    fn stack_includes(&self, other: &Self, parts: Parts) -> bool {
        let slot = |frame: &Self, index: usize| frame.slots.get(index).copied().unwrap_or(Slot::UNSET);
        (0..self.slots.len()).all(|index| {
            let kept = match (slot(self, index), parts) {
                (Slot::Bytes(written), Parts::Bytes) => Slot::Bytes(written.without_numbers()),
                (slot, _) => slot,
            };
            kept.includes(&slot(other, index))
        })
    }

    /// Whether it is the same function, which goes on at the same place and leaves its loops in the same way.
    fn is_function_of(&self, other: &Self) -> bool {
        self.next == other.next && self.callback == other.callback && self.is_spent == other.is_spent
    }

    fn widened(&self, other: &Self) -> Self {
        let registers = core::array::from_fn(|index| self.registers[index].widened(&other.registers[index]));
        // What one of them lacks is unset.
        let slots = self.slots.iter().zip(&other.slots).map(|(slot, other)| slot.widened(other)).collect();
        Self { registers, slots, ..*other }
    }

    /// Iterates over the `len` bytes at `offset`, by slot and bit. `offset` is negative and inside the frame.
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

    /// Returns the slot that an access covers, if it covers one exactly.
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
        if let (Some((index, at)), Value::Scalar(number)) = (Self::part(offset, size), value)
            && let Slot::Bytes(written) = self.slot_mut(index)
        {
            written.put(at, size, number);
        }
    }

    /// Returns the slot of an aligned access to part of one, and at which of its bytes it begins.
    fn part(offset: i64, size: Size) -> Option<(usize, u8)> {
        let is_part = size != Size::Double && offset % size.bytes() as i64 == 0;
        is_part.then(|| (((-offset - 1) as usize) / SLOT, offset.rem_euclid(SLOT as i64) as u8))
    }

    /// Notes that up to `len` bytes of numbers are written at `offset`; all of them if that is `certain`.
    pub(super) fn write_some(&mut self, offset: i64, len: usize, certain: bool) {
        for (index, bit) in Self::bytes(offset, len) {
            let slot = self.slot_mut(index);
            let mut written = match *slot {
                Slot::Bytes(written) => written,
                Slot::Whole(Value::Scalar(number)) => Written::of(number),
                Slot::Whole(_) | Slot::Dynptr(_) => Written::NOTHING,
            };
            written.overwrite(bit, certain);
            *slot = Slot::Bytes(written);
        }
    }

    /// Whether `len` bytes at `offset` are numbers.
    pub(super) fn read_all(&self, offset: i64, len: usize) -> Result<(), Unreadable> {
        for (index, bit) in Self::bytes(offset, len) {
            match self.slots.get(index).copied().unwrap_or(Slot::UNSET) {
                Slot::Bytes(written) if written.has(bit) => {}
                Slot::Bytes(_) | Slot::Whole(Value::Unset) => return Err(Unreadable::Unset),
                Slot::Whole(Value::Scalar(_)) => {}
                Slot::Whole(_) | Slot::Dynptr(_) => return Err(Unreadable::PartOfPointer),
            }
        }
        Ok(())
    }

    /// Returns the slots of the dynptr at `offset`, if that can be a place for one: the low half first.
    fn halves(offset: i64) -> Option<[usize; 2]> {
        let is_place = offset % SLOT as i64 == 0 && (-(FRAME as i64)..=-DYNPTR).contains(&offset);
        // Slots count downwards from the end.
        is_place.then(|| (-offset) as usize / SLOT - 1).map(|low| [low, low - 1])
    }

    /// Whether there can be a dynptr at `offset`.
    pub(super) fn has_place(offset: i64) -> bool {
        Self::halves(offset).is_some()
    }

    /// Returns the dynptr that begins at `offset`.
    pub(super) fn dynptr(&self, offset: i64) -> Option<Dynptr> {
        match self.slots.get(Self::halves(offset)?[0]) {
            Some(Slot::Dynptr(dynptr)) if dynptr.half == Half::Low => Some(*dynptr),
            _ => None,
        }
    }

    /// Notes that there is a dynptr at `offset`, which is a [place](Self::has_place) for one.
    pub(super) fn put_dynptr(&mut self, offset: i64, id: u32, of: Backing) {
        for (index, half) in Self::halves(offset).into_iter().flatten().zip([Half::Low, Half::High]) {
            *self.slot_mut(index) = Slot::Dynptr(Dynptr { id, of, half });
        }
    }

    /// Forgets dynptrs that overlap the `len` bytes at `offset`; an error if one of them must be given back.
    pub(super) fn overwrite(&mut self, offset: i64, len: usize) -> Result<(), Dynptr> {
        for index in Self::bytes(offset, len).map(|(index, _)| index) {
            let Some(Slot::Dynptr(dynptr)) = self.slots.get(index).copied() else { continue };
            if dynptr.of == Backing::Record {
                return Err(dynptr);
            }
            let other = if dynptr.half == Half::Low { index - 1 } else { index + 1 };
            (self.slots[index], self.slots[other]) = (Slot::UNSET, Slot::UNSET);
        }
        Ok(())
    }

    /// Forgets the dynptrs of this instruction.
    fn forget_dynptrs(&mut self, id: u32) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Dynptr(dynptr) if dynptr.id == id) {
                *slot = Slot::UNSET;
            }
        }
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

    /// Returns what is read at `offset`, and of what it was made.
    pub(super) fn read(&self, offset: i64, size: Size) -> Result<(Value, Sources), Unreadable> {
        let slot = |index: usize| self.slots.get(index).copied().unwrap_or(Slot::UNSET);
        if let Some(Slot::Whole(value)) = Self::whole(offset, size).map(slot) {
            return Ok((value, Sources::NONE));
        }
        self.read_all(offset, size.bytes())?;
        let (number, sources) = match Self::part(offset, size).map(|(index, at)| (slot(index), at)) {
            Some((Slot::Bytes(written), at)) => (written.get(at, size), Sources::PARTS),
            Some((Slot::Whole(Value::Scalar(number)), at)) => (Some(number.part(at, size)), Sources::NONE),
            _ => (None, Sources::NONE),
        };
        let unknown = (Scalar::of_size(size), Sources::NONE);
        let (number, sources) = number.map_or(unknown, |number| (number, sources));
        Ok((Value::Scalar(number), sources))
    }
}

/// Why bytes of the stack cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unreadable {
    /// Nothing was written there.
    Unset,
    /// They are part of a pointer.
    PartOfPointer,
}

/// All active functions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    /// The outermost first; never empty.
    pub(super) frames: Vec<Frame>,
    /// Records to be given back, by the instructions that reserved them.
    pub(super) records: Vec<u32>,
    /// The lock that is held.
    pub(super) lock: Option<Held>,
}

/// A lock that is held: of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// The map.
    pub(super) map: u32,
    /// Which of its values.
    pub(super) id: u32,
    /// The instruction that has taken it.
    pub(super) at: u32,
}

impl State {
    pub(super) fn new() -> Self {
        Self { frames: Vec::from([Frame::new(0, 0)]), records: Vec::new(), lock: None }
    }

    /// Whether only the program's own function is active, and nobody but the host has called it.
    pub(super) fn is_program(&self) -> bool {
        matches!(&*self.frames, [own] if own.instance == 0)
    }

    pub(super) fn top(&self) -> &Frame {
        self.frames.last().expect("a function is active")
    }

    pub(super) fn top_mut(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a function is active")
    }

    /// Returns how many values it has: what keeping it costs.
    pub(super) fn weight(&self) -> usize {
        self.frames.iter().map(|frame| frame.registers.len() + frame.slots.len()).sum()
    }

    /// Forgets what nobody looks at again, before instruction `at`; `live` tells it for every instruction.
    pub(super) fn forget(&mut self, at: usize, live: &[u16]) {
        /// `r6` to `r10`, which calls keep.
        const KEPT: u16 = 0b111_1100_0000;
        let (top, callers) = self.frames.split_last_mut().expect("a function is active");
        top.forget_all_but(live[at]);
        for caller in callers {
            caller.forget_all_but(live[caller.next] & KEPT);
        }
    }

    /// Whether every program that is right from here is right from `other`.
    pub(super) fn includes(&self, other: &Self) -> bool {
        self.holds_what(other)
            && self.frames.len() == other.frames.len()
            && self.frames.iter().zip(&other.frames).all(|(frame, other)| frame.includes(other))
    }

    /// Returns a state that includes both, and is the same again after few rounds of a loop. Both have the same
    /// functions active.
    pub(super) fn widened(&self, other: &Self) -> Self {
        let frames = self.frames.iter().zip(&other.frames).map(|(frame, other)| frame.widened(other)).collect();
        Self { frames, records: other.records.clone(), lock: other.lock }
    }

    /// Whether both hold the same records, and the same lock.
    fn holds_what(&self, other: &Self) -> bool {
        self.records == other.records && self.lock == other.lock
    }

    /// Whether the same functions are active, with the same records and the same lock.
    pub(super) fn has_functions_of(&self, other: &Self) -> bool {
        self.holds_what(other)
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

    /// Forgets what the call in this instruction returned before: a comparison would tell about both.
    pub(super) fn renew(&mut self, id: u32) {
        self.change(|value| if matches!(value, Value::Maybe(_, of) if of == id) { Value::Unset } else { value });
        self.forget_locks(id);
    }

    /// Forgets which values were found in this way before: they have the memory, but their locks are no longer known.
    fn forget_locks(&mut self, id: u32) {
        self.change(|value| match value {
            Value::Pointer(Area::Lockable { map, id: of }, offset) if of == id => {
                Value::Pointer(Area::MapValue(map), offset)
            }
            value => value,
        });
    }

    /// Returns the value that a helper passes to a function, which is about to be entered.
    pub(super) fn value_for_function(&mut self, map: u32, has_lock: bool) -> Area {
        if !has_lock {
            return Area::MapValue(map);
        }
        let id = each(self.frames.len());
        self.forget_locks(id);
        Area::Lockable { map, id }
    }

    /// Notes that what the call in this instruction returned is an area, or 0.
    pub(super) fn resolve(&mut self, id: u32, area: Option<Area>) {
        let known = match area {
            None => Value::Scalar(Scalar::constant(0)),
            Some(Area::Inner(map)) => Value::Map(map),
            Some(area) => Value::Pointer(area, Scalar::constant(0)),
        };
        let mut is_record = false;
        self.change(|value| match value {
            Value::Maybe(of, by) if by == id => {
                is_record |= matches!(of, Area::Record { .. } | Area::Object { .. });
                known
            }
            value => value,
        });
        if area.is_none() && is_record {
            // There is nothing to give back.
            self.records.retain(|record| *record != id);
        }
    }

    /// Notes that a record is given back.
    pub(super) fn release(&mut self, id: u32) {
        self.records.retain(|record| *record != id);
        let is_of = |value: &Value| match value {
            Value::Pointer(
                Area::Record { id: of, .. } | Area::Slice { id: of, .. } | Area::Object { id: of, .. },
                _,
            ) => *of == id,
            Value::Maybe(Area::Slice { id: of, .. }, _) | Value::Sample(of) => *of == id,
            _ => false,
        };
        self.change(|value| if is_of(&value) { Value::Unset } else { value });
        self.frames.iter_mut().for_each(|frame| frame.forget_dynptrs(id));
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
