//! Islands: address slots and veneers behind a function's code in its program.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Encoder, Role};

/// Bytes of an address slot, and the alignment of slots and veneers.
const SLOT: usize = 8;

/// What a field of a function refers to.
#[derive(Clone, Copy, Debug)]
pub struct Reference<T> {
    /// What the field needs.
    pub role: Role,
    /// The symbol, as its compiler knows it.
    pub target: T,
    /// Bytes to be added to the symbol's address.
    pub addend: i64,
}

/// Offsets, in bytes from the function's start, of the slots and veneers that its code may need.
///
/// One slot or veneer serves every reference to the same target from the same function. They lie in the function's own
/// program, so they are in reach whenever the function is not larger than the reach itself, and are freed with it.
#[derive(Debug)]
pub struct Islands<T> {
    slots: HashMap<T, usize>,
    /// By callee: the target and the distance of the callee from the target's start.
    veneers: HashMap<(T, i64), usize>,
    end: usize,
}

impl<T: Copy + Eq + Hash> Islands<T> {
    /// Creates the islands of data, which has no code that needs any.
    pub fn none() -> Self {
        Self { slots: HashMap::new(), veneers: HashMap::new(), end: 0 }
    }

    /// Lays out what `fixups` of a function of `code_len` bytes may need; `may_be_far` tells of each call whether its
    /// callee may be out of reach.
    pub fn plan<E>(
        encoder: &dyn Encoder,
        code_len: usize,
        references: impl IntoIterator<Item = Reference<T>>,
        mut may_be_far: impl FnMut(&Reference<T>) -> Result<bool, E>,
    ) -> Result<Self, E> {
        let mut islands = Self { end: code_len, ..Self::none() };
        for reference in references {
            match reference.role {
                Role::Slot if !islands.slots.contains_key(&reference.target) => {
                    let offset = islands.append(SLOT);
                    islands.slots.insert(reference.target, offset);
                }
                Role::Call => {
                    let callee = callee(encoder, &reference);
                    if !islands.veneers.contains_key(&callee) && may_be_far(&reference)? {
                        let offset = islands.append(encoder.veneer_len());
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

    /// Returns the bytes of code, slots and veneers together.
    pub fn program_len(&self) -> usize {
        self.end
    }

    /// Returns the alignment that the program needs because of the islands.
    pub fn align(&self) -> usize {
        if self.slots.is_empty() && self.veneers.is_empty() { 1 } else { SLOT }
    }

    /// Returns the offset of the slot for `target`.
    pub fn slot(&self, target: T) -> Option<usize> {
        self.slots.get(&target).copied()
    }

    /// Returns the offset of the veneer for the callee of `reference`.
    pub fn veneer(&self, encoder: &dyn Encoder, reference: &Reference<T>) -> Option<usize> {
        self.veneers.get(&callee(encoder, reference)).copied()
    }
}

/// Returns what a call reaches: the target, and the distance of the callee from it.
fn callee<T: Copy>(encoder: &dyn Encoder, reference: &Reference<T>) -> (T, i64) {
    let offset = reference.addend.wrapping_add(encoder.call_bias());
    (reference.target, offset)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::link::{Architecture, encoder};

    #[test]
    fn one_island_serves_all_references_to_its_target() {
        let encoder = encoder(Architecture::X86_64);
        let call = |target, addend| Reference { role: Role::Call, target, addend };
        let slot = |target| Reference { role: Role::Slot, target, addend: -4 };
        let references = [call('a', -4), slot('b'), call('a', -4), slot('b'), call('a', 8 - 4), call('c', -4)];
        let islands = Islands::plan(encoder, 13, references, |call| Ok::<_, Infallible>(call.target == 'a')).unwrap();
        assert_eq!((islands.veneer(encoder, &call('a', -4)), islands.slot('b')), (Some(16), Some(32)));
        // Another entry of the same symbol is another callee. A callee that cannot be far has no entry.
        assert_eq!((islands.veneer(encoder, &call('a', 4)), islands.veneer(encoder, &call('c', -4))), (Some(40), None));
        assert_eq!((islands.program_len(), islands.align()), (56, 8));
        assert_eq!((Islands::<char>::none().program_len(), Islands::<char>::none().align()), (0, 1));
    }
}
