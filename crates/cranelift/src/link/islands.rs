//! What stands behind a function's code in its program: address slots and veneers.

use std::collections::HashMap;

use crate::arch::{Machine, Role};
use crate::definition::{Fixup, Target};

/// Bytes of an address slot, and the alignment of slots and veneers.
const SLOT: usize = 8;

/// Offsets, in bytes from the function's start, of the slots and veneers that its code may need.
///
/// One slot or veneer serves every reference to the same target from the same function. They lie in the function's own
/// program, so they are in reach whenever the function is not larger than the reach itself, and are freed with it.
pub(super) struct Islands {
    slots: HashMap<Target, usize>,
    /// By callee: the target and the distance of the callee from the target's start.
    veneers: HashMap<(Target, i64), usize>,
    end: usize,
}

impl Islands {
    /// The islands of data, which has no code to reach anything from.
    pub(super) fn none() -> Self {
        Self { slots: HashMap::new(), veneers: HashMap::new(), end: 0 }
    }

    /// Lays out what `fixups` of a function of `code_len` bytes may need; `may_be_far` tells for which calls it cannot
    /// be excluded that the callee is out of reach.
    pub(super) fn plan<E>(
        machine: &dyn Machine,
        code_len: usize,
        fixups: &[Fixup],
        mut may_be_far: impl FnMut(&Fixup) -> Result<bool, E>,
    ) -> Result<Self, E> {
        let mut islands = Self { end: code_len, ..Self::none() };
        for fixup in fixups {
            match fixup.role {
                Role::Slot if !islands.slots.contains_key(&fixup.target) => {
                    let offset = islands.append(SLOT);
                    islands.slots.insert(fixup.target, offset);
                }
                Role::Call => {
                    let callee = callee(machine, fixup);
                    if !islands.veneers.contains_key(&callee) && may_be_far(fixup)? {
                        let offset = islands.append(machine.veneer_len());
                        islands.veneers.insert(callee, offset);
                    }
                }
                _ => {}
            }
        }
        Ok(islands)
    }

    fn append(&mut self, len: usize) -> usize {
        let offset = self.end.next_multiple_of(SLOT);
        self.end = offset + len;
        offset
    }

    /// Bytes of code, slots and veneers together.
    pub(super) fn program_len(&self) -> usize {
        self.end
    }

    /// Alignment that the program needs for the sake of the islands.
    pub(super) fn align(&self) -> usize {
        if self.slots.is_empty() && self.veneers.is_empty() { 1 } else { SLOT }
    }

    /// Offset of the slot for `fixup`'s target.
    pub(super) fn slot(&self, fixup: &Fixup) -> Option<usize> {
        self.slots.get(&fixup.target).copied()
    }

    /// Offset of the veneer for `fixup`'s callee.
    pub(super) fn veneer(&self, machine: &dyn Machine, fixup: &Fixup) -> Option<usize> {
        self.veneers.get(&callee(machine, fixup)).copied()
    }
}

/// What a call reaches: the target, and the distance of the callee from it.
fn callee(machine: &dyn Machine, fixup: &Fixup) -> (Target, i64) {
    let offset = fixup.addend.wrapping_add(machine.call_bias());
    (fixup.target, offset)
}
