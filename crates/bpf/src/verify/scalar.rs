//! What is known of a number: bits, and ranges with and without sign.
//!
//! Everything here errs to one side: no number that can occur is left out. The tests try each operation with numbers of
//! its operands, and compare with the interpreter's results.

use super::tnum::Tnum;
use crate::insn::{AluOp, ByteOrder, Condition, Size, Width};
use crate::interp::value;

/// A set of numbers, which leaves none out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Scalar {
    bits: Tnum,
    min: u64,
    max: u64,
    signed_min: i64,
    signed_max: i64,
}

const U32: u64 = u32::MAX as u64;

impl Scalar {
    /// All numbers.
    pub(super) const UNKNOWN: Self =
        Self { bits: Tnum::UNKNOWN, min: 0, max: u64::MAX, signed_min: i64::MIN, signed_max: i64::MAX };

    pub(super) const fn constant(value: u64) -> Self {
        let signed = value as i64;
        Self { bits: Tnum::constant(value), min: value, max: value, signed_min: signed, signed_max: signed }
    }

    /// All numbers from `min` to `max`.
    pub(super) fn range(min: u64, max: u64) -> Self {
        Self { min, max, ..Self::UNKNOWN }.settled().unwrap_or(Self::UNKNOWN)
    }

    /// All numbers with sign from `min` to `max`.
    pub(super) fn signed_range(min: i64, max: i64) -> Self {
        Self { signed_min: min, signed_max: max, ..Self::UNKNOWN }.settled().unwrap_or(Self::UNKNOWN)
    }

    /// All numbers of `size` bytes.
    pub(super) const fn of_size(size: Size) -> Self {
        let max = u64::MAX >> (64 - size.bits());
        if max == u64::MAX {
            return Self::UNKNOWN;
        }
        Self { bits: Tnum { value: 0, mask: max }, min: 0, max, signed_min: 0, signed_max: max as i64 }
    }

    /// Whether nothing is known. Part by part: reading the whole at once would have to wait for all of it to be
    /// written.
    const fn is_unknown(&self) -> bool {
        self.bits.mask == u64::MAX
            && self.min == 0
            && self.max == u64::MAX
            && self.signed_min == i64::MIN
            && self.signed_max == i64::MAX
    }

    pub(super) const fn as_constant(&self) -> Option<u64> {
        if self.min == self.max { Some(self.min) } else { None }
    }

    pub(super) const fn signed_min(&self) -> i64 {
        self.signed_min
    }

    pub(super) const fn signed_max(&self) -> i64 {
        self.signed_max
    }

    /// Whether every number of `other` is one of these.
    pub(super) const fn includes(&self, other: &Self) -> bool {
        self.bits.includes(other.bits)
            && self.min <= other.min
            && other.max <= self.max
            && self.signed_min <= other.signed_min
            && other.signed_max <= self.signed_max
    }

    /// Whether all numbers are multiples of `align`, a power of 2.
    pub(super) const fn is_aligned(&self, align: u64) -> bool {
        self.bits.max() & (align - 1) == 0
    }

    /// Tells each part what the others know; `None` if they have no number in common.
    fn settled(mut self) -> Option<Self> {
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
        Some(self)
    }

    /// The same for parts that are known to have numbers in common.
    fn sound(self) -> Self {
        self.settled().unwrap_or(Self::UNKNOWN)
    }

    /// Returns the low 32 bits, extended with zeros.
    fn low(self) -> Self {
        if self.max <= U32 {
            return self;
        }
        let (min, max) = if self.min >> 32 == self.max >> 32 { (self.min & U32, self.max & U32) } else { (0, U32) };
        Self { bits: self.bits.and(Tnum::constant(U32)), min, max, ..Self::UNKNOWN }.sound()
    }

    /// Returns the number in `size` bytes of this one, from byte `at` on; byte 0 is the lowest.
    pub(super) fn part(self, at: u8, size: Size) -> Self {
        let from_there = self.shift(AluOp::ShiftRight, 8 * u32::from(at));
        match size {
            Size::Word => from_there.low(),
            size => from_there.alu_and(u64::MAX >> (64 - size.bits())),
        }
    }

    /// Extends the low `size` bytes with their sign to `width` bits.
    pub(super) fn sign_extended(self, width: Width, size: Size) -> Self {
        if let Some(constant) = self.as_constant() {
            return Self::constant(value::sign_extended(width, size, constant));
        }
        let most = i64::MAX >> (64 - size.bits());
        let fits = -most - 1 <= self.signed_min && self.signed_max <= most;
        let wide = if fits { self } else { Self::signed_range(-most - 1, most) };
        match width {
            Width::W32 => wide.low(),
            Width::W64 => wide,
        }
    }

    /// Returns another order of the low `size` bytes.
    pub(super) fn swapped(self, order: ByteOrder, size: Size) -> Self {
        match self.as_constant() {
            Some(constant) => Self::constant(value::swapped(order, size, constant)),
            None => Self::of_size(size),
        }
    }

