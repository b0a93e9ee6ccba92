//! Formats of programs, as C's `printf` has them, without memory of the allocator.

use core::fmt;

use super::call::Call;
use super::probe;
use crate::interp::HelperError;

/// Longest format (`MAX_BPRINTF_BUF` of Linux, `kernel/bpf/helpers.c`), and the most that is printed of one.
pub(super) const MOST: usize = 1024;

/// How a number is written: what stands between the percent sign and the letter.
#[derive(Clone, Copy, Default)]
struct Style {
    is_left: bool,
    has_zeros: bool,
    has_prefix: bool,
    /// What stands before a number that is not negative.
    sign: &'static [u8],
    width: usize,
    /// Least number of digits.
    precision: Option<usize>,
    /// Bits of the number.
    bits: u32,
}

impl Style {
    /// Reads it; what is left begins with the letter.
    fn read(text: &[u8]) -> (Self, &[u8]) {
        let mut style = Self { bits: 32, ..Self::default() };
        let flags = text.iter().take_while(|letter| b"-+ 0#".contains(letter)).count();
        let (flags, rest) = text.split_at(flags);
        for flag in flags {
            match flag {
                b'-' => style.is_left = true,
                b'0' => style.has_zeros = true,
                b'#' => style.has_prefix = true,
                b'+' => style.sign = b"+",
                _ if style.sign.is_empty() => style.sign = b" ",
                _ => {}
            }
        }
        let (width, mut rest) = number(rest);
        style.width = width;
        if let Some(behind) = rest.strip_prefix(b".") {
            let (precision, behind) = number(behind);
            (style.precision, rest) = (Some(precision), behind);
        }
        for (letters, bits) in [(&b"hh"[..], 8), (b"h", 16), (b"ll", 64), (b"l", 64), (b"z", 64)] {
            if let Some(behind) = rest.strip_prefix(letters) {
                return (Self { bits, ..style }, behind);
            }
        }
        (style, rest)
    }

    /// Returns how many blanks stand before what has `len` letters behind a prefix, how many zeros inside, and how many
    /// blanks behind.
    fn room(&self, prefix: usize, len: usize) -> (usize, usize, usize) {
        let zeros = self.precision.unwrap_or(0).saturating_sub(len);
        let room = self.width.saturating_sub(prefix + zeros + len);
        // As in C: with a precision, or on the left side, nothing is filled with zeros.
        match () {
            () if self.is_left => (0, zeros, room),
            () if self.has_zeros && self.precision.is_none() => (0, room + zeros, 0),
            () => (room, zeros, 0),
        }
    }

    /// The same without what only numbers have.
    const fn of_text(self) -> Self {
        Self { has_zeros: false, precision: None, ..self }
    }
}

