//! One file for each instruction set.

mod aarch64;
mod riscv64;
mod x86_64;

use super::{Architecture, Encoder, Field, Misfit, Role, distance, first, replace_bits};

/// Returns the encoder for `architecture`.
pub fn encoder(architecture: Architecture) -> &'static dyn Encoder {
    match architecture {
        Architecture::X86_64 => &x86_64::X86_64,
        Architecture::Aarch64 => &aarch64::Aarch64,
        Architecture::Riscv64 => &riscv64::Riscv64,
    }
}
