//! What a function needs of its stack frame.

use core::ops::Range;

use super::Gauge;
use crate::code::Code;
use crate::insn::{Instruction, Register};
use crate::verify::Leftovers;

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

/// What becomes of the context's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ContextAddress {
    /// It is an argument, which the program does with what it likes.
    Passed,
    /// The frame keeps it, too, for stores that are checked.
    Kept,
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
    /// What registers without a value hold.
    pub(super) leftovers: Leftovers,
    pub(super) context: ContextAddress,
}

/// Registers that a function must return as it got them.
pub(super) const KEPT: [Register; 4] = [Register::R6, Register::R7, Register::R8, Register::R9];

impl Frame {
    pub(super) fn of(code: &Code, range: Range<usize>, function: usize) -> Self {
        let mut frame = Self {
            function,
            is_named: false,
            used: Registers(code.registers()),
            calls: code.calls_outside(),
            counts: code.counts(),
            gauge: Gauge::Absent,
            leftovers: Leftovers::Any,
            context: ContextAddress::Passed,
        };
        if !code.has_functions() {
            // It is the program.
            return frame;
        }
        (frame.used, frame.calls, frame.counts) = (Registers::default(), false, false);
        for instruction in &code.instructions()[range] {
            instruction.each_register(|register| frame.used.add(register));
            frame.calls |= matches!(instruction, Instruction::Call(_));
            frame.counts |= matches!(instruction, Instruction::MayGoto { .. });
        }
        frame
    }

    /// Whether it gets the gauge from the host, and returns it.
    pub(super) fn begins_gauge(&self) -> bool {
        self.function == 0 && self.gauge != Gauge::Absent
    }

    /// Whether others call it by its address: the program's own, and one whose address is taken, unless helpers get an
    /// entry of its own for that.
    pub(super) fn is_called_through_registers(&self) -> bool {
        self.function == 0 || (self.is_named && self.gauge == Gauge::Absent)
    }

    /// The registers that are cleared where they have no value.
    pub(super) const fn cleared(&self) -> &'static [Register] {
        match self.leftovers {
            Leftovers::Any => &[],
            Leftovers::Zero => &[Register::R3, Register::R4, Register::R5],
        }
    }

    pub(super) const fn keeps_context(&self) -> bool {
        matches!(self.context, ContextAddress::Kept)
    }

    /// Whether it has memory of its own.
    pub(super) const fn has_memory(&self) -> bool {
        self.used.has(Register::R10) || self.counts || self.keeps_context()
    }
}
