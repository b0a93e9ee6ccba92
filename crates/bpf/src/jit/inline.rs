//! Look-ups in arrays whose map is known at the call: made in place, without a call.
//!
//! Compilers put the reference to the map right before the call. So the map is looked for within a run of instructions
//! that nothing jumps into; if it comes from further away, the helper looks it up.

use alloc::vec::Vec;

use super::Resolve;
use crate::code::Code;
use crate::insn::{Callee, Instruction, Register, Wide};
use crate::map::ArrayPlace;

/// The number of the helper that looks keys up (`bpf_map_lookup_elem`).
const LOOK_UP: i32 = 1;

/// Returns the calls that are look-ups in arrays, by instruction, in order.
pub(super) fn lookups(code: &Code, resolve: &dyn Resolve) -> Vec<(usize, ArrayPlace)> {
    let instructions = code.instructions();
    let is_lookup = |instruction: &Instruction| matches!(instruction, Instruction::Call(Callee::Helper(LOOK_UP)));
    if !instructions.iter().any(is_lookup) {
        return Vec::new();
    }
    let mut begins = alloc::vec![false; instructions.len()];
    code.functions().for_each(|first| begins[first] = true);
    for (index, instruction) in instructions.iter().enumerate() {
        let distance = match *instruction {
            Instruction::Jump { offset, .. } => offset,
            Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => offset.into(),
            _ => continue,
        };
        if let Some(target) = code.target(index, distance) {
            begins[target] = true;
        }
    }
    let mut lookups = Vec::new();
    // The map that `r1` refers to.
    let mut known: Option<i32> = None;
    for (index, instruction) in instructions.iter().enumerate() {
        if begins[index] {
            known = None;
        }
        match *instruction {
            Instruction::LoadWide { dst: Register::R1, value: Wide::MapByIndex(map) } => known = Some(map),
            Instruction::Call(callee) => {
                if callee == Callee::Helper(LOOK_UP)
                    && let Some(place) = known.and_then(|map| resolve.array(map))
                {
                    lookups.push((index, place));
                }
                known = None;
            }
            _ => {
                let mut names = false;
                instruction.each_register(|register| names |= register == Register::R1);
                if names {
                    known = None;
                }
            }
        }
    }
    lookups
}
