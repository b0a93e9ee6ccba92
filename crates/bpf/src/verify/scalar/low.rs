//! What is known of the lower half of a number: 32 bits, as a number with and without sign.

use super::Scalar;
use crate::insn::Size;
use crate::verify::tnum::Tnum;

/// The bits of the lower half.
pub(super) const LOW: u64 = u32::MAX as u64;

/// Ranges of the lower half.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Low {
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) signed_min: i32,
    pub(super) signed_max: i32,
}

impl Low {
    /// All numbers.
    pub(super) const UNKNOWN: Self = Self { min: 0, max: u32::MAX, signed_min: i32::MIN, signed_max: i32::MAX };

    pub(super) const fn is_unknown(&self) -> bool {
        self.min == 0 && self.max == u32::MAX && self.signed_min == i32::MIN && self.signed_max == i32::MAX
    }

    /// All numbers from `first` upwards to `last`, if need be across the greatest one of either order.
    const fn around(first: u32, last: u32) -> Self {
        let mut low = Self::UNKNOWN;
        if first <= last {
            (low.min, low.max) = (first, last);
        }
        if first as i32 <= last as i32 {
            (low.signed_min, low.signed_max) = (first as i32, last as i32);
        }
        low
    }

    /// What these bits of the lower half leave of it.
    const fn of_bits(bits: Tnum) -> Self {
        const SIGN: u32 = 1 << 31;
        let (ones, unknown) = (bits.value as u32, bits.mask as u32);
        let signed_min = (ones | unknown & SIGN) as i32;
        Self { min: ones, max: ones | unknown, signed_min, signed_max: (ones | unknown & !SIGN) as i32 }
    }

    /// The numbers in both, of which there may be none: ends then have the wrong order.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            min: self.min.max(other.min),
            max: self.max.min(other.max),
            signed_min: self.signed_min.max(other.signed_min),
            signed_max: self.signed_max.min(other.signed_max),
        }
    }

    pub(super) const fn includes(&self, other: &Self) -> bool {
        self.min <= other.min
            && other.max <= self.max
            && self.signed_min <= other.signed_min
            && other.signed_max <= self.signed_max
    }

    /// Tells each range what the other knows; `None` if they have no number in common.
    pub(super) fn settled(mut self) -> Option<Self> {
        for _ in 0..2 {
            if self.min as i32 <= self.max as i32 {
                self.signed_min = self.signed_min.max(self.min as i32);
                self.signed_max = self.signed_max.min(self.max as i32);
            }
            if self.signed_min as u32 <= self.signed_max as u32 {
                self.min = self.min.max(self.signed_min as u32);
                self.max = self.max.min(self.signed_max as u32);
            } else if self.max < self.signed_min as u32 {
                // Negative numbers are too great.
                (self.signed_min, self.max) = (0, self.max.min(self.signed_max as u32));
            } else if self.min > self.signed_max as u32 {
                // The others are too small.
                (self.signed_max, self.min) = (-1, self.min.max(self.signed_min as u32));
            }
            if self.min > self.max || self.signed_min > self.signed_max {
                return None;
            }
        }
        Some(self)
    }
}

impl Scalar {
    /// What bits and ranges of the whole tell of the lower half.
    pub(super) fn told(&self) -> Low {
        self.told_by_ranges().and(Low::of_bits(self.bits))
    }

    /// What ranges of the whole tell of it.
    pub(super) fn told_by_ranges(&self) -> Low {
        let mut told = Low::UNKNOWN;
        // A part of the whole order that is shorter than the lower half's whole circle is a part of that.
        if self.max - self.min <= LOW {
            told = told.and(Low::around(self.min as u32, self.max as u32));
        }
        if self.signed_max.wrapping_sub(self.signed_min) as u64 <= LOW {
            told = told.and(Low::around(self.signed_min as u32, self.signed_max as u32));
        }
        told
    }

    /// All that is known of the lower half.
    pub(super) fn lower(&self) -> Low {
        // It is not empty: this is the lower half of numbers that exist.
        self.low.and(self.told()).settled().unwrap_or(Low::UNKNOWN)
    }

    /// Tells the whole what is known of its lower half. Nothing if that is empty.
    pub(super) fn learn_from_low(&mut self) -> Option<()> {
        let low = self.low;
        // The least number has the least upper half, and whatever has the same has at least this lower one.
        let above = |end: u64, low: u32| end & !LOW | u64::from(low);
        self.min = self.min.max(above(self.min, low.min));
        self.max = self.max.min(above(self.max, low.max));
        self.signed_min = self.signed_min.max(above(self.signed_min as u64, low.min) as i64);
        self.signed_max = self.signed_max.min(above(self.signed_max as u64, low.max) as i64);
        if i64::from(i32::MIN) <= self.signed_min && self.signed_max <= i64::from(i32::MAX) {
            self.signed_min = self.signed_min.max(low.signed_min.into());
            self.signed_max = self.signed_max.min(low.signed_max.into());
        }
        let Tnum { value, mask } = Tnum::range(low.min.into(), low.max.into());
        self.bits = self.bits.intersect(Tnum { value, mask: mask | !LOW })?;
        Some(())
    }

    /// Whether the numbers are their own lower halves, extended with zeros.
    pub(in crate::verify) const fn is_low(&self) -> bool {
        self.max <= LOW
    }

    /// Whether the numbers are their own lower halves, extended with their sign.
    pub(in crate::verify) const fn is_signed_low(&self) -> bool {
        i32::MIN as i64 <= self.signed_min && self.signed_max <= i32::MAX as i64
    }

    /// Returns the lower half, extended with zeros.
    pub(super) fn low(&self) -> Self {
        if self.is_low() {
            return *self;
        }
        if self.is_unknown() {
            return Self::of_size(Size::Word);
        }
        let low = self.lower();
        let bits = self.bits.and(Tnum::constant(LOW));
        let (min, max) = (low.min.into(), low.max.into());
        Self { bits, min, max, signed_min: low.min.into(), signed_max: low.max.into(), low }.sound()
    }

    /// Returns the lower half, extended with its sign.
    pub(super) fn signed_low(&self) -> Self {
        if self.is_signed_low() {
            return *self;
        }
        let low = self.lower();
        let bits = self.bits.shift_left(32).shift_right_signed(32);
        let (signed_min, signed_max) = (low.signed_min.into(), low.signed_max.into());
        Self { bits, signed_min, signed_max, low, ..Self::UNKNOWN }.sound()
    }

    /// Returns those numbers whose lower half is one of `known`'s; `None` if there are none.
    pub(in crate::verify) fn with_low(self, known: Self) -> Option<Self> {
        let Tnum { value, mask } = known.bits;
        let bits = self.bits.intersect(Tnum { value: value & LOW, mask: mask | !LOW })?;
        Self { bits, low: self.low.and(known.lower()), ..self }.settled()
    }
}
