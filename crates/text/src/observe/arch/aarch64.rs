//! AArch64: AAPCS64, `stp x29, x30, [sp, #-16]!; mov x29, sp`.

use gimli::{AArch64, Register, write::CallFrameInstruction};
use object::elf;

pub(in crate::observe) const ELF_MACHINE: elf::Machine = elf::EM_AARCH64;

/// The link register.
pub(in crate::observe) const RETURN_ADDRESS: Register = AArch64::X30;

/// Instructions have 4 bytes.
pub(in crate::observe) const CODE_ALIGNMENT: u8 = 4;

/// Registers are saved in slots of 8 bytes, downwards.
pub(in crate::observe) const DATA_ALIGNMENT: i8 = -8;

/// At the first instruction: the return address is in the link register, nothing is on the stack.
pub(in crate::observe) const ON_ENTRY: [CallFrameInstruction; 1] = [CallFrameInstruction::Cfa(AArch64::SP, 0)];

/// Changes by offset in bytes from the start of the function.
pub(in crate::observe) const PROLOGUE: [(u32, CallFrameInstruction); 4] = [
    // After `stp x29, x30, [sp, #-16]!` (a9bf7bfd).
    (4, CallFrameInstruction::CfaOffset(16)),
    (4, CallFrameInstruction::Offset(AArch64::X29, -16)),
    (4, CallFrameInstruction::Offset(AArch64::X30, -8)),
    // After `mov x29, sp` (910003fd).
    (8, CallFrameInstruction::CfaRegister(AArch64::X29)),
];

/// The section for a function of 0x99 bytes at 0x1122334455667788.
#[cfg(test)]
pub(in crate::observe) const EXPECTED_SECTION: [u8; 56] = [
    // CIE of 12 bytes, version 1, no augmentation, alignments 4 and -8, return address in 30.
    12, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0x78, 30, // def_cfa sp+0.
    0x0c, 31, 0, // FDE of 36 bytes, its CIE 20 bytes back; start and length.
    36, 0, 0, 0, 20, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x99, 0, 0, 0, 0, 0, 0,
    0, // advance 4; def_cfa_offset 16; offset x29 at -16, x30 at -8; advance 4; def_cfa_register x29; padding.
    0x41, 0x0e, 16, 0x9d, 2, 0x9e, 1, 0x41, 0x0d, 29, 0, 0, 0, 0, 0, 0,
];
