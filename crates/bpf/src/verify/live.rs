//! Which registers somebody looks at again: backwards over the instructions until nothing is added.

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

/// For each instruction the registers that it or a later one may read before they are written. None is left out.
pub(super) fn live(code: &Code) -> Vec<u16> {
    let instructions = code.instructions();
    let mut live = alloc::vec![0_u16; instructions.len()];
    loop {
        let mut changed = false;
        for index in (0..instructions.len()).rev() {
            let instruction = &instructions[index];
            let target = |distance: i32| code.target(index, distance).map_or(0, |target| live[target]);
            let behind = live.get(index + 1).copied().unwrap_or(0);
            let after = match *instruction {
                Instruction::Exit => bit(Register::R0),
                Instruction::Jump { offset, .. } => target(offset),
                Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => behind | target(offset.into()),
                _ => behind,
            };
            let before = after & !written(instruction) | read(instruction);
            if live[index] != before {
                (live[index], changed) = (before, true);
            }
        }
        if !changed {
            return live;
        }
    }
}

/// Registers that an instruction writes without fail.
fn written(instruction: &Instruction) -> u16 {
    match *instruction {
        Instruction::Alu { dst, .. }
        | Instruction::Negate { dst, .. }
        | Instruction::MoveSigned { dst, .. }
        | Instruction::Swap { dst, .. }
        | Instruction::Cast { dst, .. }
        | Instruction::LoadWide { dst, .. }
        | Instruction::Load { dst, .. }
        | Instruction::LoadAcquire { dst, .. } => bit(dst),
        Instruction::Atomic { op: AtomicOp::CompareExchange, .. } => bit(Register::R0),
        Instruction::Atomic { op, src, .. } if op.fetches_to_source() => bit(src),
        Instruction::Call(_) => LOST,
        _ => 0,
    }
}

/// Registers that an instruction reads.
fn read(instruction: &Instruction) -> u16 {
    let of = |operand: Operand| match operand {
        Operand::Register(register) => bit(register),
        Operand::Immediate(_) => 0,
    };
    match *instruction {
        Instruction::Alu { op: AluOp::Move, operand, .. } => of(operand),
        Instruction::Alu { dst, operand, .. } | Instruction::Branch { dst, operand, .. } => bit(dst) | of(operand),
        Instruction::Negate { dst, .. } | Instruction::Swap { dst, .. } => bit(dst),
        Instruction::MoveSigned { src, .. } | Instruction::Cast { src, .. } => bit(src),
        Instruction::Load { base, .. } | Instruction::LoadAcquire { base, .. } => bit(base),
        Instruction::Store { base, value, .. } => bit(base) | of(value),
        Instruction::StoreRelease { base, src, .. } => bit(base) | bit(src),
        // A comparison reads r0; for the others it does no harm.
        Instruction::Atomic { base, src, .. } => bit(base) | bit(src) | bit(Register::R0),
        Instruction::Call(Callee::Register(register)) => ARGUMENTS | bit(register),
        Instruction::Call(_) => ARGUMENTS,
        Instruction::Exit => bit(Register::R0),
        Instruction::Packet { .. } => bit(Register::R6),
        Instruction::LoadWide { .. } | Instruction::Jump { .. } | Instruction::MayGoto { .. } => 0,
    }
}
