//! What the kernel exports to modules. `modules/kernel.rs` has the other side.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{arch, cpu};

/// The sum of what modules have noted.
static NOTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn cpu_number() -> u64 {
    arch::cpu::number() as u64
}

extern "C" fn note(value: u64) {
    // Relaxed: a statistic.
    NOTED.fetch_add(value, Ordering::Relaxed);
}

extern "C" fn relax() {
    cpu::relax();
}

/// Returns the sum of what modules have noted.
pub(crate) fn noted() -> u64 {
    NOTED.load(Ordering::Relaxed)
}

/// Returns the address of what the kernel exports by this name. Names of the kernel come before those of modules.
pub(super) fn address(name: &str) -> Option<u64> {
    match name {
        "kernel_cpu" => Some(cpu_number as *const () as u64),
        "kernel_note" => Some(note as *const () as u64),
        "kernel_relax" => Some(relax as *const () as u64),
        _ => None,
    }
}