    /// Returns `-self` in `width` bits.
    pub(super) fn negated(self, width: Width) -> Self {
        Self::constant(0).alu(width, AluOp::Sub, self)
    }

    /// Returns `self op right` in `width` bits.
    pub(super) fn alu(self, width: Width, op: AluOp, right: Self) -> Self {
        if let (Some(left), Some(right)) = (self.as_constant(), right.as_constant()) {
            return Self::constant(value::alu(width, op, left, right));
        }
        match width {
            Width::W64 => self.alu64(op, right, 64),
            // The low half of these results depends only on the low halves of the operands.
            Width::W32 => match op {
                AluOp::ShiftRightSigned => {
                    let left = self.low().sign_extended(Width::W64, Size::Word);
                    left.alu64(op, right.low(), 32).low()
                }
                AluOp::SignedDiv | AluOp::SignedMod => Self::of_size(Size::Word),
                op => self.low().alu64(op, right.low(), 32).low(),
            },
        }
    }

    /// Returns the operation in 64 bits; of a shift's operand only as many low bits count as `width` needs.
    fn alu64(self, op: AluOp, right: Self, width: u64) -> Self {
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
                let by = right.alu_and(width - 1);
                match by.as_constant() {
                    Some(by) => self.shift(op, by as u32),
                    // Only smaller, if nothing is shifted in from above.
                    None if op == AluOp::ShiftRight => Self::range(0, self.max),
                    None => Self::UNKNOWN,
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
            AluOp::SignedDiv | AluOp::SignedMod => Self::UNKNOWN,
            AluOp::Move => right,
        }
    }

    const fn of_bits(bits: Tnum) -> Self {
        Self { bits, ..Self::UNKNOWN }
    }

    fn alu_and(self, mask: u64) -> Self {
        self.alu64(AluOp::And, Self::constant(mask), 64)
    }

