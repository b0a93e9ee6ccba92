//! Code of dynasm-rs, and of iced-x86 on its own architecture, runs in packs and calls what is there.

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod arch;
