//! Helpers that ask the operating system, and the one that prints.

use std::borrow::Cow;
use std::format;
use std::hash::{BuildHasher, Hasher};
use std::string::{String, ToString};
use std::vec::Vec;

use palimpsest_sys::clock::Clock;

use super::call::{Call, failed};
use super::probe;
use crate::interp::{Answer, HelperError};

fn now(clock: Clock) -> Result<Answer, HelperError> {
    Ok(Answer::Value(clock.nanoseconds()))
}

pub(super) fn monotonic(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Monotonic)
}

pub(super) fn coarse(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Coarse)
}

pub(super) fn since_start(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Boot)
}

pub(super) fn atomic(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Atomic)
}

/// The node that the thread runs on.
pub(super) fn node(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    Ok(Answer::Value(palimpsest_sys::numa::current_node().0.into()))
}

/// Returns 32 bits that nobody can predict.
pub(super) fn random(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    // Keyed by the system's random numbers, once for each thread, and different each time.
    let hash = std::hash::RandomState::new().build_hasher().finish();
    Ok(Answer::Value(hash >> 32))
}

/// The process in the upper half, the thread in the lower.
pub(super) fn process(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let thread = palimpsest_sys::threads::own::own_thread();
    Ok(Answer::Value(u64::from(std::process::id()) << 32 | u64::from(thread as u32)))
}

/// Longest format (`MAX_BPRINTF_BUF` of Linux, `kernel/bpf/helpers.c`).
const MOST: usize = 1024;
const EINVAL: i64 = 22;

/// An event of `tracing` with the target `bpf`.
pub(super) fn trace(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut bytes = [0; MOST];
    let len = call.read(0, &mut bytes)?;
    let text = formatted(&until_zero(&bytes[..len]), &[call.number(2), call.number(3), call.number(4)], &|at, most| {
        text_of(call, at, most)
    });
    tracing::info!(target: "bpf", "{}", text.trim_end_matches('\n'));
    Ok(Answer::Value(text.len() as u64))
}

/// The same with numbers in memory (`bpf_trace_vprintk`).
pub(super) fn trace_many(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut bytes = [0; MOST];
    let len = call.read(0, &mut bytes)?;
    let Some(numbers) = numbers(call, 2)? else { return failed(EINVAL) };
    let text = formatted(&until_zero(&bytes[..len]), &numbers, &|at, most| text_of(call, at, most));
    tracing::info!(target: "bpf", "{}", text.trim_end_matches('\n'));
    Ok(Answer::Value(text.len() as u64))
}

/// `bpf_snprintf`: text and a zero, as far as they fit. Returns the length of all of it, including the zero.
pub(super) fn format(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let numbers = numbers(call, 3)?;
    let format = call.text(2, MOST)?;
    let given = numbers.as_deref().unwrap_or_default();
    let text = formatted(&until_zero(&format), given, &|at, most| text_of(call, at, most));
    let mut room = std::vec![0; call.len(0)?];
    if numbers.is_none() {
        call.write(0, &room)?;
        return failed(EINVAL);
    }
    let fits = text.len().min(room.len().saturating_sub(1));
    room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
    call.write(0, &room)?;
    Ok(Answer::Value(text.len() as u64 + 1))
}

