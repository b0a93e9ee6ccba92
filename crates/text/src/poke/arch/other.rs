//! Any other ISA: nothing can be poked.

use core::ops::Range;

use super::Refusal;
use crate::poke::site::Action;

/// There is none.
pub const TRAP: &[u8] = &[];

/// Whether sites can be changed by traps.
pub const TRAPS: bool = false;

/// Whether one write to text is a single store.
pub const TEXT_BY_SINGLE_STORE: bool = false;

/// Refuses every change.
pub fn check(_address: usize, _old: &[u8], _new: &[u8]) -> Result<Option<Action>, Refusal> {
    Err(Refusal::NotPatchable)
}

/// Never stored.
pub const DETOUR: &[u8] = &[];

/// Never called.
pub fn stored(_len: usize, changed: Range<usize>) -> Range<usize> {
    changed
}

/// Returns false: no site fits.
pub fn fits_single_store(_address: usize, _len: usize) -> bool {
    false
}

/// Never called.
pub fn holds(_condition: u8, _flags: u64) -> bool {
    false
}

/// Never called, since no site fits.
///
/// # Safety
///
/// 1. None: it does nothing.
pub unsafe fn store_whole(_alias: *mut u8, _bytes: &[u8]) {}
