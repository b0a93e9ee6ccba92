//! Helpers for text: numbers in it, and comparison.

use super::call::{Call, failed};
use crate::interp::{Answer, HelperError};
use crate::map::value::PIECE;

const EINVAL: i64 = 22;
const ERANGE: i64 = 34;

/// Bytes of text to look at: numbers and names are shorter.
const MOST: usize = 64;

/// A number at the beginning of a text.
struct Parsed {
    is_negative: bool,
    magnitude: Option<u64>,
    /// Bytes that it takes.
    len: usize,
}

/// Reads a number as Linux's `__bpf_strtoull` does (`kernel/bpf/helpers.c`): blanks, a sign, `0x` and `0` where the
/// base is 0 or 16.
fn parse(text: &[u8], base: u64) -> Option<Parsed> {
    let mut at = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let is_negative = text.get(at) == Some(&b'-');
    at += usize::from(is_negative);
    let is_hex = text.get(at) == Some(&b'0') && text.get(at + 1).is_some_and(|byte| byte.eq_ignore_ascii_case(&b'x'));
    let base = match base {
        0 if is_hex => 16,
        0 if text.get(at) == Some(&b'0') => 8,
        0 => 10,
        base => base,
    };
    if base == 16 && is_hex {
        at += 2;
    }
    let digits = text[at..].iter().map_while(|byte| char::from(*byte).to_digit(base as u32));
    let (mut magnitude, mut count) = (Some(0_u64), 0);
    for digit in digits {
        magnitude = magnitude.and_then(|number| number.checked_mul(base)?.checked_add(digit.into()));
        count += 1;
    }
    (count > 0).then_some(Parsed { is_negative, magnitude, len: at + count })
}

fn number(call: &mut Call<'_>, convert: fn(&Parsed) -> Option<u64>) -> Result<Answer, HelperError> {
    let base = call.number(2);
    if !matches!(base, 0 | 8 | 10 | 16) {
        call.write(3, &[0; 8])?;
        return failed(EINVAL);
    }
    let mut text = [0; MOST];
    let len = call.read(0, &mut text)?;
    let parsed = parse(&text[..len], base);
    let value = parsed.as_ref().and_then(convert);
    // In any case, since the verifier counts it as written.
    call.write(3, &value.unwrap_or(0).to_ne_bytes())?;
    match (parsed, value) {
        (Some(parsed), Some(_)) => Ok(Answer::Value(parsed.len as u64)),
        (Some(_), None) => failed(ERANGE),
        (None, _) => failed(EINVAL),
    }
}

pub(super) fn signed(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    number(call, |parsed| match (parsed.is_negative, parsed.magnitude?) {
        (false, number) => i64::try_from(number).ok().map(|number| number as u64),
        (true, number) => 0_i64.checked_sub_unsigned(number).map(|number| number as u64),
    })
}

pub(super) fn unsigned(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    number(call, |parsed| parsed.magnitude.filter(|_| !parsed.is_negative))
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
