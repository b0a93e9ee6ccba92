//! Tables of atomics in two parts. The first slots are near: beside what every fork copies in any case. A table that
//! fits there leaves its other part, which is far, untouched, and a fork copies no page and no page table for it.

use std::ops::{Index, Range};

/// Slots, the first `NEAR` of them in this value.
pub(super) struct Slots<T: 'static, const NEAR: usize> {
    near: [T; NEAR],
    far: &'static [T],
}

impl<T, const NEAR: usize> Slots<T, NEAR> {
    pub(super) const fn new(near: [T; NEAR], far: &'static [T]) -> Self {
        Self { near, far }
    }

    /// Returns slot `index`, counted from 0, if there is one.
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.near.get(index).or_else(|| self.far.get(index.checked_sub(NEAR)?))
    }

    /// Iterates over the slots `range`.
    pub(super) fn iter(&self, range: Range<usize>) -> impl Iterator<Item = &T> {
        let near = self.near.get(range.start..range.end.min(NEAR)).unwrap_or_default();
        let far = self.far.get(range.start.saturating_sub(NEAR)..range.end.saturating_sub(NEAR)).unwrap_or_default();
        near.iter().chain(far)
    }

    /// Returns how many of the first `count` slots are ahead of the first for which `is_ahead` is false. They are
    /// sorted by that.
    pub(super) fn partition_point(&self, count: usize, mut is_ahead: impl FnMut(&T) -> bool) -> usize {
        let near = &self.near[..count.min(NEAR)];
        let place = near.partition_point(&mut is_ahead);
        if place < near.len() {
            return place;
        }
        place + self.far[..count.saturating_sub(NEAR)].partition_point(is_ahead)
    }
}

impl<T, const NEAR: usize> Index<usize> for Slots<T, NEAR> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.near.get(index).unwrap_or_else(|| &self.far[index - NEAR])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a slot that is passed over or met twice where the parts meet.
    #[test]
    fn two_parts_are_one_table() {
        let all: Vec<usize> = (0..10).collect();
        let slots = Slots::new([0, 1, 2], &all.leak()[3..]);
        for start in 0..=10 {
            for end in start..=10 {
                assert!(slots.iter(start..end).copied().eq(start..end), "{start}..{end}");
            }
            assert_eq!(slots.get(start), (start < 10).then_some(&start));
            for count in 0..=10 {
                assert_eq!(slots.partition_point(count, |slot| *slot < start), start.min(count));
            }
        }
        assert_eq!((slots[2], slots[3], slots[9]), (2, 3, 9));
    }
}