    fn add(self, right: Self) -> Self {
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

    fn sub(self, right: Self) -> Self {
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

    fn mul(self, right: Self) -> Self {
        let mut product = Self::of_bits(self.bits.mul(right.bits));
        if let (Some(min), Some(max)) = (self.min.checked_mul(right.min), self.max.checked_mul(right.max)) {
            (product.min, product.max) = (min, max);
        }
        product.sound()
    }

    fn shift(self, op: AluOp, by: u32) -> Self {
        match op {
            AluOp::ShiftLeft => {
                let mut shifted = Self::of_bits(self.bits.shift_left(by));
                if self.max.leading_zeros() >= by {
                    (shifted.min, shifted.max) = (self.min << by, self.max << by);
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

    /// Returns what is left of both if `self condition right` holds in 64 bits; `None` if it never does.
    fn where_holds(mut self, condition: Condition, mut right: Self) -> Option<(Self, Self)> {
        match condition {
            Condition::Equal => {
                let both = Self {
                    bits: self.bits.intersect(right.bits)?,
                    min: self.min.max(right.min),
                    max: self.max.min(right.max),
                    signed_min: self.signed_min.max(right.signed_min),
                    signed_max: self.signed_max.min(right.signed_max),
                };
                let both = both.settled()?;
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
            Condition::Common => {
                if self.bits.max() & right.bits.max() == 0 {
                    return None;
                }
            }
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

    /// Returns what is left of both if `self condition right` holds (or does not) in `width` bits; `None` if that never
    /// happens.
    pub(super) fn assume(self, width: Width, condition: Condition, right: Self, holds: bool) -> Option<(Self, Self)> {
        if condition == Condition::Common && !holds {
            // No common bit: with a constant, its bits are all 0.
            let no_bits = |scalar: Self, mask: Option<u64>| match mask {
                Some(mask) => {
                    let mask = if width == Width::W32 { mask & U32 } else { mask };
                    Self { bits: scalar.bits.intersect(Tnum { value: 0, mask: !mask })?, ..scalar }.settled()
                }
                None => Some(scalar),
            };
            return Some((no_bits(self, right.as_constant())?, no_bits(right, self.as_constant())?));
        }
        let condition = if holds { condition } else { opposite(condition) };
        match width {
            Width::W64 => self.where_holds(condition, right),
            Width::W32 => {
                let (left_low, right_low) = (self.low(), right.low());
                let is_signed = is_signed(condition);
                // Numbers of 31 bits have the same order with and without sign.
                let small = |scalar: &Self| scalar.max <= i32::MAX as u64;
                if is_signed && !(small(&left_low) && small(&right_low)) {
                    return Some((self, right));
                }
                let (left_left, right_left) = left_low.where_holds(condition, right_low)?;
                // What is learned of the low half is learned of the whole if nothing is above it.
                let keep = |whole: Self, left: Self| if whole.max <= U32 { left } else { whole };
                Some((keep(self, left_left), keep(right, right_left)))
            }
        }
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

#[cfg(test)]
mod tests {
    use alloc::format;

    use proptest::prelude::*;

    use super::*;

    impl Scalar {
        fn contains(&self, number: u64) -> bool {
            self.includes(&Self::constant(number))
        }
    }

    /// Numbers near those at which something changes.
    fn number() -> impl Strategy<Value = u64> {
        let near = (0..64_u32, -2..=2_i64).prop_map(|(log, by)| (1_u64 << log).wrapping_add_signed(by));
        prop_oneof![
            near.clone(),
            near.prop_map(u64::wrapping_neg),
            0..10_u64,
            any::<u64>(),
            any::<u32>().prop_map(u64::from)
        ]
    }

    /// A set, and one of its numbers.
    fn scalar() -> impl Strategy<Value = (Scalar, u64)> {
        let range = (number(), number(), any::<u64>()).prop_map(|(one, other, by)| {
            let (min, max) = (one.min(other), one.max(other));
            let inside = (max - min).checked_add(1).map_or(by, |count| min + by % count);
            (Scalar::range(min, max), inside)
        });
        let signed = (number(), number(), any::<bool>()).prop_map(|(one, other, first)| {
            let (min, max) = ((one as i64).min(other as i64), (one as i64).max(other as i64));
            (Scalar::signed_range(min, max), if first { min } else { max } as u64)
        });
        let bits = (number(), number())
            .prop_map(|(value, mask)| (Scalar::of_bits(Tnum { value: value & !mask, mask }).sound(), value));
        let constant = number().prop_map(|value| (Scalar::constant(value), value));
        let unknown = number().prop_map(|value| (Scalar::UNKNOWN, value));
        prop_oneof![range, signed, bits, constant, unknown]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_result_is_left_out((a, x) in scalar(), (b, y) in scalar()) {
            prop_assert!(a.contains(x) && b.contains(y), "{a:x?} {x:#x}");
            for width in [Width::W32, Width::W64] {
                for op in AluOp::ALL {
                    let (set, result) = (a.alu(width, op, b), value::alu(width, op, x, y));
                    prop_assert!(set.contains(result), "{width:?} {op:?}: {result:#x} in {set:x?}");
                }
                prop_assert!(a.negated(width).contains(value::alu(width, AluOp::Sub, 0, x)));
                for size in [Size::Byte, Size::Half, Size::Word] {
                    prop_assert!(a.sign_extended(width, size).contains(value::sign_extended(width, size, x)));
                }
            }
            for size in [Size::Half, Size::Word, Size::Double] {
                for order in [ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap] {
                    prop_assert!(a.swapped(order, size).contains(value::swapped(order, size, x)));
                }
            }
        }

        #[test]
        fn no_number_is_left_out_behind_a_branch((a, x) in scalar(), (b, y) in scalar()) {
            for (left, right) in [(y, y), (x, y)] {
                let a = if left == x { a } else { b };
                for width in [Width::W32, Width::W64] {
                    for condition in Condition::ALL {
                        let holds = value::holds(width, condition, left, right);
                        let what = format!("{left:#x} {condition:?} {right:#x} in {width:?}: {a:x?} {b:x?}");
                        let (one, other) = a.assume(width, condition, b, holds).ok_or_else(|| {
                            TestCaseError::fail(format!("never: {what}"))
                        })?;
                        prop_assert!(one.contains(left) && other.contains(right), "{}: {:x?} {:x?}", what, one, other);
                    }
                }
            }
        }
    }

    #[test]
    fn what_programs_rely_on_is_known() {
        // A mask, a scale, an offset: an index into 8 entries of 16 bytes.
        let index = Scalar::UNKNOWN.alu(Width::W64, AluOp::And, Scalar::constant(7));
        let place = index.alu(Width::W64, AluOp::ShiftLeft, Scalar::constant(4));
        assert_eq!((place.signed_min(), place.signed_max(), place.is_aligned(16)), (0, 112, true));
        let (inside, _) =
            Scalar::UNKNOWN.assume(Width::W64, Condition::Less, Scalar::constant(10), true).expect("some");
        assert_eq!((inside.signed_min(), inside.signed_max()), (0, 9));
        let byte = Scalar::of_size(Size::Byte).alu(Width::W32, AluOp::Add, Scalar::constant(1));
        assert_eq!((byte.signed_min(), byte.signed_max()), (1, 256));
        assert_eq!(
            Scalar::of_size(Size::Byte).assume(Width::W64, Condition::Greater, Scalar::constant(255), true),
            None
        );
        let word = Scalar::of_size(Size::Word);
        let (small, _) = word.assume(Width::W32, Condition::LessEqual, Scalar::constant(63), true).expect("some");
        assert_eq!(small.signed_max(), 63);
    }
}
