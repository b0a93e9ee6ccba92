//! On which numbers something depends: states need not agree in others.

use super::{Frame, Parts, State, Value};
use crate::insn::Register;

/// Registers of the function that was innermost in the last kept state of a way, a bit for each: those on whose numbers
/// something depends. One more bit stands for all numbers in parts of slots of all stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::verify) struct Sources(u16);

impl Sources {
    pub(in crate::verify) const NONE: Self = Self(0);
    pub(in crate::verify) const ALL: Self = Self(u16::MAX);
    /// Numbers in parts of slots.
    pub(in crate::verify) const PARTS: Self = Self(1 << 11);

    /// All of both.
    pub(in crate::verify) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not among `others`.
    pub(in crate::verify) const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    const fn has(self, index: usize) -> bool {
        self.0 & 1 << index != 0
    }

    /// Those among them that are in parts of slots.
    const fn parts(self) -> Self {
        Self(self.0 & Self::PARTS.0)
    }

    /// What counts in slots, if something depends on these.
    fn counted(self) -> Parts {
        if self.parts() == Self::NONE { Parts::Bytes } else { Parts::Numbers }
    }
}

/// What the numbers in the registers of a function were made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Origins([Sources; 11]);

impl Origins {
    /// Returns what those of `registers` were made of.
    pub(in crate::verify) fn of(&self, registers: Sources) -> Sources {
        let used = (0..self.0.len()).filter(|index| registers.has(*index));
        // Numbers in slots are from slots of the last kept state, or their sources were used when they were stored.
        used.fold(registers.parts(), |all, index| all.and(self.0[index]))
    }
}

impl Frame {
    /// Returns of what the number in a register was made.
    pub(in crate::verify) fn sources_of(&self, register: Register) -> Sources {
        self.sources[usize::from(register.number())]
    }

    /// As `includes`, except that registers that are not among `used` need only both have a number, whichever.
    fn covers(&self, other: &Self, used: Sources) -> bool {
        let is_any = |index: usize| {
            let are_numbers =
                matches!((self.registers[index], other.registers[index]), (Value::Scalar(_), Value::Scalar(_)));
            are_numbers && !used.has(index)
        };
        self.is_function_of(other)
            && (0..self.registers.len())
                .all(|index| is_any(index) || self.registers[index].includes(&other.registers[index]))
            && self.stack_includes(other, used.counted())
    }
}

impl State {
    /// As [`includes`](Self::includes), except that those registers of the innermost function that are not among `used`
    /// need only both have a number, whichever; and so do parts of slots.
    pub(in crate::verify) fn covers(&self, other: &Self, used: Sources) -> bool {
        let (Some((top, callers)), Some((other_top, other_callers))) =
            (self.frames.split_last(), other.frames.split_last())
        else {
            return false;
        };
        self.holds_what(other)
            && callers.len() == other_callers.len()
            && callers.iter().zip(other_callers).all(|(frame, other)| frame.includes_with(other, used.counted()))
            && top.covers(other_top, used)
    }

    /// Returns what numbers of functions around the innermost one were made of.
    pub(in crate::verify) fn sources_of_callers(&self) -> Sources {
        let callers = &self.frames[..self.frames.len() - 1];
        callers.iter().flat_map(|frame| frame.sources).fold(Sources::NONE, Sources::and)
    }

    /// Returns what the numbers of the innermost function were made of.
    pub(in crate::verify) fn origins(&self) -> Origins {
        Origins(self.top().sources)
    }

    /// Notes that the state is kept: from now on numbers are made of its own.
    pub(in crate::verify) fn begin_origins(&mut self) {
        for frame in &mut self.frames {
            frame.sources = [Sources::NONE; 11];
        }
        let top = self.top_mut();
        for (index, sources) in top.sources.iter_mut().enumerate() {
            if matches!(top.registers[index], Value::Scalar(_)) {
                *sources = Sources(1 << index);
            }
        }
    }
}
