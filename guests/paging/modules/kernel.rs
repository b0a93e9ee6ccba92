//! What the kernel exports to modules: `src/modules/exports.rs`.

#![allow(dead_code, unused_imports, reason = "each module uses some of it")]

unsafe extern "C" {
    /// Returns the number of the CPU that runs.
    pub(crate) safe fn kernel_cpu() -> u64;
    /// Adds to a sum that the kernel keeps.
    pub(crate) safe fn kernel_note(value: u64);
    /// Waits for a moment, and answers other CPUs.
    pub(crate) safe fn kernel_relax();
}

#[path = "arch/mod.rs"]
mod arch;

pub(crate) use arch::key;
