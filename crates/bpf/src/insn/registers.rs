//! Registers that instructions name.

use super::{Callee, Instruction, Operand, Register};

impl Instruction {
    /// Calls `each` with every register that the instruction names.
    #[inline]
    pub(crate) fn each_register(&self, mut each: impl FnMut(Register)) {
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
