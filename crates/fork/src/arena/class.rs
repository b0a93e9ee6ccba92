//! Size classes: steps of 16 bytes up to 128, then four to each doubling, so that at most a fifth of a block is wasted.

/// The unit of address space in which runs are counted: whole pages on every Linux system (the largest base page is 64
/// KiB). Pages that a block does not reach are never touched.
pub(super) const UNIT: usize = 64 << 10;

/// Largest size that shares a slab with others.
pub(super) const MAX_SMALL: usize = 128 << 10;

/// Number of classes.
pub(super) const CLASSES: usize = 48;

const FINE: usize = 16;
const FINE_CLASSES: usize = 8;
/// Size of the last fine class, as a power of two.
const FINE_LOG: u32 = 7;
/// Up to this size a slab is one unit.
const MAX_IN_ONE_UNIT: usize = 8 << 10;
/// Units of bigger slabs.
const BIG_SLAB_UNITS: u32 = 8;

/// A size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class(u8);

impl Class {
    /// Returns the class of blocks of at least `size` bytes; `size` is at most [`MAX_SMALL`].
    #[inline]
    pub(super) fn of(size: usize) -> Self {
        debug_assert!(size <= MAX_SMALL);
        let index = if size <= FINE << 3 {
            size.saturating_sub(1) / FINE
        } else {
            let last = size - 1;
            let log = last.ilog2();
            FINE_CLASSES + ((log - FINE_LOG) as usize) * 4 + ((last >> (log - 2)) & 3)
        };
        // At most 47 by the bound on `size`.
        Self(index as u8)
    }

    /// Returns the smallest class whose blocks hold `size` bytes and all lie at multiples of `align`; `None` if no slab
    /// can do that.
    pub(super) fn aligned(size: usize, align: usize) -> Option<Self> {
        if align > UNIT || size > MAX_SMALL {
            return None;
        }
        let first = Self::of(size.max(align).min(MAX_SMALL));
        (first.0..CLASSES as u8).map(Self).find(|class| class.size().is_multiple_of(align))
    }

    /// Returns the class with this number.
    pub(super) fn from_index(index: u8) -> Self {
        debug_assert!(usize::from(index) < CLASSES);
        Self(index)
    }

    /// Returns its number, below [`CLASSES`].
    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the bytes of a block.
    #[inline]
    pub(super) fn size(self) -> usize {
        let index = self.index();
        if index < FINE_CLASSES {
            return (index + 1) * FINE;
        }
        let log = FINE_LOG as usize + (index - FINE_CLASSES) / 4;
        (1 << log) + ((index - FINE_CLASSES) % 4 + 1) * (1 << (log - 2))
    }

    /// Returns the units of a slab.
    pub(super) fn slab_units(self) -> u32 {
        if self.size() <= MAX_IN_ONE_UNIT { 1 } else { BIG_SLAB_UNITS }
    }

    /// Returns the blocks of a slab.
    pub(super) fn blocks(self) -> u32 {
        // At most 4096.
        (self.slab_units() as usize * UNIT / self.size()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_holds_it() {
        let sizes: Vec<usize> = (0..CLASSES as u8).map(|index| Class::from_index(index).size()).collect();
        assert!(sizes.is_sorted_by(|one, next| one < next));
        assert_eq!(sizes.last(), Some(&MAX_SMALL));
        for size in 0..=MAX_SMALL {
            let index = Class::of(size).index();
            assert!(sizes[index] >= size);
            assert!(index == 0 || sizes[index - 1] < size, "{size}");
        }
    }

    #[test]
    fn no_block_is_much_larger_than_asked_and_no_slab_wastes_much() {
        for size in 129..=MAX_SMALL {
            assert!(Class::of(size).size() * 4 <= size * 5, "{size}");
        }
        for index in 0..CLASSES as u8 {
            let class = Class::from_index(index);
            let slab = class.slab_units() as usize * UNIT;
            assert!(class.blocks() <= 4096 && class.blocks() >= 4);
            assert!((slab - class.blocks() as usize * class.size()) * 8 <= slab, "{}", class.size());
        }
    }

    #[test]
    fn aligned_classes_are_multiples() {
        for align in (0..=16).map(|log| 1_usize << log) {
            for size in [0, 1, 17, 100, 5000, 65_536, 100_000] {
                let class = Class::aligned(size, align).expect("powers of two are classes");
                assert!(class.size() >= size && class.size().is_multiple_of(align));
            }
        }
        assert_eq!(Class::aligned(1, 2 * UNIT), None);
        assert_eq!(Class::aligned(MAX_SMALL + 1, 16), None);
    }
}
