//! What is known at one place of a program: the registers and stack of every active function.

mod change;
mod effort;
mod frame;
mod link;
mod slot;
mod sources;
mod stack;
mod written;

use alloc::vec::Vec;

pub(super) use change::{Known, Part, Place, slots};
pub(super) use effort::Effort;
pub(super) use frame::{Callback, Content, Frame};
pub(super) use link::{Link, Links};
pub(crate) use slot::Backing;
pub(super) use slot::{DYNPTR, Dynptr};
pub(super) use sources::Sources;
pub(super) use stack::Unreadable;

use super::scalar::Scalar;
use crate::code::MOST_SLOTS;

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

/// Added to the number of a call for each further one of the same instruction: more than there are instructions.
pub(super) const GENERATION: u32 = 1 << 20;
const _: () = assert!(MOST_SLOTS < GENERATION as usize);
/// Results of one instruction that are told apart while nobody has compared them with 0.
const GENERATIONS: u32 = 4;

/// Returns what an earlier call of the instruction has returned that makes another one. What lock it has is no longer
/// known.
const fn older(area: Area, id: u32) -> Value {
    let area = match area {
        Area::Lockable { map, .. } => Area::MapValue(map),
        area => area,
    };
    if id / GENERATION + 1 < GENERATIONS { Value::Maybe(area, id + GENERATION) } else { Value::Unset }
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
    /// The beginning of an area, or 0: the result of the call in this instruction, or of an [older](older) one, so that
    /// comparing one copy tells about all.
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
    /// How many values take as much room as what explorers keep beside its frames and records.
    pub(super) const BESIDE: usize = 3;

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

    /// Returns how many values it has: what keeping it costs, with all that is kept beside it.
    pub(super) fn weight(&self) -> usize {
        self.frames.iter().map(Frame::weight).sum::<usize>() + self.records.len() + Self::BESIDE
    }

    /// Forgets what nobody looks at again, before instruction `at`; `live` tells it for every instruction.
    pub(super) fn forget(&mut self, at: usize, live: &[u16]) {
        /// `r6` to `r10`, which calls keep.
        const KEPT: u16 = 0b111_1100_0000;
        let (top, callers) = self.frames.split_last_mut().expect("a function is active");
        top.forget_all_but(live[at]);
        for caller in callers {
            caller.forget_all_but(live[caller.next as usize] & KEPT);
        }
    }

    /// Whether every program that is right from here, where these are the `links`, is right from `other`.
    pub(super) fn includes(&self, links: &Links, other: &Self, effort: &Effort) -> bool {
        effort.add(self.frames.len() + self.records.len());
        self.holds_what(other)
            && self.frames.len() == other.frames.len()
            && self
                .frames
                .iter()
                .zip(&other.frames)
                .enumerate()
                .all(|(depth, (frame, other))| frame.includes_with(other, depth, Sources::ALL, effort))
            && links.are_in(other, Sources::ALL, effort)
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

    /// Tells what the call in this instruction returned before from what it is about to return: a comparison would tell
    /// about both.
    pub(super) fn renew(&mut self, id: u32, effort: &Effort) {
        effort.add(self.weight());
        self.change(|value| match value {
            Value::Maybe(area, of) if of % GENERATION == id => older(area, of),
            value => value,
        });
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
    pub(super) fn resolve(&mut self, id: u32, area: Option<Area>, effort: &Effort) {
        effort.add(self.weight());
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
    pub(super) fn release(&mut self, id: u32, effort: &Effort) {
        effort.add(self.weight());
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
