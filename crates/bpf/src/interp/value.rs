//! What operations on values give: the one place where RFC 9669's arithmetic is written in Rust.

use crate::insn::{AluOp, AtomicOp, ByteOrder, Condition, Size, Width};

/// Returns `left op right` in `width` bits; a result of 32 bits is extended with zeros.
pub(crate) fn alu(width: Width, op: AluOp, left: u64, right: u64) -> u64 {
    match width {
        Width::W32 => alu32(op, left as u32, right as u32).into(),
        Width::W64 => alu64(op, left, right),
    }
}

/// Defines the arithmetic on one width.
macro_rules! arithmetic {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        fn $name(op: AluOp, left: $unsigned, right: $unsigned) -> $unsigned {
            // Shifts take as many low bits of their operand as the width needs (section 4.1); `wrapping_shl` does.
            let by = right as u32;
            match op {
                AluOp::Add => left.wrapping_add(right),
                AluOp::Sub => left.wrapping_sub(right),
                AluOp::Mul => left.wrapping_mul(right),
                AluOp::Div => left.checked_div(right).unwrap_or(0),
                AluOp::SignedDiv if right == 0 => 0,
                AluOp::SignedDiv => (left as $signed).wrapping_div(right as $signed) as $unsigned,
                AluOp::Mod => left.checked_rem(right).unwrap_or(left),
                AluOp::SignedMod if right == 0 => left,
                AluOp::SignedMod => (left as $signed).wrapping_rem(right as $signed) as $unsigned,
                AluOp::Or => left | right,
                AluOp::And => left & right,
                AluOp::Xor => left ^ right,
                AluOp::ShiftLeft => left.wrapping_shl(by),
                AluOp::ShiftRight => left.wrapping_shr(by),
                AluOp::ShiftRightSigned => (left as $signed).wrapping_shr(by) as $unsigned,
                AluOp::Move => right,
            }
        }
    };
}

arithmetic!(alu32, u32, i32);
arithmetic!(alu64, u64, i64);

/// Extends the low `size` bytes of `value` with their sign to `width` bits, and then with zeros.
pub(crate) fn sign_extended(width: Width, size: Size, value: u64) -> u64 {
    let wide = match size {
        Size::Byte => value as i8 as u64,
        Size::Half => value as i16 as u64,
        Size::Word => value as i32 as u64,
        Size::Double => value,
    };
    match width {
        Width::W32 => wide as u32 as u64,
        Width::W64 => wide,
    }
}

/// Returns the low `size` bytes of `value` in another order.
pub(crate) fn swapped(order: ByteOrder, size: Size, value: u64) -> u64 {
    match (order, size) {
        (_, Size::Byte) => value as u8 as u64,
        (ByteOrder::Little, Size::Half) => (value as u16).to_le().into(),
        (ByteOrder::Little, Size::Word) => (value as u32).to_le().into(),
        (ByteOrder::Little, Size::Double) => value.to_le(),
        (ByteOrder::Big, Size::Half) => (value as u16).to_be().into(),
        (ByteOrder::Big, Size::Word) => (value as u32).to_be().into(),
        (ByteOrder::Big, Size::Double) => value.to_be(),
        (ByteOrder::Swap, Size::Half) => (value as u16).swap_bytes().into(),
        (ByteOrder::Swap, Size::Word) => (value as u32).swap_bytes().into(),
        (ByteOrder::Swap, Size::Double) => value.swap_bytes(),
    }
}

/// Whether `left condition right` holds in `width` bits.
pub(crate) fn holds(width: Width, condition: Condition, left: u64, right: u64) -> bool {
    let (left, right) = match width {
        Width::W32 => (left as u32 as u64, right as u32 as u64),
        Width::W64 => (left, right),
    };
    let signed = |value: u64| match width {
        Width::W32 => i64::from(value as i32),
        Width::W64 => value as i64,
    };
    match condition {
        Condition::Equal => left == right,
        Condition::NotEqual => left != right,
        Condition::Greater => left > right,
        Condition::GreaterEqual => left >= right,
        Condition::Less => left < right,
        Condition::LessEqual => left <= right,
        Condition::SignedGreater => signed(left) > signed(right),
        Condition::SignedGreaterEqual => signed(left) >= signed(right),
        Condition::SignedLess => signed(left) < signed(right),
        Condition::SignedLessEqual => signed(left) <= signed(right),
        Condition::Common => left & right != 0,
    }
}

/// Returns what memory holds after an atomic operation on `old`; `expected` is `r0`. Only as many low bits count as
/// memory has.
pub(crate) fn replaced(op: AtomicOp, old: u64, operand: u64, expected: u64) -> u64 {
    match op {
        AtomicOp::Add | AtomicOp::FetchAdd => old.wrapping_add(operand),
        AtomicOp::Or | AtomicOp::FetchOr => old | operand,
        AtomicOp::And | AtomicOp::FetchAnd => old & operand,
        AtomicOp::Xor | AtomicOp::FetchXor => old ^ operand,
        AtomicOp::Exchange => operand,
        AtomicOp::CompareExchange if old == expected => operand,
        AtomicOp::CompareExchange => old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_never_trap() {
        use AluOp::{Div, Mod, SignedDiv, SignedMod};
        use Width::{W32, W64};
        for (width, left) in [(W32, 7), (W64, 7 << 40)] {
            assert_eq!(alu(width, Div, left, 0), 0);
            assert_eq!(alu(width, SignedDiv, left, 0), 0);
            assert_eq!(alu(width, Mod, left, 0), left);
            assert_eq!(alu(width, SignedMod, left, 0), left);
        }
        assert_eq!(alu(W64, SignedDiv, i64::MIN as u64, u64::MAX), i64::MIN as u64);
        assert_eq!(alu(W64, SignedMod, i64::MIN as u64, u64::MAX), 0);
        assert_eq!(alu(W32, SignedDiv, 0x8000_0000, u64::MAX), 0x8000_0000);
        assert_eq!(alu(W32, SignedMod, 0x8000_0000, u64::MAX), 0);
        assert_eq!(alu(W32, SignedMod, -13_i64 as u64, 4), -1_i32 as u32 as u64);
        // The 32 bits above do not matter.
        assert_eq!(alu(W32, Mod, 0xdead_0000_0007, 0xbeef_0000_0000), 7);
    }

    #[test]
    fn shifts_take_the_low_bits_of_their_operand() {
        assert_eq!(alu(Width::W64, AluOp::ShiftLeft, 1, 65), 2);
        assert_eq!(alu(Width::W32, AluOp::ShiftRight, 4, 33), 2);
        assert_eq!(alu(Width::W32, AluOp::ShiftRightSigned, 0x8000_0000, 31), 0xffff_ffff);
        assert_eq!(alu(Width::W64, AluOp::ShiftRightSigned, 1 << 63, u64::MAX), u64::MAX);
    }
}
