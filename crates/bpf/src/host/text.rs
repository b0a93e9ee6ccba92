//! Helpers for text: numbers in it, and comparison.

use super::call::{Call, failed};
use crate::interp::{Answer, HelperError};
use crate::map::value::PIECE;

const EINVAL: i64 = 22;
const ERANGE: i64 = 34;

/// Bytes of a number to look at, behind blanks and the sign (Linux: `__bpf_strtoull` of `kernel/bpf/helpers.c`).
const MOST: usize = 63;

/// Part of a text, and how many bytes of it are there.
type Piece = ([u8; MOST], usize);

/// A number in a text.
struct Parsed {
    is_negative: bool,
    magnitude: u64,
    /// Bytes that it takes, with what is before it.
    len: usize,
}

/// Whether Linux takes it for a blank (`lib/ctype.c`).
const fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ' | 0xa0)
}

/// Reads digits, with `0x` before them where the base is 0 or 16, or `0` where it is 0. Returns the number and its
/// length, or Linux's number of the error.
fn digits(text: &[u8], base: u64) -> Result<(u64, usize), i64> {
    let is_hex = text.first() == Some(&b'0') && text.get(1).is_some_and(|byte| byte.eq_ignore_ascii_case(&b'x'));
    let base = match base {
        // Otherwise it is a 0, and text behind it.
        0 if is_hex && text.get(2).is_some_and(u8::is_ascii_hexdigit) => 16,
        0 if text.first() == Some(&b'0') => 8,
        0 => 10,
        base => base,
    };
    let before = if base == 16 && is_hex { 2 } else { 0 };
    let digits = text[before..].iter().map_while(|byte| char::from(*byte).to_digit(base as u32));
    let (mut number, mut count) = (Some(0_u64), 0);
    for digit in digits {
        number = number.and_then(|number| number.checked_mul(base)?.checked_add(digit.into()));
        count += 1;
    }
    if count == 0 { Err(EINVAL) } else { Ok((number.ok_or(ERANGE)?, before + count)) }
}

/// Reads a number as Linux does: blanks, a sign, and digits. Returns Linux's number of the error if there is none.
fn parse(call: &Call<'_>) -> Result<Result<Parsed, i64>, HelperError> {
    let (address, len, base) = (call.address(0), call.len(0)?, call.number(2));
    if !matches!(base, 0 | 8 | 10 | 16) {
        return Ok(Err(EINVAL));
    }
    let (mut piece, mut at) = ([0; MOST], 0);
    // Returns what is there from `at` on.
    let mut look = |at: usize| -> Result<Piece, HelperError> {
        let there = MOST.min(len - at);
        if there > 0 {
            call.read_at(address + at as u64, &mut piece[..there])?;
        }
        Ok((piece, there))
    };
    loop {
        let (text, there) = look(at)?;
        let blanks = text[..there].iter().take_while(|byte| is_blank(**byte)).count();
        at += blanks;
        if blanks < MOST {
            break;
        }
    }
    let is_negative = matches!(look(at)?, ([b'-', ..], 1..));
    at += usize::from(is_negative);
    let (text, there) = look(at)?;
    let parsed = digits(&text[..there], base);
    Ok(parsed.map(|(magnitude, len)| Parsed { is_negative, magnitude, len: at + len }))
}

fn number(call: &mut Call<'_>, convert: fn(&Parsed) -> Result<u64, i64>) -> Result<Answer, HelperError> {
    let parsed = parse(call)?.and_then(|parsed| convert(&parsed).map(|number| (number, parsed.len)));
    // In any case, since the verifier counts it as written.
    call.write(3, &parsed.map_or(0, |(number, _)| number).to_ne_bytes())?;
    parsed.map_or_else(failed, |(_, len)| Ok(Answer::Value(len as u64)))
}

pub(super) fn signed(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    number(call, |parsed| {
        let number = if parsed.is_negative {
            0_i64.checked_sub_unsigned(parsed.magnitude)
        } else {
            i64::try_from(parsed.magnitude).ok()
        };
        number.map(|number| number as u64).ok_or(ERANGE)
    })
}

pub(super) fn unsigned(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    number(call, |parsed| if parsed.is_negative { Err(EINVAL) } else { Ok(parsed.magnitude) })
}

/// `bpf_strncmp`.
pub(super) fn compare(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let (left, len) = (call.address(0), call.len(0)?);
    let (right, right_len) = call.text(2)?;
    let right_len = right_len.min(len as u64) as usize;
    let mut pieces = [[0; PIECE]; 2];
    for at in (0..len).step_by(PIECE) {
        let [one, other] = &mut pieces;
        // Beyond its value the text has zeros, which end it.
        one.fill(0);
        other.fill(0);
        call.read_at(left + at as u64, &mut one[..PIECE.min(len - at)])?;
        let there = right_len.saturating_sub(at).min(PIECE);
        call.read_at(right + at as u64, &mut other[..there])?;
        let until_zero = |text: &[u8; PIECE]| text.iter().position(|byte| *byte == 0).unwrap_or(PIECE);
        let order = one[..until_zero(one)].cmp(&other[..until_zero(other)]);
        if order.is_ne() || one.contains(&0) {
            return Ok(Answer::Value(order as i64 as u64));
        }
    }
    Ok(Answer::Value(0))
}
