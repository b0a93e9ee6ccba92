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
            let (mut left, mut right) = (self, right);
            let learn = if holds { Self::learn_common } else { Self::learn_none_common };
            learn(&mut left, &mut right, counted)?;
            return Some((left, right));
        }
        let condition = if holds { condition } else { opposite(condition) };
        if width == Width::W64 {
            let (mut left, mut right) = (self, right);
            left.learn(condition, &mut right)?;
            return Some((left, right));
        }
        let halves = if is_signed(condition) { Self::signed_half } else { Self::half };
        let ((mut left_half, left_is_whole), (mut right_half, right_is_whole)) = (halves(&self), halves(&right));
        left_half.learn(condition, &mut right_half)?;
        let keep = |whole: Self, half: Self, is_whole| if is_whole { Some(half) } else { whole.with_low(half) };
        Some((keep(self, left_half, left_is_whole)?, keep(right, right_half, right_is_whole)?))
    }

    /// The lower half, and whether that is all.
    fn half(&self) -> (Self, bool) {
        (self.low(), self.is_low())
    }

    /// The same with sign.
    fn signed_half(&self) -> (Self, bool) {
        (self.signed_low(), self.is_signed_low())
    }

    /// Tells both that they have a bit in common, of those that are `counted`; `None` if they never do.
    fn learn_common(&mut self, right: &mut Self, counted: u64) -> Option<()> {
        let common = self.bits.max() & right.bits.max() & counted;
        if common == 0 {
            return None;
        }
        if common.is_power_of_two() {
            let bit = Tnum { value: common, mask: !common };
            (self.bits, right.bits) = (self.bits.intersect(bit)?, right.bits.intersect(bit)?);
        }
        self.settle()?;
        right.settle()
    }

    /// Tells both that they have no bit in common, of those that are `counted`; `None` if they always do.
    fn learn_none_common(&mut self, right: &mut Self, counted: u64) -> Option<()> {
        // Where one has a bit, the other has none.
        let zeros = |ones: u64| Tnum { value: 0, mask: !(ones & counted) };
        let bits = (self.bits.intersect(zeros(right.bits.min()))?, right.bits.intersect(zeros(self.bits.min()))?);
        (self.bits, right.bits) = bits;
        self.settle()?;
        right.settle()
    }

    /// Tells both that `self condition right` holds in 64 bits; `None` if it never does.
    fn learn(&mut self, condition: Condition, right: &mut Self) -> Option<()> {
        match condition {
            Condition::Equal => {
                *self = self.both(*right)?;
                *right = *self;
                return Some(());
            }
            Condition::NotEqual => {
                if self.as_constant().is_some() && self.as_constant() == right.as_constant() {
                    return None;
                }
                let left = *self;
                self.exclude(right)?;
                right.exclude(&left)?;
            }
            Condition::Less => self.is_less(right)?,
            Condition::LessEqual => self.is_at_most(right),
            Condition::SignedLess => self.is_signed_less(right)?,
            Condition::SignedLessEqual => self.is_signed_at_most(right),
            Condition::Greater => right.is_less(self)?,
            Condition::GreaterEqual => right.is_at_most(self),
            Condition::SignedGreater => right.is_signed_less(self)?,
            Condition::SignedGreaterEqual => right.is_signed_at_most(self),
            Condition::Common => return self.learn_common(right, u64::MAX),
        }
        self.settle()?;
        right.settle()
    }

    /// Tells both that this one is less; `None` if it never is.
    fn is_less(&mut self, other: &mut Self) -> Option<()> {
        self.max = self.max.min(other.max.checked_sub(1)?);
        other.min = other.min.max(self.min.checked_add(1)?);
        Some(())
    }

    /// Tells both that this one is not greater.
    fn is_at_most(&mut self, other: &mut Self) {
        self.max = self.max.min(other.max);
        other.min = other.min.max(self.min);
    }

    /// As [`is_less`](Self::is_less), with sign.
    fn is_signed_less(&mut self, other: &mut Self) -> Option<()> {
        self.signed_max = self.signed_max.min(other.signed_max.checked_sub(1)?);
        other.signed_min = other.signed_min.max(self.signed_min.checked_add(1)?);
        Some(())
    }

    /// As [`is_at_most`](Self::is_at_most), with sign.
    fn is_signed_at_most(&mut self, other: &mut Self) {
        self.signed_max = self.signed_max.min(other.signed_max);
        other.signed_min = other.signed_min.max(self.signed_min);
    }

    /// Leaves out a constant if it is the first or the last number; `None` if none is left.
    fn exclude(&mut self, other: &Self) -> Option<()> {
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
