//! Numbers of which some bits are known.
//!
//! The domain of Linux's verifier (`kernel/bpf/tnum.c`); its soundness is the subject of Vishwanathan et al., "Sound,
//! Precise, and Fast Abstract Interpretation with Tristate Numbers", CGO 2022. Here each operation is tested with
//! numbers of its operands.

/// Bits: those of `mask` are unknown and 0 in `value`, the others are as in `value`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tnum {
    pub(super) value: u64,
    pub(super) mask: u64,
}

impl Tnum {
    /// Nothing is known.
    pub(super) const UNKNOWN: Self = Self { value: 0, mask: u64::MAX };

    pub(super) const fn constant(value: u64) -> Self {
        Self { value, mask: 0 }
    }

    /// Returns what all numbers from `min` to `max` have in common: the bits above the highest one in which the two
    /// differ.
    pub(super) const fn range(min: u64, max: u64) -> Self {
        let differ = min ^ max;
        let mask = if differ == 0 { 0 } else { u64::MAX >> differ.leading_zeros() };
        Self { value: min & !mask, mask }
    }

    pub(super) const fn min(self) -> u64 {
        self.value
    }

    pub(super) const fn max(self) -> u64 {
        self.value | self.mask
    }

    #[cfg(test)]
    pub(super) const fn contains(self, number: u64) -> bool {
        number & !self.mask == self.value
    }

    /// Whether every number of `other` is one of these.
    pub(super) const fn includes(self, other: Self) -> bool {
        other.mask & !self.mask == 0 && other.value & !self.mask == self.value
    }

    /// Returns the numbers in both; `None` if there are none.
    pub(super) const fn intersect(self, other: Self) -> Option<Self> {
        let known = !self.mask & !other.mask;
        if (self.value ^ other.value) & known != 0 {
            return None;
        }
        let mask = self.mask & other.mask;
        Some(Self { value: (self.value | other.value) & !mask, mask })
    }

    /// A bit of the sum is unknown if it, or the carry into it, can be either.
    pub(super) const fn add(self, other: Self) -> Self {
        let least = self.value.wrapping_add(other.value);
        let most = self.max().wrapping_add(other.max());
        let mask = (least ^ most) | self.mask | other.mask;
        Self { value: least & !mask, mask }
    }

    pub(super) const fn sub(self, other: Self) -> Self {
        let most = self.max().wrapping_sub(other.value);
        let least = self.value.wrapping_sub(other.max());
        let mask = (least ^ most) | self.mask | other.mask;
        Self { value: self.value.wrapping_sub(other.value) & !mask, mask }
    }

    pub(super) const fn and(self, other: Self) -> Self {
        // Known to be 1 if both are; possibly 1 if both may be.
        let ones = self.value & other.value;
        Self { value: ones, mask: self.max() & other.max() & !ones }
    }

    pub(super) const fn or(self, other: Self) -> Self {
        let ones = self.value | other.value;
        Self { value: ones, mask: (self.mask | other.mask) & !ones }
    }

    pub(super) const fn xor(self, other: Self) -> Self {
        let mask = self.mask | other.mask;
        Self { value: (self.value ^ other.value) & !mask, mask }
    }

    pub(super) const fn shift_left(self, by: u32) -> Self {
        Self { value: self.value << by, mask: self.mask << by }
    }

    pub(super) const fn shift_right(self, by: u32) -> Self {
        Self { value: self.value >> by, mask: self.mask >> by }
    }

    /// The bits that come in are known if the sign is.
    pub(super) const fn shift_right_signed(self, by: u32) -> Self {
        let mask = (self.mask as i64 >> by) as u64;
        Self { value: (self.value as i64 >> by) as u64 & !mask, mask }
    }

    /// Trailing zeros add up; nothing else is tracked.
    pub(super) const fn mul(self, other: Self) -> Self {
        if self.mask == 0 && other.mask == 0 {
            return Self::constant(self.value.wrapping_mul(other.value));
        }
        let zeros = self.max().trailing_zeros() + other.max().trailing_zeros();
        if zeros >= 64 { Self::constant(0) } else { Self { value: 0, mask: u64::MAX << zeros } }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A tnum, and two of its numbers.
    fn tnum() -> impl Strategy<Value = (Tnum, u64, u64)> {
        (
            any::<u64>(),
            prop_oneof![any::<u64>(), Just(0), (0..64_u32).prop_map(|by| u64::MAX >> by)],
            any::<u64>(),
            any::<u64>(),
        )
            .prop_map(|(value, mask, one, other)| {
                let value = value & !mask;
                (Tnum { value, mask }, value | one & mask, value | other & mask)
            })
    }

    proptest! {
        #[test]
        fn results_are_among_those_told((a, x, other) in tnum(), (b, y, _) in tnum(), by in 0..64_u32) {
            prop_assert!(a.contains(x) && a.min() <= x && x <= a.max());
            prop_assert!(a.add(b).contains(x.wrapping_add(y)));
            prop_assert!(a.sub(b).contains(x.wrapping_sub(y)));
            prop_assert!(a.mul(b).contains(x.wrapping_mul(y)));
            prop_assert!(a.and(b).contains(x & y));
            prop_assert!(a.or(b).contains(x | y));
            prop_assert!(a.xor(b).contains(x ^ y));
            prop_assert!(a.shift_left(by).contains(x << by));
            prop_assert!(a.shift_right(by).contains(x >> by));
            prop_assert!(a.shift_right_signed(by).contains((x as i64 >> by) as u64));
            let range = Tnum::range(x.min(other), x.max(other));
            let middle = x.min(other) + x.abs_diff(other) / 2;
            prop_assert!([x, other, middle].into_iter().all(|value| range.contains(value)));
            prop_assert!(a.includes(Tnum::constant(x)) && Tnum::UNKNOWN.includes(a));
            match a.intersect(b) {
                Some(both) => prop_assert!(a.includes(both) && b.includes(both) && both.contains(x) == b.contains(x)),
                None => prop_assert!(!b.contains(x) && !a.contains(y)),
            }
        }
    }
}
