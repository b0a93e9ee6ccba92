//! What operations on numbers give.

use super::Scalar;
use crate::insn::{AluOp, ByteOrder, Size, Width};
use crate::interp::value;

impl Scalar {
    /// Returns the number in `size` bytes of this one, from byte `at` on; byte 0 is the lowest.
    pub(in crate::verify) fn part(&self, at: u8, size: Size) -> Self {
        let from_there = self.shift(AluOp::ShiftRight, 8 * u32::from(at));
        match size {
            Size::Double => from_there,
            Size::Word => from_there.low(),
            Size::Byte | Size::Half => from_there.low().alu_and(u64::MAX >> (64 - size.bits())),
        }
    }

    /// Extends the low `size` bytes with their sign to `width` bits.
    pub(in crate::verify) fn sign_extended(&self, width: Width, size: Size) -> Self {
        if let Some(constant) = self.as_constant() {
            return Self::constant(value::sign_extended(width, size, constant));
        }
        let above = 64 - size.bits();
        let most = i64::MAX >> above;
        let fits = |number: &Self| -most - 1 <= number.signed_min && number.signed_max <= most;
        let bits = self.bits.shift_left(above).shift_right_signed(above);
        // Numbers that are extended already, with their sign or with zeros, stay as they are.
        let known = [self.signed_low(), self.part(0, size)].into_iter().find(fits);
        let range = Self { bits, signed_min: -most - 1, signed_max: most, ..Self::UNKNOWN };
        let wide = if size == Size::Double { *self } else { known.unwrap_or_else(|| range.sound()) };
        match width {
            Width::W32 => wide.low(),
            Width::W64 => wide,
        }
    }

    /// Returns another order of the low `size` bytes.
    pub(in crate::verify) fn swapped(&self, order: ByteOrder, size: Size) -> Self {
        match self.as_constant() {
            Some(constant) => Self::constant(value::swapped(order, size, constant)),
            None => Self::of_size(size),
        }
    }

    /// Returns `-self` in `width` bits.
    pub(in crate::verify) fn negated(&self, width: Width) -> Self {
        Self::constant(0).alu(width, AluOp::Sub, self)
    }

    /// Returns `self op right` in `width` bits.
    pub(in crate::verify) fn alu(&self, width: Width, op: AluOp, right: &Self) -> Self {
        if let (Some(left), Some(right)) = (self.as_constant(), right.as_constant()) {
            return Self::constant(value::alu(width, op, left, right));
        }
        match width {
            Width::W64 if has_low_of_lows(op) && !(self.low.is_unknown() && right.low.is_unknown()) => {
                self.alu_with_low(op, right)
            }
            Width::W64 => self.alu64(op, right, 64),
            Width::W32 => self.alu32(op, right),
        }
    }

    /// Returns an operation in 64 bits whose lower half is that of the lower halves.
    #[cold]
    fn alu_with_low(&self, op: AluOp, right: &Self) -> Self {
        let whole = self.alu64(op, right, 64);
        whole.with_low(self.alu32(op, right)).unwrap_or(whole)
    }

    /// Returns the operation in 32 bits, extended with zeros.
    pub(super) fn alu32(&self, op: AluOp, right: &Self) -> Self {
        match op {
            AluOp::ShiftRightSigned => self.signed_low().alu64(op, &right.low(), 32).low(),
            AluOp::SignedDiv | AluOp::SignedMod => self.signed_low().alu64(op, &right.signed_low(), 32).low(),
            op => {
                // The lower half of these results depends only on the lower halves of the operands.
                let (left, other) = (self.low(), right.low());
                let result = left.alu64(op, &other, 32).low();
                if left.low.is_unknown() && other.low.is_unknown() || !has_low_of_lows(op) {
                    return result;
                }
                // However these are extended.
                let signed = self.signed_low().alu64(op, &right.signed_low(), 32).low();
                result.both(signed).unwrap_or(result)
            }
        }
    }

    /// Returns the operation in 64 bits; of a shift's operand only as many low bits count as `width` needs.
    pub(super) fn alu64(&self, op: AluOp, right: &Self, width: u64) -> Self {
        match op {
            // Nothing is known of these results if nothing is known of one operand.
            AluOp::Add | AluOp::Sub | AluOp::Xor if self.is_unknown() || right.is_unknown() => Self::UNKNOWN,
            AluOp::Add => self.add(right),
            AluOp::Sub => self.sub(right),
            AluOp::Mul => self.mul(right),
            AluOp::And => Self { max: self.max.min(right.max), ..Self::of_bits(self.bits.and(right.bits)) }.sound(),
            AluOp::Or => Self { min: self.min.max(right.min), ..Self::of_bits(self.bits.or(right.bits)) }.sound(),
            AluOp::Xor => Self::of_bits(self.bits.xor(right.bits)).sound(),
            AluOp::ShiftLeft | AluOp::ShiftRight | AluOp::ShiftRightSigned => {
                let most = width - 1;
                let by = match right.as_constant() {
                    Some(by) => Self::constant(by & most),
                    None => right.alu_and(most),
                };
                match by.as_constant() {
                    Some(by) => self.shift(op, by as u32),
                    None => self.shift_between(op, by.min as u32, by.max as u32),
                }
            }
            AluOp::Div => match right.min {
                // 0 if the divisor is 0.
                0 => Self::range(0, self.max),
                least => Self::range(self.min / right.max, self.max / least),
            },
            AluOp::Mod => match right.min {
                0 => Self::range(0, self.max),
                _ => Self::range(0, self.max.min(right.max - 1)),
            },
            AluOp::SignedDiv => self.signed_div(right),
            AluOp::SignedMod => self.signed_mod(right),
            AluOp::Move => *right,
        }
    }

