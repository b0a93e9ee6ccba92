//! What two states differ in, place by place: for the log.

use alloc::vec::Vec;

use super::frame::{Frame, WRITABLE};
use super::slot::{Half, SLOT, Slot};
use super::{Backing, Held, State, Value};
use crate::insn::{Register, Size};
use crate::verify::scalar::Scalar;

/// Something that a state knows of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::verify) enum Place {
    /// A register of the function with so many around it.
    Register(usize, Register),
    /// 8 aligned bytes of its stack, at this distance from the end.
    Slot(usize, i64),
    /// What is to be given back.
    Records,
    /// The lock that is held.
    Lock,
}

/// What a state knows of a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::verify) enum Known {
    /// What a register or a whole slot holds.
    Value(Value),
    /// Bytes of a slot that were written: a bit for each, and the numbers that are known, with the byte where each
    /// begins.
    Bytes(u8, Vec<(u8, Size, Scalar)>),
    /// Part of the dynptr that the helper in this instruction made.
    Dynptr(u32, Backing, Part),
    /// The instructions that have got what is to be given back.
    Records(Vec<u32>),
    /// A lock, or none.
    Lock(Option<Held>),
}

/// Which part of a dynptr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) enum Part {
    Lower,
    Upper,
}

impl Known {
    /// Whether nothing is there.
    pub(in crate::verify) const fn is_nothing(&self) -> bool {
        matches!(self, Self::Value(Value::Unset | Value::Cleared))
    }

    fn of(slot: &Slot) -> Self {
        match slot {
            Slot::Bytes(written) => match written.parts() {
                (0, _) => Self::Value(Value::Unset),
                (bytes, numbers) => Self::Bytes(bytes, numbers),
            },
            Slot::Whole(content) => Self::Value(content.value),
            Slot::Dynptr(dynptr) => {
                let part = if dynptr.half == Half::Low { Part::Lower } else { Part::Upper };
                Self::Dynptr(dynptr.id, dynptr.of, part)
            }
        }
    }
}

/// The slots of this distance from the end of the stack.
fn offset(index: usize) -> i64 {
    -(((index + 1) * SLOT) as i64)
}

/// Returns the distances of the slots that the `len` bytes at `start` are in.
pub(in crate::verify) fn slots(start: i64, len: i64) -> impl Iterator<Item = i64> {
    let slot = SLOT as i64;
    (start.div_euclid(slot)..(start + len + slot - 1).div_euclid(slot)).map(move |index| index * slot)
}

impl Frame {
    /// Appends what this function's registers and stack hold that `before` did not.
    fn append_changes(&self, depth: usize, before: Option<&Self>, changes: &mut Vec<(Place, Known)>) {
        for register in &Register::ALL[..WRITABLE] {
            let old = before.map_or(Value::Unset, |before| *before.get(*register));
            let new = *self.get(*register);
            if old != new && (old.has_something() || new.has_something()) {
                changes.push((Place::Register(depth, *register), Known::Value(new)));
            }
        }
        for index in 0..self.slots.len().max(before.map_or(0, |before| before.slots.len())) {
            let of = |frame: &Self| frame.slots.get(index).map_or(Known::Value(Value::Unset), Known::of);
            let (old, new) = (before.map_or(Known::Value(Value::Unset), of), of(self));
            if old != new {
                changes.push((Place::Slot(depth, offset(index)), new));
            }
        }
    }

    /// Returns the bytes of the stack that are used.
    pub(in crate::verify) fn stack_len(&self) -> usize {
        self.slots.len() * SLOT
    }
}

impl Value {
    const fn has_something(&self) -> bool {
        !matches!(self, Self::Unset | Self::Cleared)
    }
}

impl State {
    /// Returns what this state knows that `before` did not, or knew otherwise; what that had of functions that were
    /// left is not told. Links and sources do not count.
    pub(in crate::verify) fn changes_since(&self, before: &Self) -> Vec<(Place, Known)> {
        let mut changes = Vec::new();
        for (depth, frame) in self.frames.iter().enumerate() {
            let same = before.frames.get(depth).filter(|old| old.instance == frame.instance);
            frame.append_changes(depth, same, &mut changes);
        }
        if self.records != before.records {
            changes.push((Place::Records, Known::Records(self.records.clone())));
        }
        if self.lock != before.lock {
            changes.push((Place::Lock, Known::Lock(self.lock)));
        }
        changes
    }

    /// Returns all that it knows.
    pub(in crate::verify) fn all_known(&self) -> Vec<(Place, Known)> {
        self.changes_since(&Self { frames: Vec::new(), records: Vec::new(), lock: None })
    }
}
