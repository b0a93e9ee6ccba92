//! x86-64: System V ABI, `push rbp; mov rbp, rsp`.

use gimli::{Register, X86_64, write::CallFrameInstruction};
use object::elf;

pub(in crate::observe) const ELF_MACHINE: elf::Machine = elf::EM_X86_64;

/// The pseudo-register of the return address.
pub(in crate::observe) const RETURN_ADDRESS: Register = X86_64::RA;

/// Instructions have any length in bytes.
pub(in crate::observe) const CODE_ALIGNMENT: u8 = 1;

/// Registers are saved in slots of 8 bytes, downwards.
pub(in crate::observe) const DATA_ALIGNMENT: i8 = -8;

/// At the first instruction: `call` has pushed the return address.
pub(in crate::observe) const ON_ENTRY: [CallFrameInstruction; 2] =
    [CallFrameInstruction::Cfa(X86_64::RSP, 8), CallFrameInstruction::Offset(X86_64::RA, -8)];

/// Changes by offset in bytes from the start of the function.
pub(in crate::observe) const PROLOGUE: [(u32, CallFrameInstruction); 3] = [
    // After `push rbp` (55).
    (1, CallFrameInstruction::CfaOffset(16)),
    (1, CallFrameInstruction::Offset(X86_64::RBP, -16)),
    // After `mov rbp, rsp` (48 89 e5).
    (4, CallFrameInstruction::CfaRegister(X86_64::RBP)),
];

/// The section for a function of 0x99 bytes at 0x1122334455667788.
#[cfg(test)]
pub(in crate::observe) const EXPECTED_SECTION: [u8; 56] = [
    // CIE of 20 bytes, version 1, no augmentation, alignments 1 and -8, return address in 16.
    20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, // def_cfa rsp+8; offset 16 at -8; padding.
    0x0c, 7, 8, 0x90, 1, 0, 0, 0, 0, 0, 0, // FDE of 28 bytes, its CIE 28 bytes back; start and length.
    28, 0, 0, 0, 28, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x99, 0, 0, 0, 0, 0, 0,
    0, // advance 1; def_cfa_offset 16; offset rbp at -16; advance 3; def_cfa_register rbp.
    0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6,
];
