//! Look-ups in arrays whose map is known where they are called: no call is made.
//!
//! Compilers put the reference to the map right before the call. So what is known is looked for within a run of
//! instructions that nothing jumps into; a map that comes from further away is looked up by the helper.

use alloc::vec::Vec;

use super::Resolve;
use crate::code::Code;
use crate::insn::{Callee, Instruction, Register, Wide};

/// The number of the helper that looks keys up (`bpf_map_lookup_elem`).
const LOOK_UP: i32 = 1;

/// Where the values of an array lie, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArrayPlace {
    /// Address of the first.
    pub(crate) values: u64,
    /// How many there are.
    pub(crate) count: u32,
    /// Bytes from one to the next.
    pub(crate) stride: u32,
}

/// Calls that are look-ups in arrays, by instruction, in order.
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