/// Returns the text at an address, of at most `most` bytes; empty if nothing is mapped there. `None` if the program may
/// not read from unproven addresses.
fn text_of(call: &Call<'_>, address: u64, most: usize) -> Option<String> {
    if !call.may_probe() {
        return None;
    }
    let mut bytes = std::vec![0; most.min(MOST) + 1];
    let len = probe::text_at(call, address, &mut bytes).unwrap_or(0);
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

/// Returns the numbers at which the argument with this index points; `None` if that is a wrong number of bytes.
fn numbers(call: &Call<'_>, index: usize) -> Result<Option<Vec<u64>>, HelperError> {
    /// Numbers of one format (`MAX_BPRINTF_VARARGS` of Linux, `include/linux/bpf.h`).
    const MOST: usize = 12;
    let len = call.len(index)?;
    if !len.is_multiple_of(8) || len > 8 * MOST {
        return Ok(None);
    }
    let bytes = call.bytes(index)?;
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    Ok(Some(bytes.chunks_exact(8).map(number).collect()))
}

fn until_zero(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// How a number is written: what stands between the percent sign and the letter.
#[derive(Default)]
struct Style {
    is_left: bool,
    has_zeros: bool,
    has_prefix: bool,
    /// What stands before a number that is not negative.
    sign: &'static str,
    width: usize,
    /// Least number of digits.
    precision: Option<usize>,
    /// Bits of the number.
    bits: u32,
}

impl Style {
    /// Reads it; what is left begins with the letter.
    fn read(text: &str) -> (Self, &str) {
        let mut style = Self { bits: 32, ..Self::default() };
        let rest = text.trim_start_matches(['-', '+', ' ', '0', '#']);
        for flag in text[..text.len() - rest.len()].chars() {
            match flag {
                '-' => style.is_left = true,
                '0' => style.has_zeros = true,
                '#' => style.has_prefix = true,
                '+' => style.sign = "+",
                _ if style.sign.is_empty() => style.sign = " ",
                _ => {}
            }
        }
        let (width, mut rest) = number(rest);
        style.width = width;
        if let Some(behind) = rest.strip_prefix('.') {
            let (precision, behind) = number(behind);
            (style.precision, rest) = (Some(precision), behind);
        }
        for (letters, bits) in [("hh", 8), ("h", 16), ("ll", 64), ("l", 64), ("z", 64)] {
            if let Some(behind) = rest.strip_prefix(letters) {
                return (Self { bits, ..style }, behind);
            }
        }
        (style, rest)
    }

    /// Writes `digits` behind `prefix`, as wide as they should be.
    fn write(&self, out: &mut String, prefix: &str, digits: &str) {
        let zeros = self.precision.unwrap_or(0).saturating_sub(digits.len());
        let room = self.width.saturating_sub(prefix.len() + zeros + digits.len());
        // As in C: with a precision, or on the left side, nothing is filled with zeros.
        let (before, inside, behind) = match () {
            () if self.is_left => (0, 0, room),
            () if self.has_zeros && self.precision.is_none() => (0, room, 0),
            () => (room, 0, 0),
        };
        out.extend(std::iter::repeat_n(' ', before));
        out.push_str(prefix);
        out.extend(std::iter::repeat_n('0', inside + zeros));
        out.push_str(digits);
        out.extend(std::iter::repeat_n(' ', behind));
    }
}

/// Returns the number that a text begins with, at most a field's width, and what is behind it.
fn number(text: &str) -> (usize, &str) {
    /// Anything longer is no line any more.
    const MOST: usize = 256;
    let rest = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let digits = text[..text.len() - rest.len()].bytes().map(|digit| usize::from(digit - b'0'));
    (digits.fold(0, |number, digit| (10 * number + digit).min(MOST)), rest)
}

/// Puts numbers in place of `%d`, `%i`, `%u`, `%x`, `%X`, `%o`, `%c` and `%p` in `format`, with flags, widths,
/// precisions and lengths as in C, and texts in place of `%s`, `%pks` and `%pus` where `text_at` has some. Anything
/// else behind a percent sign stays.
fn formatted(format: &str, numbers: &[u64], text_at: &dyn Fn(u64, usize) -> Option<String>) -> String {
    let mut numbers = numbers.iter().copied();
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        let (style, letters) = Style::read(behind);
        let Some(letter) = letters.chars().next() else {
            out.push('%');
            rest = behind;
            break;
        };
        rest = &letters[letter.len_utf8()..];
        if letter == '%' {
            out.push('%');
            continue;
        }
        let number = numbers.next().unwrap_or(0);
        // `%s`, and Linux's `%pks` and `%pus` for kernel and user addresses, which are the same here.
        let behind_text = match letter {
            's' => Some(rest),
            'p' => rest.strip_prefix("ks").or_else(|| rest.strip_prefix("us")),
            _ => None,
        };
        let text = behind_text.and_then(|behind| Some((text_at(number, style.precision.unwrap_or(MOST))?, behind)));
        if let Some((text, behind)) = text {
            Style { has_zeros: false, precision: None, ..style }.write(&mut out, "", &text);
            rest = behind;
            continue;
        }
        // Of addresses all bits count.
        let above = if letter == 'p' { 0 } else { 64 - style.bits };
        let (plain, signed) = (number << above >> above, (number << above) as i64 >> above);
        let prefix = |text| if style.has_prefix && plain != 0 { text } else { "" };
        match letter {
            'd' | 'i' if signed < 0 => style.write(&mut out, "-", &signed.unsigned_abs().to_string()),
            'd' | 'i' => style.write(&mut out, style.sign, &signed.to_string()),
            'u' => style.write(&mut out, "", &plain.to_string()),
            'x' => style.write(&mut out, prefix("0x"), &format!("{plain:x}")),
            'X' => style.write(&mut out, prefix("0X"), &format!("{plain:X}")),
            'o' => style.write(&mut out, prefix("0"), &format!("{plain:o}")),
            'p' => style.write(&mut out, "0x", &format!("{plain:x}")),
            'c' => {
                let text = char::from(number as u8).to_string();
                Style { has_zeros: false, precision: None, ..style }.write(&mut out, "", &text);
            }
            _ => {
                out.push('%');
                out.push_str(&behind[..behind.len() - rest.len()]);
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats numbers without reading texts.
    fn plain(format: &str, numbers: &[u64]) -> String {
        formatted(format, numbers, &|_, _| None)
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
