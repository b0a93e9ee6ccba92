//! Each operation and comparison, with numbers of its operands: random sets, and all of those that begin and end where
//! signs and halves do.
//!
//! Mutants that are caught, each planted by itself: see `crates/bpf/tests/guarded/main.rs`.

use alloc::format;
use alloc::vec::Vec;

use super::*;
use crate::insn::{AluOp, ByteOrder, Condition, Width};
use crate::interp::value;

impl Scalar {
    /// Whether this is one of the numbers: each part by itself.
    fn contains(&self, number: u64) -> bool {
        let (low, signed) = (number as u32, number as i64);
        self.bits.contains(number)
            && (self.min..=self.max).contains(&number)
            && (self.signed_min..=self.signed_max).contains(&signed)
            && (self.low.min..=self.low.max).contains(&low)
            && (self.low.signed_min..=self.low.signed_max).contains(&(low as i32))
    }
}

/// Random numbers, the same each time: SplitMix64 by Steele, Lea and Flood.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// A number near those at which something changes.
    fn number(&mut self) -> u64 {
        let mut near = || {
            let choice = self.next();
            let value = (1_u64 << (choice % 64)).wrapping_add((choice >> 8) % 5).wrapping_sub(2);
            if choice >> 63 == 0 { value } else { value.wrapping_neg() }
        };
        match near() % 3 {
            0 => near(),
            1 => near() << 32 | u64::from(near() as u32),
            _ => self.next() >> (self.next() % 64),
        }
    }

    /// A set, and one of its numbers.
    fn scalar(&mut self) -> (Scalar, u64) {
        let (number, parts) = (self.number(), self.next() as u8 % 40);
        let others = core::array::from_fn(|_| self.number());
        let set = if parts < 32 { around(number, others, parts).settled() } else { Some(Scalar::constant(number)) };
        (set.unwrap_or_else(|| panic!("{number:#x} with {parts:#b} of {others:x?}")), number)
    }
}

/// Parts of what is known, none of which leaves out `number`.
fn around(number: u64, others: [u64; 9], parts: u8) -> Scalar {
    let mut set = Scalar::UNKNOWN;
    let [mask, ends @ ..] = others;
    if parts & 1 != 0 {
        set.bits = Tnum { value: number & !mask, mask };
    }
    if parts & 2 != 0 {
        (set.min, set.max) = (number.min(ends[0]), number.max(ends[1]));
    }
    if parts & 4 != 0 {
        let signed = number as i64;
        (set.signed_min, set.signed_max) = (signed.min(ends[2] as i64), signed.max(ends[3] as i64));
    }
    if parts & 8 != 0 {
        let low = number as u32;
        (set.low.min, set.low.max) = (low.min(ends[4] as u32), low.max(ends[5] as u32));
    }
    if parts & 16 != 0 {
        let low = number as i32;
        (set.low.signed_min, set.low.signed_max) = (low.min(ends[6] as i32), low.max(ends[7] as i32));
    }
    set
}

/// Tries everything that is done with two numbers and what is known of them.
fn try_all((a, x): (Scalar, u64), (b, y): (Scalar, u64)) -> Result<(), alloc::string::String> {
    let is_in = |set: Scalar, result: u64, what: &dyn core::fmt::Debug| {
        let is_told = set.contains(result) && set.includes(&Scalar::constant(result));
        if is_told {
            Ok(())
        } else {
            Err(format!("{what:?}: {x:#x}, {y:#x} give {result:#x}\n{a:x?}\n{b:x?}\n{set:x?}"))
        }
    };
    for width in [Width::W32, Width::W64] {
        for op in AluOp::ALL {
            is_in(a.alu(width, op, &b), value::alu(width, op, x, y), &(width, op))?;
        }
        for condition in Condition::ALL {
            let holds = value::holds(width, condition, x, y);
            let what = (width, condition, holds);
            let left =
                a.assume(width, condition, b, holds).ok_or_else(|| format!("never: {what:?}\n{a:x?}\n{b:x?}"))?;
            is_in(left.0, x, &what)?;
            is_in(left.1, y, &what)?;
        }
    }
    Ok(())
}

