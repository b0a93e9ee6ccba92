//! Cuts ranges of addresses into what entries translate.

use core::ops::Range;

use crate::address::{Level, PAGE, VirtAddr, is_page_range};
use crate::error::RangeError;
use crate::format::Format;

/// Checks that `range` is whole pages that the format can translate.
pub(crate) fn check_range<F: Format>(range: &Range<VirtAddr>) -> Result<(), RangeError> {
    // A range that ends at 2^64 has wrapped around.
    if range.end.0 == 0 && range.start.0 > 0 {
        return Err(RangeError::LastPage { start: range.start });
    }
    if range.start >= range.end {
        return Err(RangeError::Empty(range.clone()));
    }
    if !is_page_range(range) {
        return Err(RangeError::Unaligned(range.clone()));
    }
    let last = VirtAddr(range.end.0 - 1);
    // Both ends must be on the same side of the gap.
    if !F::is_valid(range.start) || !F::is_valid(last) || (range.start.0 ^ last.0) >> 63 != 0 {
        return Err(RangeError::NotCanonical { range: range.clone(), format: F::NAME });
    }
    Ok(())
}

/// Returns the addresses that the entry of `level` for `address` translates, without the last page of all, which no
/// range can contain.
#[inline]
pub(crate) fn entry_range(level: Level, address: VirtAddr) -> Range<VirtAddr> {
    let start = address.0 & !(level.entry_bytes() - 1);
    VirtAddr(start)..VirtAddr(start.saturating_add(level.entry_bytes()) & !(PAGE - 1))
}

/// One entry's share of a range.
pub(crate) struct Slot {
    /// The entry's index.
    pub(crate) index: usize,
    /// The part of the range that it translates.
    pub(crate) range: Range<VirtAddr>,
    /// Whether that is everything that the entry translates.
    pub(crate) whole: bool,
}

/// Returns the entries of a table of `level` that translate `range`, which one table can translate.
#[inline]
pub(crate) fn slots(level: Level, range: Range<VirtAddr>) -> impl Iterator<Item = Slot> {
    let bytes = level.entry_bytes();
    let mut start = range.start.0;
    core::iter::from_fn(move || {
        if start >= range.end.0 {
            return None;
        }
        // The last entry of all ends at 2^64, one beyond the last number.
        let entry_last = start | (bytes - 1);
        let last = entry_last.min(range.end.0 - 1);
        let slot = Slot {
            index: level.index(VirtAddr(start)),
            range: VirtAddr(start)..VirtAddr(last.wrapping_add(1)),
            whole: start & (bytes - 1) == 0 && last == entry_last,
        };
        start = match last.checked_add(1) {
            Some(next) => next,
            None => range.end.0,
        };
        Some(slot)
    })
}

/// Returns the part of `range` translated by entries of `level` that lie completely in it; if there is none, an empty
/// range at its end.
#[inline]
pub(crate) fn whole_entries(level: Level, range: &Range<VirtAddr>) -> Range<VirtAddr> {
    let bytes = level.entry_bytes();
    let end = range.end.0 & !(bytes - 1);
    match range.start.0.checked_next_multiple_of(bytes) {
        Some(start) if start < end => VirtAddr(start)..VirtAddr(end),
        _ => range.end..range.end,
    }
}