/// Returns the number that a text begins with, at most a field's width, and what is behind it.
fn number(text: &[u8]) -> (usize, &[u8]) {
    /// Anything longer is no line any more.
    const MOST: usize = 256;
    let digits = text.iter().take_while(|letter| letter.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(digits);
    (digits.iter().fold(0, |number, digit| (10 * number + usize::from(digit - b'0')).min(MOST)), rest)
}

/// Digits of a number, at the end of room for the longest: 64 bits in base 8.
struct Digits {
    room: [u8; 22],
    first: usize,
}

impl Digits {
    fn new(mut number: u64, base: u64, letters: &[u8; 16]) -> Self {
        let mut digits = Self { room: [b'0'; 22], first: 22 };
        loop {
            digits.first -= 1;
            digits.room[digits.first] = letters[(number % base) as usize];
            number /= base;
            if number == 0 {
                return digits;
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.room[self.first..]
    }
}

const SMALL: &[u8; 16] = b"0123456789abcdef";
const LARGE: &[u8; 16] = b"0123456789ABCDEF";

/// Where text goes.
enum Place<'a> {
    Line(&'a mut [u8; MOST]),
    /// A helper's first argument, up to this many bytes.
    Room(usize),
}

/// Prints formats of a program.
pub(super) struct Printer<'a, 'c> {
    call: &'a mut Call<'c>,
    place: Place<'a>,
    /// Bytes that were printed, also those that do not fit.
    len: usize,
}

impl<'a, 'c> Printer<'a, 'c> {
    pub(super) fn to_line(call: &'a mut Call<'c>, line: &'a mut [u8; MOST]) -> Self {
        Self { call, place: Place::Line(line), len: 0 }
    }

    pub(super) fn to_room(call: &'a mut Call<'c>, len: usize) -> Self {
        Self { call, place: Place::Room(len), len: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), HelperError> {
        let at = self.len;
        self.len += bytes.len();
        match &mut self.place {
            Place::Line(line) => {
                let line = line.get_mut(at..).unwrap_or_default();
                let fits = line.len().min(bytes.len());
                line[..fits].copy_from_slice(&bytes[..fits]);
                Ok(())
            }
            Place::Room(room) => {
                let fits = room.saturating_sub(at).min(bytes.len());
                if fits == 0 { Ok(()) } else { self.call.write_at(0, at, &bytes[..fits]) }
            }
        }
    }

    fn fill(&mut self, letter: u8, count: usize) -> Result<(), HelperError> {
        (0..count).try_for_each(|_| self.put(&[letter]))
    }

    fn put_styled(&mut self, style: &Style, prefix: &[u8], digits: &[u8]) -> Result<(), HelperError> {
        let (before, inside, behind) = style.room(prefix.len(), digits.len());
        self.fill(b' ', before)?;
        self.put(prefix)?;
        self.fill(b'0', inside)?;
        self.put(digits)?;
        self.fill(b' ', behind)
    }

    /// Prints the text at an address, of at most as many bytes as the precision says; nothing if nothing is mapped
    /// there.
    fn put_text_at(&mut self, style: &Style, address: u64) -> Result<(), HelperError> {
        let most = style.precision.unwrap_or(MOST).min(MOST);
        let len = probe::text_at(self.call, address, most, &mut |_, _, _| Ok(()))?.unwrap_or(0);
        let (before, _, behind) = style.of_text().room(0, len);
        self.fill(b' ', before)?;
        let mut bytes = [0; 64];
        for at in (0..len).step_by(bytes.len()) {
            let bytes = &mut bytes[..64.min(len - at)];
            // Others may have changed it since.
            let got = self.call.peek_at(address.wrapping_add(at as u64), bytes);
            bytes[got..].fill(0);
            self.put(bytes)?;
        }
        self.fill(b' ', behind)
    }

    /// Prints numbers in place of `%d`, `%i`, `%u`, `%x`, `%X`, `%o`, `%c` and `%p` in `format`, with flags, widths,
    /// precisions and lengths as in C, and texts in place of `%s`, `%pks` and `%pus` where the program may read from
    /// unproven addresses. Anything else behind a percent sign stays. Returns how long it is, also what does not fit.
    pub(super) fn print(mut self, format: &[u8], numbers: &[u64]) -> Result<usize, HelperError> {
        let mut numbers = numbers.iter().copied();
        let mut rest = format;
        while let Some(at) = rest.iter().position(|letter| *letter == b'%') {
            self.put(&rest[..at])?;
            let behind = &rest[at + 1..];
            let (style, letters) = Style::read(behind);
            let Some((letter, after)) = letters.split_first() else {
                self.put(b"%")?;
                rest = behind;
                break;
            };
            rest = after;
            if *letter == b'%' {
                self.put(b"%")?;
                continue;
            }
            let number = numbers.next().unwrap_or(0);
            // `%s`, and Linux's `%pks` and `%pus` for kernel and user addresses, which are the same here.
            let behind_text = match letter {
                b's' => Some(rest),
                b'p' => rest.strip_prefix(b"ks").or_else(|| rest.strip_prefix(b"us")),
                _ => None,
            };
            if let Some(behind) = behind_text.filter(|_| self.call.may_probe()) {
                self.put_text_at(&style, number)?;
                rest = behind;
                continue;
            }
            if !self.put_number(&style, *letter, number)? {
                self.put(b"%")?;
                self.put(&behind[..behind.len() - rest.len()])?;
            }
        }
        self.put(rest)?;
        Ok(self.len)
    }

    /// Prints a number as the letter says; false for an unknown one.
    fn put_number(&mut self, style: &Style, letter: u8, number: u64) -> Result<bool, HelperError> {
        // Of addresses all bits count.
        let above = if letter == b'p' { 0 } else { 64 - style.bits };
        let (plain, signed) = (number << above >> above, (number << above) as i64 >> above);
        let prefix: &[u8] = match letter {
            b'd' | b'i' if signed < 0 => b"-",
            b'd' | b'i' => style.sign,
            b'p' => b"0x",
            b'x' if style.has_prefix && plain != 0 => b"0x",
            b'X' if style.has_prefix && plain != 0 => b"0X",
            b'o' if style.has_prefix && plain != 0 => b"0",
            _ => b"",
        };
        let digits = match letter {
            b'd' | b'i' => Digits::new(signed.unsigned_abs(), 10, SMALL),
            b'u' => Digits::new(plain, 10, SMALL),
            b'x' | b'p' => Digits::new(plain, 16, SMALL),
            b'X' => Digits::new(plain, 16, LARGE),
            b'o' => Digits::new(plain, 8, SMALL),
            b'c' => {
                self.put_styled(&style.of_text(), b"", &[number as u8])?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.put_styled(style, prefix, digits.as_bytes())?;
        Ok(true)
    }
}

/// Returns what stands before the first zero.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Shows bytes as text.
pub(super) struct Lossy<'a>(pub(super) &'a [u8]);

impl fmt::Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString};

    use super::*;

    /// Formats numbers without reading texts.
    fn plain(format: &str, numbers: &[u64]) -> String {
        let mut line = [0; MOST];
        let entry = super::super::Host::builder().build();
        let mut memory = crate::interp::Memory::new();
        let mut call = Call::new([0; 5], &entry.absent, &mut memory, super::super::call::Rest::Kept);
        let len = Printer::to_line(&mut call, &mut line).print(format.as_bytes(), numbers).expect("no memory is used");
        Lossy(&line[..len]).to_string()
    }

    #[test]
    fn numbers_are_put_where_the_format_says() {
        let minus_one = u64::MAX;
        assert_eq!(plain("a %d b %lld c %x", &[minus_one, minus_one, 0x1_0000_00ff]), "a -1 b -1 c ff");
        assert_eq!(plain("%lu%% %c", &[7, u64::from(b'x'), 0]), "7% x");
        assert_eq!(plain("%s %", &[7, 8, 9]), "%s %");
        assert_eq!(plain("%llx %05d%p", &[1 << 40, 5, 6]), "10000000000 000050x6");
    }

    /// What C's `printf` makes of the same, for numbers of its types.
    #[test]
    fn flags_widths_and_lengths_are_those_of_c() {
        let minus_5 = -5_i64 as u64;
        for (format, number, expected) in [
            ("%5d|", 42, "   42|"),
            ("%-5d|", 42, "42   |"),
            ("%05d|", minus_5, "-0005|"),
            ("%-05d|", minus_5, "-5   |"),
            ("%+d|% d|", 7, "+7| 0|"),
            ("%+ d|", 7, "+7|"),
            ("%.4d|", minus_5, "-0005|"),
            ("%07.3d|", 5, "    005|"),
            ("%#x|", 255, "0xff|"),
            ("%#x|", 0, "0|"),
            ("%#08X|", 255, "0X0000FF|"),
            ("%#o|", 8, "010|"),
            ("%hhd|", 0x1ff, "-1|"),
            ("%hu|", 0x1_2345, "9029|"),
            ("%ld|", minus_5, "-5|"),
            ("%zu|", minus_5, "18446744073709551611|"),
            ("%3c|", 0x141, "  A|"),
            ("%-12p|", 0x1000, "0x1000      |"),
            ("%5s|%pI4|", 1, "%5s|0x0I4|"),
            ("%", 1, "%"),
            ("%-", 1, "%-"),
        ] {
            assert_eq!(plain(format, &[number]), expected, "{format}");
        }
        assert_eq!(plain("%999999999999999999999d", &[1]).len(), 256);
    }
}