    fn alu_and(&self, mask: u64) -> Self {
        self.alu64(AluOp::And, &Self::constant(mask), 64)
    }

    fn add(&self, right: &Self) -> Self {
        let mut sum = Self::of_bits(self.bits.add(right.bits));
        if let (Some(min), Some(max)) = (self.min.checked_add(right.min), self.max.checked_add(right.max)) {
            (sum.min, sum.max) = (min, max);
        }
        let (least, most) =
            (self.signed_min.checked_add(right.signed_min), self.signed_max.checked_add(right.signed_max));
        if let (Some(min), Some(max)) = (least, most) {
            (sum.signed_min, sum.signed_max) = (min, max);
        }
        sum.sound()
    }

    fn sub(&self, right: &Self) -> Self {
        let mut difference = Self::of_bits(self.bits.sub(right.bits));
        if let (Some(min), Some(max)) = (self.min.checked_sub(right.max), self.max.checked_sub(right.min)) {
            (difference.min, difference.max) = (min, max);
        }
        let (least, most) =
            (self.signed_min.checked_sub(right.signed_max), self.signed_max.checked_sub(right.signed_min));
        if let (Some(min), Some(max)) = (least, most) {
            (difference.signed_min, difference.signed_max) = (min, max);
        }
        difference.sound()
    }

    fn mul(&self, right: &Self) -> Self {
        let mut product = Self::of_bits(self.bits.mul(right.bits));
        if let (Some(min), Some(max)) = (self.min.checked_mul(right.min), self.max.checked_mul(right.max)) {
            (product.min, product.max) = (min, max);
        } else if let Some((min, max)) = self.signed_product(right) {
            (product.signed_min, product.signed_max) = (min, max);
        }
        product.sound()
    }

    /// Returns the ends of the products with sign, unless one is too great.
    fn signed_product(&self, right: &Self) -> Option<(i64, i64)> {
        let (mut min, mut max) = (i64::MAX, i64::MIN);
        for left in [self.signed_min, self.signed_max] {
            for right in [right.signed_min, right.signed_max] {
                let product = left.checked_mul(right)?;
                (min, max) = (min.min(product), max.max(product));
            }
        }
        Some((min, max))
    }

    /// Towards 0, by a constant, or of numbers without a sign.
    fn signed_div(&self, right: &Self) -> Self {
        if self.signed_min >= 0 && right.signed_min >= 0 {
            return self.alu64(AluOp::Div, right, 64);
        }
        let divided = |number: i64| number.checked_div(right.signed_min);
        match (right.as_constant(), divided(self.signed_min), divided(self.signed_max)) {
            (Some(_), Some(one), Some(other)) => Self::signed_range(one.min(other), one.max(other)),
            _ => Self::UNKNOWN,
        }
    }

    /// The sign is the dividend's, which is also the result if the divisor is 0.
    fn signed_mod(&self, right: &Self) -> Self {
        let may_be_zero = right.signed_min <= 0 && right.signed_max >= 0;
        let greatest = right.signed_min.unsigned_abs().max(right.signed_max.unsigned_abs());
        // The greatest remainder, without sign: at most 2^63 - 1.
        let most = if may_be_zero { i64::MAX } else { (greatest - 1) as i64 };
        let least = if may_be_zero { i64::MIN } else { -most };
        Self::signed_range(self.signed_min.max(least).min(0), self.signed_max.min(most).max(0))
    }

    /// Shifts by a constant.
    fn shift(&self, op: AluOp, by: u32) -> Self {
        match op {
            AluOp::ShiftLeft => {
                let mut shifted = Self::of_bits(self.bits.shift_left(by));
                // Of the upper half nothing is left if that is shifted out.
                let (ends, signed_ends) = if by < 32 {
                    ((self.min, self.max), (self.signed_min, self.signed_max))
                } else {
                    let (plain, signed) = (self.low(), self.signed_low());
                    ((plain.min, plain.max), (signed.signed_min, signed.signed_max))
                };
                if ends.1.leading_zeros() >= by {
                    (shifted.min, shifted.max) = (ends.0 << by, ends.1 << by);
                }
                let (signed_min, signed_max) = (signed_ends.0 << by, signed_ends.1 << by);
                if (signed_min >> by, signed_max >> by) == signed_ends {
                    (shifted.signed_min, shifted.signed_max) = (signed_min, signed_max);
                }
                shifted.sound()
            }
            AluOp::ShiftRight => {
                let bits = self.bits.shift_right(by);
                Self { min: self.min >> by, max: self.max >> by, ..Self::of_bits(bits) }.sound()
            }
            _ => {
                let bits = self.bits.shift_right_signed(by);
                let (signed_min, signed_max) = (self.signed_min >> by, self.signed_max >> by);
                Self { signed_min, signed_max, ..Self::of_bits(bits) }.sound()
            }
        }
    }

    /// Shifts by `least` to `most` bits.
    fn shift_between(&self, op: AluOp, least: u32, most: u32) -> Self {
        match op {
            AluOp::ShiftLeft if self.max.leading_zeros() >= most => Self::range(self.min << least, self.max << most),
            AluOp::ShiftLeft => Self::UNKNOWN,
            AluOp::ShiftRight => Self::range(self.min >> most, self.max >> least),
            // The further, the closer to 0 or to -1.
            _ => Self::signed_range(
                self.signed_min >> if self.signed_min < 0 { least } else { most },
                self.signed_max >> if self.signed_max < 0 { most } else { least },
            ),
        }
    }
}

/// Whether the lower half of a result is what the same operation gives for the lower halves.
const fn has_low_of_lows(op: AluOp) -> bool {
    matches!(op, AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor)
}
