//! What differs between architectures, under the same names for each.

#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
mod isa;

pub(crate) use isa::{MODULES, RETURN, console, cpu, interrupts, key, layout, mmu, ordinary, patch, step, user};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("there is no kernel for this architecture");
