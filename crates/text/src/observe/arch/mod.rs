//! What differs between instruction sets: the ELF machine and the call frame information of the frame-pointer prologue.
//!
//! Every file defines `ELF_MACHINE`, `RETURN_ADDRESS`, `DATA_ALIGNMENT`, `CODE_ALIGNMENT`, `ON_ENTRY` and `PROLOGUE`.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod isa;

pub(super) use self::isa::*;
