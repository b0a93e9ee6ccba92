//! Which steps of a way matter for why a program is refused.
//!
//! Goes backwards from the refusal: what it is about, what that was made of, and so on. Comparisons, calls and returns
//! are always among them, since they say how the way went, and so is what must be given back.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::reads::reads;
use super::watch::Way;
use crate::insn::{Callee, Instruction, Register, Size};
use crate::verify::fault::Fault;
use crate::verify::live::written_and_read;
use crate::verify::state::{Area, Place, State, Value, slots};

/// Returns what a refusal is about.
fn subject(instruction: &Instruction, fault: &Fault, state: &State) -> BTreeSet<Place> {
    let depth = state.frames.len() - 1;
    let named = fault.register().map(|register| Place::Register(depth, register));
    let mut places: BTreeSet<Place> = reads(instruction, state).into_iter().chain(named).collect();
    if let (Instruction::Call(_), None) = (instruction, named) {
        // It may be any argument.
        let arguments = Register::ALL[1..6].iter().copied();
        places.extend(arguments.map(|register| Place::Register(depth, register)));
    }
    if let Fault::StackUnset { offset, len } | Fault::PartOfAddress { offset, len } = *fault {
        let about = Register::ALL.into_iter().filter(|register| places.contains(&Place::Register(depth, *register)));
        let stacks: Vec<usize> = about
            .filter_map(|register| match state.top().get(register) {
                Value::Pointer(Area::Stack(depth), _) => Some(*depth),
                _ => None,
            })
            .collect();
        for stack in stacks {
            places.extend(slots(offset, len as i64).map(|slot| Place::Slot(stack, slot)));
        }
    }
    places
}

/// Returns for each step whether it matters, and what of the state before the first one does.
pub(super) fn matter(way: &Way, fault: &Fault) -> (Vec<bool>, BTreeSet<Place>) {
    let mut shown = alloc::vec![false; way.entries.len()];
    let Some((last, earlier)) = way.entries.split_last() else { return (shown, BTreeSet::new()) };
    let mut wanted = subject(&last.instruction, fault, &way.state);
    if let Some(shown) = shown.last_mut() {
        *shown = true;
    }
    // What does not end does so by all that is compared.
    let is_long = fault.may_be_fuelled();
    for (entry, shown) in earlier.iter().zip(&mut shown).rev() {
        let instruction = &entry.instruction;
        let changes = || entry.changes.iter().map(|(place, _)| *place);
        let is_wanted = changes().any(|place| wanted.contains(&place));
        let is_held = changes().any(|place| matches!(place, Place::Records | Place::Lock));
        let is_turn = matches!(
            instruction,
            Instruction::Branch { .. } | Instruction::MayGoto { .. } | Instruction::Call(_) | Instruction::Exit
        );
        let is_forgotten = entry.forgotten.iter().any(|(place, _)| wanted.contains(place));
        *shown = is_wanted || is_held || is_turn || is_forgotten;
        let is_compared = is_long && matches!(instruction, Instruction::Branch { .. });
        if !is_wanted && !is_compared {
            wanted.retain(|place| !is_inside(*place, entry.depth));
            continue;
        }
        let mut made_of: Vec<Place> = entry.reads.clone();
        let written = written_and_read(instruction).0;
        for place in changes().filter(|place| wanted.contains(place)).collect::<Vec<Place>>() {
            match (place, instruction) {
                (Place::Register(depth, register), Instruction::Call(Callee::Local(_))) if depth > entry.depth => {
                    made_of.push(Place::Register(entry.depth, register));
                }
                (Place::Register(depth, register), _)
                    if depth < entry.depth || written & 1 << register.number() != 0 =>
                {
                    wanted.remove(&place);
                }
                (Place::Slot(..), Instruction::Store { size: Size::Double, .. }) => {
                    wanted.remove(&place);
                }
                _ => {}
            }
        }
        wanted.retain(|place| !is_inside(*place, entry.depth));
        wanted.extend(made_of);
    }
    (shown, wanted)
}

/// Whether a place is one of functions that were not called yet in a function with so many around it.
fn is_inside(place: Place, depth: usize) -> bool {
    matches!(place, Place::Register(of, _) | Place::Slot(of, _) if of > depth)
}
