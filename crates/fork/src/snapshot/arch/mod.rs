//! Calls that can be left from anywhere inside; one folder for each instruction set, with the same names.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod isa;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64/mod.rs"]
mod isa;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("palimpsest-fork knows x86-64 and AArch64; add crates/fork/src/snapshot/arch/<isa>/ for another one");

pub(super) use isa::entry::{call, leave, stack_pointer};
