//! AArch64, on QEMU's `virt` with a GICv2.

pub(crate) mod console;
pub(crate) mod cpu;
mod entry;
pub(crate) mod interrupts;
pub(crate) mod key;
pub(crate) mod layout;
pub(crate) mod mmu;
mod ordinary;
pub(crate) mod patch;
pub(crate) mod step;
mod trap;
pub(crate) mod user;

pub(crate) use ordinary::ordinary;

/// The code of a return instruction.
pub(crate) const RETURN: &[u8] = &0xd65f_03c0_u32.to_le_bytes();

/// What modules are compiled for.
pub(crate) const MODULES: palimpsest_module::Architecture = palimpsest_module::Architecture::Aarch64;

core::arch::global_asm!(include_str!("boot.s"));
core::arch::global_asm!(include_str!("trap.s"));
