//! Sites in the kernel's own code.

use core::arch::asm;

use palimpsest_text::poke::{self, Site};

/// How many sites lie across two pages: none, instructions are aligned.
pub(crate) const ACROSS: usize = 0;
/// Bytes from one site to the next: the site and its increment.
pub(crate) const STRIDE: usize = 8;
/// A NOP, which lets the increment run.
pub(crate) const NOP: [u8; 4] = 0xd503_201f_u32.to_le_bytes();
/// A branch over the increment.
pub(crate) const JUMP: [u8; 4] = 0x1400_0002_u32.to_le_bytes();

/// Core synchronisations of one batch: sites are changed by one store each.
pub(crate) const ROUNDS: u64 = 1;

/// Changes sites, by one store each.
pub(crate) fn apply<M: poke::Machine>(machine: &M, sites: &[Site]) -> Result<(), poke::Failed<M::Error>> {
    poke::apply_by_single_stores(machine, sites)
}

/// Makes instruction fetch see stores to code: Arm ARM B2.7.4.2.
pub(crate) fn code_was_written(alias: *mut u8, bytes: usize) {
    clean(alias, bytes);
    forget_fetched();
}

/// Makes stores to code reach the point from which instructions are fetched; [`forget_fetched`] must follow.
pub(crate) fn clean(alias: *mut u8, bytes: usize) {
    let kinds: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) kinds, options(nostack, nomem, preserves_flags)) };
    // CTR_EL0.DminLine: the logarithm of the words in a line.
    let line = 4_usize << (kinds >> 16 & 15);
    let mut address = alias as usize & !(line - 1);
    while address < alias as usize + bytes {
        // SAFETY: cleans a line that is mapped.
        unsafe { asm!("dc cvau, {}", in(reg) address, options(nostack, preserves_flags)) };
        address += line;
    }
}

/// Invalidates the instruction caches of all CPUs, completely, because the code runs at other addresses than those it
/// is written through.
pub(crate) fn forget_fetched() {
    // SAFETY: barriers and an invalidation.
    unsafe { asm!("dsb ish", "ic ialluis", "dsb ish", options(nostack, preserves_flags)) };
}
