//! Sites in the kernel's own code, and how to change them. The instructions are in `arch`.

use palimpsest_text::poke::{Code, Site, arch};

use crate::arch::patch::{JUMP, NOP, STRIDE};

// Defined in `trap.s`.
unsafe extern "C" {
    /// Returns how many of the sites let the increment behind them run.
    safe fn patch_sites() -> u32;
    static patch_sites_first: [u8; 0];
}

/// How many sites there are.
pub(crate) const SITES: usize = 56;

/// The behaviours of the sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sites {
    /// Let the increments run.
    Pass,
    /// Jump over them.
    Skip,
}

/// Runs through all sites. Returns how many increments ran.
pub(crate) fn run() -> usize {
    patch_sites() as usize
}

/// Describes the change of site `index` to `to`, from the other behaviour.
pub(crate) fn site(index: usize, to: Sites) -> Site {
    let address = (&raw const patch_sites_first) as usize + index * STRIDE;
    let (old, new) = match to {
        Sites::Pass => (JUMP, NOP),
        Sites::Skip => (NOP, JUMP),
    };
    let code = |bytes: &[u8]| Code::new(bytes).unwrap_or_else(|| unreachable!("one instruction"));
    let action = arch::check(address, &old, &new).unwrap_or_else(|refusal| panic!("site {index}: {refusal:?}"));
    Site { address, old: code(&old), new: code(&new), action }
}
