//! Bytes of a slot of the stack that were written in parts, and the numbers that were.

use alloc::vec::Vec;

use super::Link;
use crate::insn::{AluOp, Size, Width};
use crate::verify::scalar::Scalar;

/// Which of 8 bytes were written, and the numbers of 1, 2 and 4 of them, at aligned places, that are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::verify) struct Written {
    /// A bit for each byte.
    bytes: u8,
    /// Where numbers of 1, of 2 and of 4 bytes begin: a bit for each byte. They do not overlap.
    begins: [u8; 3],
    /// The least value of each number, at its place; 0 elsewhere.
    least: u64,
    /// The greatest value of each number, likewise.
    most: u64,
    /// The links of the two numbers of 4 bytes, known or not, that were stored as such.
    links: [Link; 2],
}

/// What belongs to sizes, by index.
const SIZES: [Size; 3] = [Size::Byte, Size::Half, Size::Word];

fn index(size: Size) -> Option<usize> {
    SIZES.iter().position(|known| *known == size)
}

/// The bits of a number of this size at byte `at`.
fn place(at: u8, size: Size) -> u64 {
    (u64::MAX >> (64 - size.bits())) << (8 * u32::from(at))
}

impl Written {
    pub(super) const NOTHING: Self = Self { bytes: 0, begins: [0; 3], least: 0, most: 0, links: [Link::NONE; 2] };
    /// All bytes, of which nothing else is known.
    const ALL: Self = Self { bytes: u8::MAX, ..Self::NOTHING };

    /// All bytes of a number that was written as a whole.
    pub(super) fn of(number: Scalar) -> Self {
        let mut written = Self::ALL;
        for at in [0, 4] {
            written.put(at, Size::Word, number.part(at, Size::Word));
        }
        written
    }

    /// Whether these bytes were written.
    pub(super) const fn has(&self, bytes: u8) -> bool {
        self.bytes & bytes == bytes
    }

    pub(super) const fn without_numbers(&self) -> Self {
        Self { bytes: self.bytes, ..Self::NOTHING }
    }

    /// Iterates over the places where numbers are known.
    fn places(self) -> impl Iterator<Item = (u8, Size)> {
        let begin = move |at: u8| (0..SIZES.len()).find(|index| self.begins[*index] & 1 << at != 0);
        (0..8).filter_map(move |at| Some((at, SIZES[begin(at)?])))
    }

    /// Returns the ends of the range of the number of this size at byte `at`.
    fn range(&self, at: u8, size: Size) -> Option<(u64, u64)> {
        let is_known = self.begins[index(size)?] & 1 << at != 0;
        let (shift, place) = (8 * u32::from(at), place(at, size));
        is_known.then_some(((self.least & place) >> shift, (self.most & place) >> shift))
    }

    /// Returns a bit for each byte that was written, and the numbers that are known, with the byte where each begins.
    pub(super) fn parts(&self) -> (u8, Vec<(u8, Size, Scalar)>) {
        let known = |(at, size)| Some((at, size, self.number(at, size)?));
        (self.bytes, self.places().filter_map(known).collect())
    }

    /// Returns the number of this size at byte `at`.
    fn number(&self, at: u8, size: Size) -> Option<Scalar> {
        let (least, most) = self.range(at, size)?;
        Some(if least == most { Scalar::constant(least) } else { Scalar::range(least, most) })
    }

    /// Returns the number in `size` bytes from byte `at` on, a multiple of that, if it is known or part of one.
    pub(super) fn get(&self, at: u8, size: Size) -> Option<Scalar> {
        SIZES[index(size)?..].iter().find_map(|around| {
            let begin = at & !(around.bytes() as u8 - 1);
            let number = self.number(begin, *around)?;
            Some(if *around == size { number } else { number.part(at - begin, size) })
        })
    }

    /// Forgets the number of this size at byte `at`.
    fn forget(&mut self, at: u8, size: Size) {
        let place = place(at, size);
        (self.least, self.most) = (self.least & !place, self.most & !place);
        if let Some(index) = index(size) {
            self.begins[index] &= !(1 << at);
        }
    }

    /// Notes that bytes are overwritten; with numbers, if that is `certain`.
    pub(super) fn overwrite(&mut self, bytes: u8, certain: bool) {
        if bytes == u8::MAX {
            *self = self.without_numbers();
        } else {
            for byte in (0..8).filter(|byte| bytes & 1 << byte != 0) {
                self.links[usize::from(byte / 4)] = Link::NONE;
                self.forget_at(byte);
            }
        }
        if certain {
            self.bytes |= bytes;
        }
    }

    /// Forgets the number to which a byte belongs, except in the parts of it without that byte.
    fn forget_at(&mut self, byte: u8) {
        let around = self.places().find(|(at, size)| (*at..at + size.bytes() as u8).contains(&byte));
        if let Some((mut at, size)) = around
            && let Some(mut number) = self.number(at, size)
        {
            self.forget(at, size);
            for half in SIZES[..index(size).unwrap_or(0)].iter().rev() {
                let middle = at + half.bytes() as u8;
                let (begin, rest) = if byte < middle { (at, middle) } else { (middle, at) };
                self.put(rest, *half, number.part(rest - at, *half));
                (number, at) = (number.part(begin - at, *half), begin);
            }
        }
    }

    /// The link of the number of 4 bytes at byte `at`: 0 or 4.
    pub(super) fn link(&self, at: u8) -> Link {
        self.links[usize::from(at / 4)]
    }

    /// Notes the link of the number of 4 bytes that was put at byte `at`.
    pub(super) fn set_link(&mut self, at: u8, link: Link) {
        self.links[usize::from(at / 4)] = link;
    }

    /// Notes what was learned of the number of 4 bytes at byte `at`, which was stored as such.
    pub(super) fn narrow(&mut self, at: u8, number: Scalar) {
        self.forget(at, Size::Word);
        self.put(at, Size::Word, number);
    }

    /// Notes that the lowest bytes of `number` are at byte `at`, where no number is known.
    pub(super) fn put(&mut self, at: u8, size: Size, number: Scalar) {
        let all = place(0, size);
        let stored = number.alu(Width::W64, AluOp::And, &Scalar::constant(all));
        let (Some(index), Ok(least), Ok(most)) =
            (index(size), u64::try_from(stored.signed_min()), u64::try_from(stored.signed_max()))
        else {
            return;
        };
        if (least, most) == (0, all) || most > all {
            return;
        }
        self.begins[index] |= 1 << at;
        self.least |= least << (8 * u32::from(at));
        self.most |= most << (8 * u32::from(at));
    }

    fn includes_at(&self, other: &Self, at: u8, size: Size) -> bool {
        match (self.number(at, size), other.get(at, size)) {
            (Some(number), Some(other)) => {
                number.signed_min() <= other.signed_min() && other.signed_max() <= number.signed_max()
            }
            _ => false,
        }
    }

    /// Whether all bytes that were written here were written there, and the numbers known here include those there.
    pub(super) fn includes(&self, other: &Self) -> bool {
        self.bytes & !other.bytes == 0 && self.places().all(|(at, size)| self.includes_at(other, at, size))
    }

    /// Returns what includes both, and does not change again and again as `other` does.
    pub(super) fn widened(&self, other: &Self) -> Self {
        let links = [0, 1].map(|half| self.links[half].if_also(other.links[half]));
        let mut widened = Self { bytes: self.bytes & other.bytes, links, ..*self };
        for (at, size) in self.places() {
            if !self.includes_at(other, at, size) {
                widened.forget(at, size);
            }
        }
        widened
    }
}
