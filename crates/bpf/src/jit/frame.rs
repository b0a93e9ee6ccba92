//! What a function needs of its stack frame.

use core::ops::Range;

use super::Gauge;
use crate::code::Code;
use crate::insn::{Instruction, Operand, Register};

/// Registers, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Registers(u16);

impl Registers {
    pub(super) const fn has(self, register: Register) -> bool {
        self.0 & 1 << register.number() != 0
    }

    fn add(&mut self, register: Register) {
        self.0 |= 1 << register.number();
    }
}

/// What a function needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// Its number; 0 for the program's own.
    pub(super) function: usize,
    /// Whether its address is taken, so that the host may call it.
    pub(super) is_named: bool,
    /// Every register that it names.
    pub(super) used: Registers,
    /// Whether it calls.
    pub(super) calls: bool,
    /// Whether it counts loops.
    pub(super) counts: bool,
    /// Whether the program may be ended.
    pub(super) gauge: Gauge,
}

/// Registers that a function must give back as it got them, and that are therefore kept.
pub(super) const KEPT: [Register; 4] = [Register::R6, Register::R7, Register::R8, Register::R9];

impl Frame {
    pub(super) fn of(code: &Code, range: Range<usize>, function: usize) -> Self {
        let mut frame = Self {
            function,
            is_named: false,
            used: Registers::default(),
            calls: false,
            counts: false,
            gauge: Gauge::Absent,
        };
        for instruction in &code.instructions()[range] {
            match *instruction {
                Instruction::Call(_) => frame.calls = true,
                Instruction::MayGoto { .. } => frame.counts = true,
                _ => {}
            }
            instruction.each_register(|register| frame.used.add(register));
        }
        frame
    }

    /// Whether it gets the gauge from the host, and gives it back.
    pub(super) fn begins_gauge(&self) -> bool {
        self.function == 0 && self.gauge != Gauge::Absent
    }

    /// Whether it has memory of its own.
    pub(super) const fn has_memory(&self) -> bool {
        self.used.has(Register::R10) || self.counts
    }
}

impl Instruction {
    /// Calls `each` with every register that the instruction names.
    #[inline]
    pub(super) fn each_register(&self, mut each: impl FnMut(Register)) {
        use crate::insn::Callee;
        let mut operand_of = |operand| {
            if let Operand::Register(register) = operand {
                each(register);
            }
        };
        match *self {
            Self::Alu { dst, operand, .. } | Self::Branch { dst, operand, .. } => {
                operand_of(operand);
                each(dst);
            }
            Self::Store { base, value, .. } => {
                operand_of(value);
                each(base);
            }
            Self::Negate { dst, .. } | Self::Swap { dst, .. } | Self::LoadWide { dst, .. } => each(dst),
            Self::MoveSigned { dst, src, .. } | Self::Cast { dst, src, .. } => [dst, src].into_iter().for_each(each),
            Self::Load { dst, base, .. } | Self::LoadAcquire { dst, base, .. } => {
                [dst, base].into_iter().for_each(each);
            }
            Self::Atomic { base, src, .. } | Self::StoreRelease { base, src, .. } => {
                [base, src].into_iter().for_each(each);
            }
            Self::Call(Callee::Register(register)) => each(register),
            Self::Jump { .. } | Self::MayGoto { .. } | Self::Call(_) | Self::Exit | Self::Packet { .. } => {}
        }
    }
}
