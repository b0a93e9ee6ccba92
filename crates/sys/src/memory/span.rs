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
    /// The addresses from `start` to below `end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The addresses of a range whose start may be a pointer with a tag.
    pub fn of_pointers(range: Range<usize>) -> Self {
        let start = untagged(range.start);
        Self::new(start, start.saturating_add(range.len()))
    }

    /// Bytes.
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether no address is in it.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The same as a range.
    pub const fn range(self) -> Range<usize> {
        self.start..self.end
    }

    /// Whether `address` is in it.
    pub const fn contains(self, address: usize) -> bool {
        self.start <= address && address < self.end
    }

    /// What both have in common; empty if nothing.
    pub fn intersection(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Whether both have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        !self.intersection(other).is_empty()
    }

    /// The whole pages that hold this.
    pub fn rounded_out(self, page: usize) -> Self {
        Self::new(self.start & !(page - 1), self.end.checked_next_multiple_of(page).unwrap_or(usize::MAX & !(page - 1)))
    }

    /// This, cut at the multiples of `len` (a power of two).
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
