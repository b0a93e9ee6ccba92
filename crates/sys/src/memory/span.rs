//! Ranges of addresses that can be stored in tables.

use std::ops::Range;

use crate::arch::untagged;

/// Addresses from `start` to below `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Span {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
}

impl Span {
    /// Creates a span from `start` to below `end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// Creates the span of a range whose start may be a tagged pointer.
    pub fn of_pointers(range: Range<usize>) -> Self {
        let start = untagged(range.start);
        Self::new(start, start.saturating_add(range.len()))
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Returns whether it contains no address.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Returns the same as a range.
    pub const fn range(self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns whether it contains `address`.
    pub const fn contains(self, address: usize) -> bool {
        self.start <= address && address < self.end
    }

    /// Returns the common part of both; empty if there is none.
    pub fn intersection(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Returns whether both have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        !self.intersection(other).is_empty()
    }

    /// Returns the whole pages that contain the span.
    pub fn rounded_out(self, page: usize) -> Self {
        Self::new(self.start & !(page - 1), self.end.checked_next_multiple_of(page).unwrap_or(usize::MAX & !(page - 1)))
    }

    /// Returns the span's parts, cut at the multiples of `len` (a power of two).
    pub fn cut(self, len: usize) -> impl Iterator<Item = Self> {
        let mut rest = self;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let end = (rest.start | (len - 1)).saturating_add(1).min(rest.end);
            let piece = Self::new(rest.start, end);
            rest.start = end;
            Some(piece)
        })
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self::new(range.start, range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_loses_nothing() {
        let pieces: Vec<_> = Span::new(0x1f_f000, 0x60_1000).cut(0x20_0000).collect();
        assert_eq!(
            pieces,
            [
                Span::new(0x1f_f000, 0x20_0000),
                Span::new(0x20_0000, 0x40_0000),
                Span::new(0x40_0000, 0x60_0000),
                Span::new(0x60_0000, 0x60_1000)
            ]
        );
        assert_eq!(Span::new(0x20_0000, 0x40_0000).cut(0x20_0000).count(), 1);
        assert_eq!(Span::new(5, 5).cut(16).count(), 0);
    }

    #[test]
    fn pages_are_rounded_outwards() {
        assert_eq!(Span::new(5000, 5001).rounded_out(4096), Span::new(4096, 8192));
        assert_eq!(Span::new(4096, 8192).rounded_out(4096), Span::new(4096, 8192));
    }
}
