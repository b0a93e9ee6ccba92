//! What an instruction looks at.

use alloc::vec::Vec;

use crate::insn::{Instruction, Register, Size};
use crate::interp::FRAME;
use crate::verify::live::written_and_read;
use crate::verify::state::{Area, Place, State, Value, slots};

/// Iterates over the registers that have a bit.
fn registers(bits: u16) -> impl Iterator<Item = Register> {
    Register::ALL.into_iter().filter(move |register| bits & 1 << register.number() != 0)
}

/// Returns the slots of a stack that `len` bytes at `register + offset` may be in.
fn stack_of(state: &State, register: Register, offset: i64, len: i64) -> Vec<Place> {
    match state.top().get(register) {
        Value::Pointer(Area::Stack(depth), start) => {
            let first = (start.signed_min() + offset).max(-(FRAME as i64));
            let end = (start.signed_max() + offset + len).min(0);
            slots(first, end - first).map(|slot| Place::Slot(*depth, slot)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the bytes of the stack at `r10` or another register from which an instruction loads.
fn loaded(instruction: &Instruction) -> Option<(Register, i16, Size)> {
    match *instruction {
        Instruction::Load { size, base, offset, .. } | Instruction::LoadAcquire { size, base, offset, .. } => {
            Some((base, offset, size))
        }
        _ => None,
    }
}

/// Returns what an instruction looks at in a state.
pub(super) fn reads(instruction: &Instruction, state: &State) -> Vec<Place> {
    let depth = state.frames.len() - 1;
    let mut places: Vec<Place> = match instruction {
        // What a helper returns does not depend on what it gets, as far as is known.
        Instruction::Call(_) => Vec::new(),
        _ => registers(written_and_read(instruction).1).map(|register| Place::Register(depth, register)).collect(),
    };
    if let Some((base, offset, size)) = loaded(instruction) {
        places.extend(stack_of(state, base, offset.into(), size.bytes() as i64));
    }
    places
}
