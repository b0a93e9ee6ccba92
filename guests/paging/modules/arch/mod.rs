//! The kernel's static key, as the kernel's own code asks it.

#[cfg_attr(target_arch = "x86_64", path = "../../src/arch/x86_64/key.rs")]
#[cfg_attr(target_arch = "aarch64", path = "../../src/arch/aarch64/key.rs")]
pub(crate) mod key;
