//! What comparisons tell of numbers.

use super::Scalar;
use super::low::LOW;
use crate::insn::{Condition, Width};
use crate::verify::tnum::Tnum;

impl Scalar {
    /// Returns what is left of both if `self condition right` holds (or does not) in `width` bits; `None` if that never
    /// happens.
    pub(in crate::verify) fn assume(
        self,
        width: Width,
        condition: Condition,
        right: Self,
        holds: bool,
    ) -> Option<(Self, Self)> {
        if condition == Condition::Common {
            let counted = if width == Width::W32 { LOW } else { u64::MAX };
            return if holds { self.with_common(right, counted) } else { self.without_common(right, counted) };
        }
        let condition = if holds { condition } else { opposite(condition) };
        if width == Width::W64 {
            return self.where_holds(condition, right);
        }
        let halves = if is_signed(condition) { Self::signed_half } else { Self::half };
        let ((left_half, left_is_whole), (right_half, right_is_whole)) = (halves(self), halves(right));
        let (left_left, right_left) = left_half.where_holds(condition, right_half)?;
        let keep = |whole: Self, half: Self, is_whole| if is_whole { Some(half) } else { whole.with_low(half) };
        Some((keep(self, left_left, left_is_whole)?, keep(right, right_left, right_is_whole)?))
    }

    /// The lower half, and whether that is all.
    fn half(self) -> (Self, bool) {
        (self.low(), self.is_low())
    }

    /// The same with sign.
    fn signed_half(self) -> (Self, bool) {
        (self.signed_low(), self.is_signed_low())
    }

    /// Returns what is left of both if they have a bit in common, of those that are `counted`.
    fn with_common(mut self, mut right: Self, counted: u64) -> Option<(Self, Self)> {
        let common = self.bits.max() & right.bits.max() & counted;
        if common == 0 {
            return None;
        }
        if common.is_power_of_two() {
            let bit = Tnum { value: common, mask: !common };
            (self.bits, right.bits) = (self.bits.intersect(bit)?, right.bits.intersect(bit)?);
        }
        Some((self.settled()?, right.settled()?))
    }

    /// Returns what is left of both if they have no bit in common, of those that are `counted`.
    fn without_common(mut self, mut right: Self, counted: u64) -> Option<(Self, Self)> {
        // Where one has a bit, the other has none.
        let zeros = |ones: u64| Tnum { value: 0, mask: !(ones & counted) };
        let bits = (self.bits.intersect(zeros(right.bits.min()))?, right.bits.intersect(zeros(self.bits.min()))?);
        (self.bits, right.bits) = bits;
        Some((self.settled()?, right.settled()?))
    }

    /// Returns what is left of both if `self condition right` holds in 64 bits; `None` if it never does. The condition
    /// is not that of common bits.
    fn where_holds(mut self, condition: Condition, mut right: Self) -> Option<(Self, Self)> {
        match condition {
            Condition::Equal => {
                let both = self.both(right)?;
                return Some((both, both));
            }
            Condition::NotEqual => {
                if self.as_constant().is_some() && self.as_constant() == right.as_constant() {
                    return None;
                }
                let (left, other) = (self, right);
                self.exclude(other)?;
                right.exclude(left)?;
            }
            Condition::Less => {
                self.max = self.max.min(right.max.checked_sub(1)?);
                right.min = right.min.max(self.min.checked_add(1)?);
            }
            Condition::LessEqual => {
                self.max = self.max.min(right.max);
                right.min = right.min.max(self.min);
            }
            Condition::SignedLess => {
                self.signed_max = self.signed_max.min(right.signed_max.checked_sub(1)?);
                right.signed_min = right.signed_min.max(self.signed_min.checked_add(1)?);
            }
            Condition::SignedLessEqual => {
                self.signed_max = self.signed_max.min(right.signed_max);
                right.signed_min = right.signed_min.max(self.signed_min);
            }
            Condition::Greater | Condition::GreaterEqual | Condition::SignedGreater | Condition::SignedGreaterEqual => {
                let (right, left) = right.where_holds(mirrored(condition), self)?;
                return Some((left, right));
            }
            Condition::Common => return self.with_common(right, u64::MAX),
        }
        Some((self.settled()?, right.settled()?))
    }

    /// Leaves out a constant if it is the first or the last number; `None` if none is left.
    fn exclude(&mut self, other: Self) -> Option<()> {
        if let Some(constant) = other.as_constant() {
            if self.min == constant {
                self.min = self.min.checked_add(1)?;
            }
            if self.max == constant {
                self.max = self.max.checked_sub(1)?;
            }
            if self.signed_min == constant as i64 {
                self.signed_min = self.signed_min.checked_add(1)?;
            }
            if self.signed_max == constant as i64 {
                self.signed_max = self.signed_max.checked_sub(1)?;
            }
        }
        Some(())
    }
}

const fn is_signed(condition: Condition) -> bool {
    matches!(
        condition,
        Condition::SignedLess | Condition::SignedLessEqual | Condition::SignedGreater | Condition::SignedGreaterEqual
    )
}

/// The condition with its operands exchanged.
const fn mirrored(condition: Condition) -> Condition {
    match condition {
        Condition::Greater => Condition::Less,
        Condition::GreaterEqual => Condition::LessEqual,
        Condition::SignedGreater => Condition::SignedLess,
        Condition::SignedGreaterEqual => Condition::SignedLessEqual,
        other => other,
    }
}

/// Returns the condition that holds if this one does not; for common bits, which have none, the caller sees to that.
const fn opposite(condition: Condition) -> Condition {
    match condition {
        Condition::Equal => Condition::NotEqual,
        Condition::NotEqual => Condition::Equal,
        Condition::Greater => Condition::LessEqual,
        Condition::GreaterEqual => Condition::Less,
        Condition::Less => Condition::GreaterEqual,
        Condition::LessEqual => Condition::Greater,
        Condition::SignedGreater => Condition::SignedLessEqual,
        Condition::SignedGreaterEqual => Condition::SignedLess,
        Condition::SignedLess => Condition::SignedGreaterEqual,
        Condition::SignedLessEqual => Condition::SignedGreater,
        Condition::Common => Condition::Common,
    }
}
