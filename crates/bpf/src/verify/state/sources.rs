//! On which numbers something depends: states need not agree in others.

use super::frame::Frame;
use super::slot::Slot;
use super::{Effort, Links, State, Value};
use crate::insn::Register;

/// Numbers of the last kept state of a way, a bit for each: of registers of the function that was innermost there, and
/// of whole slots of all stacks, which share bits if there are many. One more bit stands for all numbers in parts of
/// slots, and one for all links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::verify) struct Sources(u64);

impl Sources {
    pub(in crate::verify) const NONE: Self = Self(0);
    pub(in crate::verify) const ALL: Self = Self(u64::MAX);
    /// Numbers in parts of slots.
    const PARTS: Self = Self(1 << 11);
    /// Links: a number was learned by one.
    pub(in crate::verify) const LINKS: Self = Self(1 << 12);
    /// The first bit of slots, and how many there are.
    const SLOTS: (usize, usize) = (13, 51);

    /// The number in a slot of the function with `depth` functions around it.
    const fn of_slot(depth: usize, index: usize) -> Self {
        // No more slots than that are in a frame.
        const APART: usize = 64;
        let (first, count) = Self::SLOTS;
        Self(1 << (first + (APART * depth + index) % count))
    }

    /// All of both.
    pub(in crate::verify) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not among `others`.
    pub(in crate::verify) const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Those of both.
    const fn among(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether a register of the innermost function is among them.
    pub(super) const fn has_register(self, index: usize) -> bool {
        self.0 & 1 << index != 0
    }

    /// Whether a whole slot is.
    pub(super) const fn has_slot(self, depth: usize, index: usize) -> bool {
        !self.among(Self::of_slot(depth, index)).is_none()
    }

    /// Whether numbers in parts of slots are.
    pub(super) const fn has_parts(self) -> bool {
        !self.among(Self::PARTS).is_none()
    }

    /// Whether links are.
    pub(super) const fn has_links(self) -> bool {
        !self.among(Self::LINKS).is_none()
    }
}

impl Frame {
    /// Returns of what the number in a register was made.
    pub(in crate::verify) fn sources_of(&self, register: Register) -> Sources {
        self.content(register).sources
    }

    /// As `includes`, except that numbers that are not among `used` need only both be numbers, whichever.
    fn covers(&self, other: &Self, depth: usize, used: Sources, effort: &Effort) -> bool {
        let is_any = |index: usize| {
            let both = (&self.registers[index].value, &other.registers[index].value);
            let are_numbers = matches!(both, (Value::Scalar(_), Value::Scalar(_)));
            are_numbers && !used.has_register(index)
        };
        let covers = |index: usize| is_any(index) || self.includes_register(other, index);
        self.is_function_of(other)
            && effort.all(self.set_registers().map(covers))
            && self.stack_includes(other, depth, used, effort)
    }

    /// Whether the stack includes that of `other`; of numbers that are not among `used`, only that there are some.
    pub(super) fn stack_includes(&self, other: &Self, depth: usize, used: Sources, effort: &Effort) -> bool {
        effort.all((0..self.slots.len()).map(|index| {
            let other = other.slots.get(index).unwrap_or(&Slot::UNSET);
            match &self.slots[index] {
                Slot::Bytes(written) if !used.has_parts() => Slot::Bytes(written.without_numbers()).includes(other),
                Slot::Whole(content) if content.number().is_some() && !used.has_slot(depth, index) => other.is_number(),
                slot => slot.includes(other),
            }
        }))
    }
}

impl State {
    /// As [`includes`](Self::includes), except that numbers that are not among `used` need only both be numbers,
    /// whichever; and links need not be the same unless they are among `used`. Numbers in registers of functions around
    /// the innermost one are always used.
    pub(in crate::verify) fn covers(&self, links: &Links, other: &Self, used: Sources, effort: &Effort) -> bool {
        let (Some((top, callers)), Some((other_top, other_callers))) =
            (self.frames.split_last(), other.frames.split_last())
        else {
            return false;
        };
        let around = callers.iter().zip(other_callers).enumerate();
        effort.add(self.frames.len() + self.records.len());
        self.holds_what(other)
            && callers.len() == other_callers.len()
            && around.into_iter().all(|(depth, (frame, other))| frame.includes_with(other, depth, used, effort))
            && top.covers(other_top, callers.len(), used, effort)
            && (!used.has_links() || links.are_in(other, used, effort))
    }

    /// Returns what numbers of functions around the innermost one were made of.
    pub(in crate::verify) fn sources_of_callers(&self) -> Sources {
        let callers = &self.frames[..self.frames.len() - 1];
        callers.iter().flat_map(|frame| &frame.registers).fold(Sources::NONE, |all, content| all.and(content.sources))
    }

    /// Returns what those numbers were made of that are where `kept`, a state with the same functions, has those of
    /// `used`.
    pub(in crate::verify) fn made_of(&self, used: Sources, kept: &Self) -> Sources {
        let top = self.top().registers.iter().enumerate().filter(|(index, _)| used.has_register(*index));
        // A link is one of the last kept state, or of numbers that were copied since then.
        let links = used.among(Sources::LINKS);
        let mut all = top.fold(links, |all, (_, content)| all.and(content.sources));
        if used.without(Sources::LINKS).0 >> Sources::PARTS.0.trailing_zeros() == 0 {
            return all;
        }
        for (depth, (frame, kept)) in self.frames.iter().zip(&kept.frames).enumerate() {
            for (index, slot) in frame.slots.iter().enumerate() {
                let is_whole = matches!(kept.slots.get(index), Some(Slot::Whole(_)));
                let is_used = if is_whole { used.has_slot(depth, index) } else { used.has_parts() };
                if let (Slot::Whole(content), true) = (slot, is_used) {
                    all = all.and(content.sources);
                }
            }
            if used.has_parts() {
                all = all.and(frame.parts);
            }
        }
        all
    }

    /// Notes that the state is kept: from now on numbers are made of its own.
    pub(in crate::verify) fn begin_sources(&mut self) {
        for (depth, frame) in self.frames.iter_mut().enumerate() {
            frame.registers.iter_mut().for_each(|content| content.sources = Sources::NONE);
            frame.parts = Sources::PARTS;
            for (index, slot) in frame.slots.iter_mut().enumerate() {
                if let Slot::Whole(content) = slot {
                    let is_number = content.number().is_some();
                    content.sources = if is_number { Sources::of_slot(depth, index) } else { Sources::NONE };
                }
            }
        }
        for (index, content) in self.top_mut().registers.iter_mut().enumerate() {
            if content.number().is_some() {
                content.sources = Sources(1 << index);
            }
        }
    }
}
