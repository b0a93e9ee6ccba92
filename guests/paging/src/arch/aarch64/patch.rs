//! Sites in the kernel's own code.

use core::arch::asm;

use palimpsest_text::poke::{self, Code, Site, arch};

unsafe extern "C" {
    /// How many of the sites let the increment behind them run.
    safe fn patch_sites() -> u32;
    static patch_sites_first: [u8; 0];
}

/// How many sites there are.
pub(crate) const SITES: usize = 56;
/// How many of them lie across two pages: an instruction is aligned.
pub(crate) const ACROSS: usize = 0;
/// Bytes from one to the next: the site and its increment.
const STRIDE: usize = 8;
/// A NOP, which lets the increment run.
const NOP: [u8; 4] = 0xd503_201f_u32.to_le_bytes();
/// A branch over the increment.
const BRANCH: [u8; 4] = 0x1400_0002_u32.to_le_bytes();

/// Core synchronisations of one batch: sites are changed by one store each.
pub(crate) const ROUNDS: u64 = 1;

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
        Sites::Pass => (BRANCH, NOP),
        Sites::Skip => (NOP, BRANCH),
    };
    let code = |bytes: &[u8]| Code::new(bytes).unwrap_or_else(|| unreachable!("four bytes"));
    let action = arch::check(address, &old, &new).unwrap_or_else(|refusal| panic!("site {index}: {refusal:?}"));
    Site { address, old: code(&old), new: code(&new), action }
}

/// Changes sites, by one store each.
pub(crate) fn apply<M: poke::Machine>(machine: &M, sites: &[Site]) -> Result<(), poke::Failed<M::Error>> {
    poke::apply_by_single_stores(machine, sites)
}

/// Makes stores to code known to instruction fetch: Arm ARM B2.7.4.2.
pub(crate) fn code_was_written(alias: *mut u8, bytes: usize) {
    clean(alias, bytes);
    forget_fetched();
}

/// Makes stores to code reach the point from which instructions are fetched; [`forget_fetched`] comes then.
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

/// Empties the instruction caches of all CPUs. The code runs by other addresses than it is written by, so that all of
/// them is invalidated.
pub(crate) fn forget_fetched() {
    // SAFETY: barriers, and forgetting.
    unsafe { asm!("dsb ish", "ic ialluis", "dsb ish", options(nostack, preserves_flags)) };
}
