//! What is known of a number: bits, and ranges with and without sign, of all of it and of its lower half.
//!
//! Everything here errs to one side: no number that can occur is left out. The tests try each operation with numbers of
//! its operands, and compare with the interpreter's results.

mod alu;
mod compare;
mod low;
mod show;
#[cfg(test)]
mod tests;

use super::tnum::Tnum;
use crate::insn::Size;
use low::Low;

/// A set of numbers, which leaves none out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Scalar {
    bits: Tnum,
    min: u64,
    max: u64,
    signed_min: i64,
    signed_max: i64,
    /// Of the lower half, unless the other ranges tell as much: then it is unknown.
    low: Low,
}

impl Scalar {
    /// All numbers.
    pub(super) const UNKNOWN: Self = Self {
        bits: Tnum::UNKNOWN,
        min: 0,
        max: u64::MAX,
        signed_min: i64::MIN,
        signed_max: i64::MAX,
        low: Low::UNKNOWN,
    };

    pub(super) const fn constant(value: u64) -> Self {
        let (bits, signed) = (Tnum::constant(value), value as i64);
        Self { bits, min: value, max: value, signed_min: signed, signed_max: signed, low: Low::UNKNOWN }
    }

    /// All numbers from `min` to `max`.
    pub(super) fn range(min: u64, max: u64) -> Self {
        Self { min, max, ..Self::UNKNOWN }.sound()
    }

    /// All numbers with sign from `min` to `max`.
    pub(super) fn signed_range(min: i64, max: i64) -> Self {
        Self { signed_min: min, signed_max: max, ..Self::UNKNOWN }.sound()
    }

    /// All numbers of `size` bytes.
    pub(super) const fn of_size(size: Size) -> Self {
        let max = u64::MAX >> (64 - size.bits());
        if max == u64::MAX {
            return Self::UNKNOWN;
        }
        let bits = Tnum { value: 0, mask: max };
        Self { bits, min: 0, max, signed_min: 0, signed_max: max as i64, low: Low::UNKNOWN }
    }

    const fn of_bits(bits: Tnum) -> Self {
        Self { bits, ..Self::UNKNOWN }
    }

    /// Whether nothing is known. Part by part: reading the whole at once would have to wait for all of it to be
    /// written.
    const fn is_unknown(&self) -> bool {
        self.bits.mask == u64::MAX
            && self.min == 0
            && self.max == u64::MAX
            && self.signed_min == i64::MIN
            && self.signed_max == i64::MAX
            && self.low.is_unknown()
    }

    pub(super) const fn as_constant(&self) -> Option<u64> {
        if self.min == self.max { Some(self.min) } else { None }
    }

    /// Whether it is a constant of which all parts know everything.
    const fn is_whole_constant(&self) -> bool {
        self.bits.mask == 0
            && self.min == self.bits.value
            && self.max == self.bits.value
            && self.signed_min == self.bits.value as i64
            && self.signed_max == self.bits.value as i64
            && self.low.is_unknown()
    }

    pub(super) const fn signed_min(&self) -> i64 {
        self.signed_min
    }

    pub(super) const fn signed_max(&self) -> i64 {
        self.signed_max
    }

    /// Whether every number of `other` is one of these.
    pub(super) fn includes(&self, other: &Self) -> bool {
        self.bits.includes(other.bits)
            && self.min <= other.min
            && other.max <= self.max
            && self.signed_min <= other.signed_min
            && other.signed_max <= self.signed_max
            && (self.low.is_unknown() || self.includes_low_of(other))
    }

    #[cold]
    fn includes_low_of(&self, other: &Self) -> bool {
        self.low.includes(&other.lower())
    }

    /// Whether all numbers are multiples of `align`, a power of 2.
    pub(super) const fn is_aligned(&self, align: u64) -> bool {
        self.bits.max() & (align - 1) == 0
    }

    /// Returns the numbers in both; `None` if there are none.
    pub(super) fn both(self, other: Self) -> Option<Self> {
        let both = Self {
            bits: self.bits.intersect(other.bits)?,
            min: self.min.max(other.min),
            max: self.max.min(other.max),
            signed_min: self.signed_min.max(other.signed_min),
            signed_max: self.signed_max.min(other.signed_max),
            low: self.low.and(other.low),
        };
        both.settled()
    }

    /// Tells each part what the others know; `None` if they have no number in common.
    fn settle(&mut self) -> Option<()> {
        if self.is_whole_constant() {
            return Some(());
        }
        self.settle_whole()?;
        if self.low.is_unknown() { Some(()) } else { self.settle_low() }
    }

    /// The same, of a copy.
    fn settled(mut self) -> Option<Self> {
        self.settle()?;
        Some(self)
    }

    /// Tells bits and ranges of the whole what the others of these know.
    fn settle_whole(&mut self) -> Option<()> {
        // Twice, in case bits learn from one range what they can then tell the other.
        for _ in 0..2 {
            self.min = self.min.max(self.bits.min());
            self.max = self.max.min(self.bits.max());
            // Without a change of sign both orders are the same.
            if self.min as i64 <= self.max as i64 {
                self.signed_min = self.signed_min.max(self.min as i64);
                self.signed_max = self.signed_max.min(self.max as i64);
            }
            if self.signed_min as u64 <= self.signed_max as u64 {
                self.min = self.min.max(self.signed_min as u64);
                self.max = self.max.min(self.signed_max as u64);
            } else if self.max < self.signed_min as u64 {
                // Negative numbers are too great.
                (self.signed_min, self.max) = (0, self.max.min(self.signed_max as u64));
            } else if self.min > self.signed_max as u64 {
                // The others are too small.
                (self.signed_max, self.min) = (-1, self.min.max(self.signed_min as u64));
            }
            if self.min > self.max || self.signed_min > self.signed_max {
                return None;
            }
            let bits = self.bits;
            self.bits = bits.intersect(Tnum::range(self.min, self.max))?;
            if self.bits == bits {
                break;
            }
        }
        Some(())
    }

    /// Tells the whole what its lower half knows, and the other way round. What is then known of the lower half, but
    /// also told by the ranges of the whole, is not kept twice.
    #[cold]
    fn settle_low(&mut self) -> Option<()> {
        for _ in 0..3 {
            let before = *self;
            self.low = self.low.and(self.told()).settled()?;
            self.learn_from_low()?;
            self.settle_whole()?;
            if *self == before {
                break;
            }
        }
        // Arithmetic on ranges keeps what they tell; on bits it often does not.
        if self.low.includes(&self.told_by_ranges().settled()?) {
            self.low = Low::UNKNOWN;
        }
        Some(())
    }

    /// The same for parts that are known to have numbers in common.
    fn sound(self) -> Self {
        self.settled().unwrap_or(Self::UNKNOWN)
    }
}
