//! The results of operations according to RFC 9669, defined a second time, in wide numbers, without the crate's types.

/// How many bits an operation works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bits {
    B32,
    B64,
}

impl Bits {
    pub(super) const ALL: [Self; 2] = [Self::B32, Self::B64];

    const fn count(self) -> u32 {
        match self {
            Self::B32 => 32,
            Self::B64 => 64,
        }
    }

    /// Returns a number's low bits, with all others zero.
    pub(super) fn low(self, value: i128) -> u64 {
        (value as u128 & ((1 << self.count()) - 1)) as u64
    }

    /// Returns a number's low bits as a signed number.
    fn signed(self, value: u64) -> i128 {
        sign_extended(self.count(), value)
    }
}

/// Returns the low `bits` of a number as a signed number.
pub(super) fn sign_extended(bits: u32, value: u64) -> i128 {
    let low = i128::from(value) & ((1 << bits) - 1);
    if low >> (bits - 1) == 0 { low } else { low - (1 << bits) }
}

/// Returns the result according to table 4 and section 4.1. `code` is the opcode's operation, without the bit for the
/// source; `offset` is the instruction's.
pub(super) fn arithmetic(code: u8, offset: i16, bits: Bits, left: u64, right: u64) -> u64 {
    let (a, b) = (i128::from(bits.low(left.into())), i128::from(bits.low(right.into())));
    let (sa, sb) = (bits.signed(left), bits.signed(right));
    // "The shift amount is masked": by 0x3f and 0x1f.
    let by = b & (i128::from(bits.count()) - 1);
    let result = match (code, offset) {
        (0x00, _) => a + b,
        (0x10, _) => a - b,
        (0x20, _) => return bits.low(((a as u128).wrapping_mul(b as u128)) as i128),
        (0x30, _) if b == 0 => 0,
        (0x30, 0) => a / b,
        (0x30, _) => sa / sb,
        (0x40, _) => a | b,
        (0x50, _) => a & b,
        (0x60, _) => a << by,
        (0x70, _) => a >> by,
        (0x90, _) if b == 0 => a,
        (0x90, 0) => a % b,
        // "a % n = a - n * trunc(a / n)"
        (0x90, _) => sa - sb * (sa / sb),
        (0xa0, _) => a ^ b,
        (0xb0, _) => b,
        (0xc0, _) => sa >> by,
        _ => panic!("code {code:#x}, offset {offset}"),
    };
    bits.low(result)
}

/// Returns whether a jump is taken (table 9).
pub(super) fn taken(code: u8, bits: Bits, left: u64, right: u64) -> bool {
    let (a, b) = (bits.low(left.into()), bits.low(right.into()));
    let (sa, sb) = (bits.signed(left), bits.signed(right));
    match code {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        0x50 => a != b,
        0x60 => sa > sb,
        0x70 => sa >= sb,
        0xa0 => a < b,
        0xb0 => a <= b,
        0xc0 => sa < sb,
        0xd0 => sa <= sb,
        _ => panic!("code {code:#x}"),
    }
}

/// Returns the low `len` bytes of a number in reversed order.
pub(super) fn reversed(len: usize, value: u64) -> u64 {
    value.to_le_bytes()[..len].iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Returns what the memory holds after an atomic operation (section 5.3).
pub(super) fn atomic(code: i32, bits: Bits, old: u64, operand: u64, expected: u64) -> u64 {
    let low = |value: u64| bits.low(value.into());
    match code & !1 {
        0x00 => bits.low(i128::from(old) + i128::from(operand)),
        0x40 => low(old | operand),
        0x50 => low(old & operand),
        0xa0 => low(old ^ operand),
        0xe0 => low(operand),
        0xf0 if low(old) == low(expected) => low(operand),
        0xf0 => low(old),
        _ => panic!("code {code:#x}"),
    }
}