/// The same with one number.
fn try_alone((a, x): (Scalar, u64)) -> Result<(), alloc::string::String> {
    let is_in = |set: Scalar, result: u64, what: &dyn core::fmt::Debug| {
        if set.contains(result) { Ok(()) } else { Err(format!("{what:?}: {x:#x} gives {result:#x}\n{a:x?}\n{set:x?}")) }
    };
    for width in [Width::W32, Width::W64] {
        is_in(a.negated(width), value::alu(width, AluOp::Sub, 0, x), &(width, "negated"))?;
        for size in [Size::Byte, Size::Half, Size::Word] {
            is_in(a.sign_extended(width, size), value::sign_extended(width, size, x), &(width, size))?;
        }
        // With itself.
        for condition in Condition::ALL {
            let holds = value::holds(width, condition, x, x);
            let (left, _) =
                a.assume(width, condition, a, holds).ok_or_else(|| format!("never: {condition:?} {a:x?}"))?;
            is_in(left, x, &(width, condition))?;
        }
    }
    for size in [Size::Byte, Size::Half, Size::Word, Size::Double] {
        for at in (0..8).step_by(size.bytes()) {
            is_in(a.part(at, size), x >> (8 * at) & (u64::MAX >> (64 - size.bits())), &(at, size))?;
        }
    }
    for size in [Size::Half, Size::Word, Size::Double] {
        for order in [ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap] {
            is_in(a.swapped(order, size), value::swapped(order, size, x), &(order, size))?;
        }
    }
    is_in(a.low(), u64::from(x as u32), &"low")?;
    is_in(a.signed_low(), x as i32 as u64, &"signed_low")?;
    Ok(())
}

