//! Which registers are read again: goes backwards over the instructions until nothing is added.
//!
//! An instruction is looked at again when one after it has changed, which happens at most once for each register: the
//! time grows with the number of instructions, whichever way jumps go.

use alloc::vec::Vec;

use crate::code::Code;
use crate::insn::{AluOp, AtomicOp, Callee, Instruction, Operand, Register};

const fn bit(register: Register) -> u16 {
    1 << register.number()
}

/// `r1` to `r5`.
const ARGUMENTS: u16 = 0b11_1110;
/// `r0` to `r5`.
const LOST: u16 = 0b11_1111;

/// Returns for each instruction at least the registers that it or a later one may read before they are written.
pub(super) fn live(code: &Code) -> Vec<u16> {
    looked_at(code).0
}

/// Returns the same, and how many instructions were looked at for it.
fn looked_at(code: &Code) -> (Vec<u16>, usize) {
    let instructions = code.instructions();
    let mut live = alloc::vec![0_u16; instructions.len()];
    for index in (0..instructions.len()).rev() {
        live[index] = before(code, index, &live);
    }
    // Instructions that lead back: their targets were not known yet when they were looked at.
    let mut waiting: Vec<usize> = code.jumps_back().map(|(_, jump)| jump).collect();
    waiting.reverse();
    let mut count = instructions.len();
    if waiting.is_empty() {
        return (live, count);
    }
    // Targets, and who jumps there, in order.
    let mut jumps = Vec::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let distance = match *instruction {
            Instruction::Jump { offset, .. } => offset,
            Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => offset.into(),
            _ => continue,
        };
        jumps.extend(code.target(index, distance).map(|target| (target, index)));
    }
    jumps.sort_unstable();
    let mut is_waiting = alloc::vec![false; instructions.len()];
    waiting.iter().for_each(|index| is_waiting[*index] = true);
    while let Some(index) = waiting.pop() {
        count += 1;
        is_waiting[index] = false;
        let before = before(code, index, &live);
        if live[index] == before {
            continue;
        }
        live[index] = before;
        let first = jumps.partition_point(|(target, _)| *target < index);
        let here = jumps[first..].iter().take_while(|(target, _)| *target == index).map(|(_, from)| *from);
        for earlier in here.chain(index.checked_sub(1)) {
            if !core::mem::replace(&mut is_waiting[earlier], true) {
                waiting.push(earlier);
            }
        }
    }
    (live, count)
}

/// Returns what is read from instruction `index` on, if `live` tells it for everything that follows.
fn before(code: &Code, index: usize, live: &[u16]) -> u16 {
    let instruction = &code.instructions()[index];
    let target = |distance: i32| code.target(index, distance).map_or(0, |target| live[target]);
    let behind = live.get(index + 1).copied().unwrap_or(0);
    let after = match *instruction {
        Instruction::Exit => bit(Register::R0),
        Instruction::Jump { offset, .. } => target(offset),
        Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => behind | target(offset.into()),
        _ => behind,
    };
    let (written, read) = written_and_read(instruction);
    after & !written | read
}

/// Returns the registers that an instruction always writes, and those that it reads.
pub(super) fn written_and_read(instruction: &Instruction) -> (u16, u16) {
    let of = |operand: Operand| match operand {
        Operand::Register(register) => bit(register),
        Operand::Immediate(_) => 0,
    };
    match *instruction {
        Instruction::Alu { op: AluOp::Move, dst, operand, .. } => (bit(dst), of(operand)),
        Instruction::Alu { dst, operand, .. } => (bit(dst), bit(dst) | of(operand)),
        Instruction::Branch { dst, operand, .. } => (0, bit(dst) | of(operand)),
        Instruction::Negate { dst, .. } | Instruction::Swap { dst, .. } => (bit(dst), bit(dst)),
        Instruction::MoveSigned { dst, src, .. } | Instruction::Cast { dst, src, .. } => (bit(dst), bit(src)),
        Instruction::Load { dst, base, .. } | Instruction::LoadAcquire { dst, base, .. } => (bit(dst), bit(base)),
        Instruction::LoadWide { dst, .. } => (bit(dst), 0),
        Instruction::Store { base, value, .. } => (0, bit(base) | of(value)),
        Instruction::StoreRelease { base, src, .. } => (0, bit(base) | bit(src)),
        Instruction::Atomic { op, base, src, .. } => {
            let written = match op {
                AtomicOp::CompareExchange => bit(Register::R0),
                op if op.fetches_to_source() => bit(src),
                _ => 0,
            };
            // A comparison reads r0; for the others counting it does no harm.
            (written, bit(base) | bit(src) | bit(Register::R0))
        }
        Instruction::Call(Callee::Register(register)) => (LOST, ARGUMENTS | bit(register)),
        Instruction::Call(_) => (LOST, ARGUMENTS),
        Instruction::Exit => (0, bit(Register::R0)),
        Instruction::Packet { .. } => (0, bit(Register::R6)),
        Instruction::Jump { .. } | Instruction::MayGoto { .. } => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use super::*;
    use crate::asm::assemble;

    #[test]
    fn jumps_back_take_no_longer_than_others() {
        const COUNT: usize = 2000;
        // What the first one reads reaches the last one only through all of them.
        let jumps: String = (1..COUNT).map(|n| format!("l{n}: goto l{}\n", n - 1)).collect();
        let text = format!("r6 = 0\ngoto l{}\nl0: r0 = r6\nexit\n{jumps}", COUNT - 1);
        let code = Code::new(&assemble(&text).expect("a program")).expect("its structure is right");
        let (live, count) = looked_at(&code);
        assert_eq!(live[0], 0);
        assert!(live[4..].iter().all(|live| *live == bit(Register::R6)), "{live:?}");
        assert!(count <= 4 * code.instructions().len(), "{count} were looked at");
    }
}
