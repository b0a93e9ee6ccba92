//! Sites in the kernel's own code, and what their traps do.

use core::sync::atomic::Ordering;

use palimpsest_text::poke::{self, Site, Verdict, arch};

use crate::kernel_text_writer::{TRAPS_HIT, table};

/// How many sites lie across two pages; see `trap.s`.
pub(crate) const ACROSS: usize = 1;
/// Bytes from one site to the next: the site and its increment.
pub(crate) const STRIDE: usize = 7;
/// A NOP of five bytes, which lets the increment run.
pub(crate) const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
/// A jump over the increment of two bytes.
pub(crate) const JUMP: [u8; 5] = [0xe9, 2, 0, 0, 0];

/// Core synchronisations of one batch.
pub(crate) const ROUNDS: u64 = 3;

/// Changes sites, by traps.
pub(crate) fn apply<M: poke::Machine>(machine: &M, sites: &[Site]) -> Result<(), poke::Failed<M::Error>> {
    poke::apply_by_traps(machine, sites)
}

/// Makes instruction fetch see stores to code: nothing to do (SDM volume 3, 9.1.3).
pub(crate) fn code_was_written(_alias: *mut u8, _bytes: usize) {}

/// Does the first step of [`code_was_written`]: nothing.
pub(crate) fn clean(_alias: *mut u8, _bytes: usize) {}

/// Does the second step: nothing.
pub(crate) fn forget_fetched() {}

/// Returns where to continue after a trap at `address`, if a site is there.
pub(super) fn resume(address: u64, flags: u64) -> Option<u64> {
    let is_trap = |address: usize| {
        // SAFETY: the CPU has just run the trap there. Volatile: another may be changing it.
        unsafe { (address as *const u8).read_volatile() == arch::TRAP[0] }
    };
    match poke::judge(address as usize, [table()].into_iter(), is_trap) {
        Verdict::Act(action) => {
            // Relaxed: a statistic.
            TRAPS_HIT.fetch_add(1, Ordering::Relaxed);
            Some(if arch::holds(action.condition, flags) { action.target } else { action.otherwise } as u64)
        }
        Verdict::Retry => Some(address),
        Verdict::Foreign => None,
    }
}
