//! What the kernel exports to modules: `src/modules/exports.rs`.

#![allow(dead_code, reason = "each module uses some of it")]

unsafe extern "C" {
    /// Returns the number of the CPU that runs.
    pub(crate) safe fn kernel_cpu() -> u64;
    /// Adds to a sum that the kernel keeps.
    pub(crate) safe fn kernel_note(value: u64);
    /// Waits for a moment, and answers other CPUs.
    pub(crate) safe fn kernel_relax();
}

#[cfg_attr(target_arch = "x86_64", path = "../src/arch/x86_64/key.rs")]
#[cfg_attr(target_arch = "aarch64", path = "../src/arch/aarch64/key.rs")]
pub(crate) mod key;
