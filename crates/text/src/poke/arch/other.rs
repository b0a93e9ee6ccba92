//! Any other ISA: nothing can be poked.

use core::ops::Range;

use super::Refusal;
use crate::poke::site::Action;

/// None.
pub const TRAP: &[u8] = &[];

/// Whether there are traps to change sites by.
pub const TRAPS: bool = false;

/// Whether a single store to text is one.
pub const TEXT_BY_SINGLE_STORE: bool = false;

/// Refuses.
pub fn check(_address: usize, _old: &[u8], _new: &[u8]) -> Result<Option<Action>, Refusal> {
    Err(Refusal::NotPatchable)
}

/// Never stored.
pub const DETOUR: &[u8] = &[];

/// Never asked.
pub fn stored(_len: usize, changed: Range<usize>) -> Range<usize> {
    changed
}

/// None does.
pub fn fits_single_store(_address: usize, _len: usize) -> bool {
    false
}

/// Never asked.
pub fn holds(_condition: u8, _flags: u64) -> bool {
    false
}

/// Never called, since no site fits.
///
/// # Safety
///
/// 1. None: it does nothing.
pub unsafe fn store_whole(_alias: *mut u8, _bytes: &[u8]) {}