#[test]
fn no_number_is_left_out() {
    let mut random = Random(1);
    for _ in 0..6000 {
        let (one, other) = (random.scalar(), random.scalar());
        assert!(one.0.contains(one.1), "{:x?} {:#x}", one.0, one.1);
        try_alone(one).unwrap_or_else(|error| panic!("{error}"));
        try_all(one, other).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn what_includes_another_set_has_its_numbers() {
    let mut random = Random(2);
    for _ in 0..20_000 {
        let ((a, x), (b, _)) = (random.scalar(), random.scalar());
        assert!(Scalar::UNKNOWN.includes(&a) && a.includes(&a), "{a:x?}");
        assert!(!b.includes(&a) || b.contains(x), "{b:x?} does not include {a:x?}");
        match a.both(b) {
            Some(both) => assert!(a.includes(&both) && b.includes(&both) && both.contains(x) == b.contains(x)),
            None => assert!(!b.contains(x), "{a:x?} {b:x?} {x:#x}"),
        }
        match b.with_low(a.low()) {
            Some(known) => assert!(b.includes(&known) && (!b.contains(x) || known.contains(x))),
            None => assert!(!b.contains(x), "{a:x?} {b:x?} {x:#x}"),
        }
    }
}

/// Halves of numbers at which signs and lengths change.
const HALVES: [u32; 5] = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// All ranges that begin and end with numbers of these halves, of the whole and of its lower half, with and without
/// sign, and bits of which some are known; and for each the numbers of these halves that are in it.
fn sets_at_limits() -> Vec<(Scalar, Vec<u64>)> {
    let numbers = HALVES.map(|upper| HALVES.map(|lower| u64::from(upper) << 32 | u64::from(lower))).concat();
    let mut sets = Vec::new();
    for one in &numbers {
        for other in numbers.iter().filter(|other| *one <= **other) {
            sets.push(Scalar { min: *one, max: *other, ..Scalar::UNKNOWN });
        }
        for other in numbers.iter().filter(|other| (*one as i64) <= **other as i64) {
            sets.push(Scalar { signed_min: *one as i64, signed_max: *other as i64, ..Scalar::UNKNOWN });
        }
    }
    for one in HALVES {
        for other in HALVES {
            let signed = Low { signed_min: one as i32, signed_max: other as i32, ..Low::UNKNOWN };
            let ranges =
                [(one <= other, Low { min: one, max: other, ..Low::UNKNOWN }), (one as i32 <= other as i32, signed)];
            sets.extend(
                ranges.iter().filter(|(is_one, _)| *is_one).map(|(_, low)| Scalar { low: *low, ..Scalar::UNKNOWN }),
            );
        }
    }
    // Each part is known, in either way, or not.
    const PARTS: [u64; 5] = [1 << 63, 0x7fff_ffff << 32, 1 << 31, 0x7fff_fffe, 1];
    for choice in 0..3_u32.pow(PARTS.len() as u32) {
        let mut bits = Tnum::constant(0);
        for (place, part) in PARTS.into_iter().enumerate() {
            match choice / 3_u32.pow(place as u32) % 3 {
                0 => {}
                1 => bits.value |= part,
                _ => bits.mask |= part,
            }
        }
        sets.push(Scalar::of_bits(bits));
    }
    let of = |set: Scalar| (set.sound(), numbers.iter().copied().filter(|number| set.contains(*number)).collect());
    sets.into_iter().map(of).collect()
}

/// Tries every `step`th pair of sets with all their numbers.
fn try_pairs(step: usize) -> usize {
    let sets = sets_at_limits();
    let mut tried = 0;
    for pair in (0..sets.len() * sets.len()).step_by(step) {
        let ((a, left), (b, right)) = (&sets[pair / sets.len()], &sets[pair % sets.len()]);
        for (x, y) in left.iter().flat_map(|x| right.iter().map(move |y| (*x, *y))) {
            try_all((*a, x), (*b, y)).unwrap_or_else(|error| panic!("{error}"));
            tried += 1;
        }
    }
    tried
}

#[test]
fn no_number_is_left_out_at_the_limits() {
    for (set, numbers) in sets_at_limits() {
        for number in numbers {
            try_alone((set, number)).unwrap_or_else(|error| panic!("{error}"));
        }
    }
    assert!(try_pairs(4999) > 1000);
}

#[test]
#[ignore = "a campaign of minutes: all pairs of sets"]
fn no_number_is_left_out_at_the_limits_in_a_campaign() {
    std::println!("{} pairs of numbers", try_pairs(1));
}

#[test]
fn what_programs_rely_on_is_known() {
    // A mask, a scale, an offset: an index into 8 entries of 16 bytes.
    let index = Scalar::UNKNOWN.alu(Width::W64, AluOp::And, &Scalar::constant(7));
    let place = index.alu(Width::W64, AluOp::ShiftLeft, &Scalar::constant(4));
    assert_eq!((place.signed_min(), place.signed_max(), place.is_aligned(16)), (0, 112, true));
    let (inside, _) = Scalar::UNKNOWN.assume(Width::W64, Condition::Less, Scalar::constant(10), true).expect("some");
    assert_eq!((inside.signed_min(), inside.signed_max()), (0, 9));
    let byte = Scalar::of_size(Size::Byte).alu(Width::W32, AluOp::Add, &Scalar::constant(1));
    assert_eq!((byte.signed_min(), byte.signed_max()), (1, 256));
    assert_eq!(Scalar::of_size(Size::Byte).assume(Width::W64, Condition::Greater, Scalar::constant(255), true), None);
    let word = Scalar::of_size(Size::Word);
    let (small, _) = word.assume(Width::W32, Condition::LessEqual, Scalar::constant(63), true).expect("some");
    assert_eq!(small.signed_max(), 63);
}

/// What is known of a number behind these comparisons of 32 bits with constants, all of which hold.
fn behind(mut number: Scalar, compared: &[(Condition, i32)]) -> Scalar {
    for (condition, with) in compared {
        let constant = Scalar::constant(i64::from(*with) as u64);
        (number, _) = number.assume(Width::W32, *condition, constant, true).expect("some");
    }
    number
}

#[test]
fn comparisons_of_the_lower_half_tell_of_it() {
    use Condition::{Less, LessEqual, NotEqual, SignedGreater, SignedLess, SignedLessEqual};
    let ends = |number: Scalar| (number.signed_min(), number.signed_max());
    // What is above it stays as it was.
    let low = behind(Scalar::UNKNOWN, &[(Less, 56)]);
    assert_eq!((ends(low), ends(low.low())), ((i64::MIN, i64::MAX & !0xffff_ffff | 55), (0, 55)));
    // With sign, in any order, of the whole and of a half.
    for number in [Scalar::UNKNOWN, Scalar::of_size(Size::Word)] {
        for order in [[(SignedGreater, -1), (SignedLess, 56)], [(SignedLess, 56), (SignedGreater, -1)]] {
            let index = behind(number, &order);
            assert_eq!(ends(index.low()), (0, 55));
            assert_eq!(ends(index.sign_extended(Width::W64, Size::Word)), (0, 55));
            assert_eq!(ends(index.alu(Width::W32, AluOp::Move, &index)), (0, 55));
        }
        let around = behind(number, &[(SignedGreater, -6), (SignedLessEqual, 5)]);
        assert_eq!(ends(around.sign_extended(Width::W64, Size::Word)), (-5, 5));
        let moved = around.alu(Width::W32, AluOp::Add, &Scalar::constant(5));
        assert_eq!(ends(moved), (0, 10));
        // The first or the last may be left out by itself.
        let some = behind(number, &[(NotEqual, 0), (SignedLessEqual, 64), (SignedGreater, -1)]);
        assert_eq!(ends(some.low()), (1, 64));
    }
    // A shift, a sum and a product know halves, too.
    let index = behind(Scalar::UNKNOWN, &[(LessEqual, 7)]);
    let shifted = index.alu(Width::W64, AluOp::ShiftLeft, &Scalar::constant(32));
    let back = |op| shifted.alu(Width::W64, op, &Scalar::constant(32));
    assert_eq!([ends(back(AluOp::ShiftRight)), ends(back(AluOp::ShiftRightSigned))], [(0, 7); 2]);
    let sum = index.alu(Width::W64, AluOp::Add, &Scalar::constant(3)).alu(Width::W64, AluOp::Mul, &Scalar::constant(4));
    assert_eq!(ends(sum.low()), (12, 40));
    // One less than nothing is -1, and not more than anything.
    let count =
        behind(Scalar::of_size(Size::Word), &[(LessEqual, 16)]).alu(Width::W32, AluOp::Sub, &Scalar::constant(1));
    assert_eq!(ends(count.sign_extended(Width::W64, Size::Word)), (-1, 15));
    let (count, _) = count.assume(Width::W32, SignedLess, Scalar::constant(0), false).expect("some");
    assert_eq!(ends(count), (0, 15));
}

#[test]
fn quotients_and_remainders_with_sign_have_bounds() {
    let ends = |number: Scalar| (number.signed_min(), number.signed_max());
    let number = Scalar::signed_range(-100, 50);
    for width in [Width::W32, Width::W64] {
        let by = |op, constant: i64| {
            let result = number.alu(width, op, &Scalar::constant(constant as u64));
            ends(if width == Width::W32 { result.sign_extended(Width::W64, Size::Word) } else { result })
        };
        assert_eq!([by(AluOp::SignedMod, 16), by(AluOp::SignedMod, -16)], [(-15, 15); 2], "{width:?}");
        assert_eq!([by(AluOp::SignedDiv, 10), by(AluOp::SignedDiv, -10)], [(-10, 5), (-5, 10)], "{width:?}");
        assert_eq!(by(AluOp::SignedDiv, -1), (-50, 100), "{width:?}");
    }
    let unknown = Scalar::UNKNOWN.alu(Width::W64, AluOp::SignedMod, &Scalar::of_size(Size::Byte));
    assert_eq!(unknown, Scalar::UNKNOWN);
}
