//! Code of dynasm-rs and iced-x86 runs in packs, and calls what is there.

#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64.rs"]
mod arch;
