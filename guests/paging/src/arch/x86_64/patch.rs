//! Sites in the kernel's own code, and what their traps do.

use core::sync::atomic::Ordering;

use palimpsest_text::poke::{self, Code, Site, Verdict, arch};

use crate::kernel_text_writer::{TRAPS_HIT, table};

unsafe extern "C" {
    /// How many of the sites let the increment behind them run.
    safe fn patch_sites() -> u32;
    static patch_sites_first: [u8; 0];
}

/// How many sites there are.
pub(crate) const SITES: usize = 56;
/// How many of them lie across two pages; see `trap.s`.
pub(crate) const ACROSS: usize = 1;
/// Bytes from one to the next: the site and its increment.
const STRIDE: usize = 7;
/// A NOP of five bytes, which lets the increment run.
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
/// A jump over the increment of two bytes.
const JUMP: [u8; 5] = [0xe9, 2, 0, 0, 0];

/// Core synchronisations of one batch.
pub(crate) const ROUNDS: u64 = 3;

/// What the sites are to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sites {
    /// Let the increments run.
    Pass,
    /// Jump over them.
    Skip,
}

/// Runs through all sites: how many increments ran.
pub(crate) fn run() -> usize {
    patch_sites() as usize
}

/// Site `index`, to be changed to `to` from the other.
pub(crate) fn site(index: usize, to: Sites) -> Site {
    let address = (&raw const patch_sites_first) as usize + index * STRIDE;
    let (old, new) = match to {
        Sites::Pass => (JUMP, NOP),
        Sites::Skip => (NOP, JUMP),
    };
    let code = |bytes: &[u8]| Code::new(bytes).unwrap_or_else(|| unreachable!("five bytes"));
    let action = arch::check(address, &old, &new).unwrap_or_else(|refusal| panic!("site {index}: {refusal:?}"));
    Site { address, old: code(&old), new: code(&new), action }
}

/// Changes sites, by traps.
pub(crate) fn apply<M: poke::Machine>(machine: &M, sites: &[Site]) -> Result<(), poke::Failed<M::Error>> {
    poke::apply_by_traps(machine, sites)
}

/// Makes stores to code known to instruction fetch: nothing to do (SDM volume 3, 9.1.3).
pub(crate) fn code_was_written(_alias: *mut u8, _bytes: usize) {}

/// The same in two steps.
pub(crate) fn clean(_alias: *mut u8, _bytes: usize) {}

/// See [`clean`].
pub(crate) fn forget_fetched() {}

/// Where to go on after a trap at `address`, if it is a site's.
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
