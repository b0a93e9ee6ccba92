//! Helpers that ask the operating system, and the one that prints.

use std::borrow::Cow;
use std::format;
use std::hash::{BuildHasher, Hasher};
use std::string::{String, ToString};
use std::vec::Vec;

use palimpsest_sys::clock::Clock;

use super::call::{Call, failed};
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

/// 32 bits that nobody can tell beforehand.
pub(super) fn random(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    // Keyed by the system's random numbers, once for each thread, and different each time.
    let hash = std::hash::RandomState::new().build_hasher().finish();
    Ok(Answer::Value(hash >> 32))
}

pub(super) fn processor(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    Ok(Answer::Value(palimpsest_sys::threads::current_cpu().into()))
}

/// The process above, the thread below.
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
    let text = formatted(&until_zero(&bytes[..len]), &[call.number(2), call.number(3), call.number(4)]);
    tracing::info!(target: "bpf", "{}", text.trim_end_matches('\n'));
    Ok(Answer::Value(text.len() as u64))
}

/// The same with numbers in memory (`bpf_trace_vprintk`).
pub(super) fn trace_many(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut bytes = [0; MOST];
    let len = call.read(0, &mut bytes)?;
    let Some(numbers) = numbers(call, 2)? else { return failed(EINVAL) };
    let text = formatted(&until_zero(&bytes[..len]), &numbers);
    tracing::info!(target: "bpf", "{}", text.trim_end_matches('\n'));
    Ok(Answer::Value(text.len() as u64))
}

/// `bpf_snprintf`: text with a zero behind it, as far as that fits; how many bytes all of it has, with the zero.
pub(super) fn format(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let numbers = numbers(call, 3)?;
    let text = formatted(&until_zero(&call.text(2, MOST)?), numbers.as_deref().unwrap_or_default());
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

/// The numbers that the argument with this index points at; `None` if that is a wrong number of bytes.
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

/// `format` with numbers in the place of `%d`, `%u`, `%x`, `%c` and `%p`, with `l` and `ll`. What else stands behind a
/// percent sign stays: texts are not followed, since their addresses are numbers here.
fn formatted(format: &str, numbers: &[u64]) -> String {
    let mut numbers = numbers.iter().copied();
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        let letters = behind.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let narrow = letters.trim_start_matches('l');
        let is_wide = narrow.len() < letters.len();
        let Some(letter) = narrow.chars().next() else {
            out.push('%');
            rest = behind;
            break;
        };
        rest = &narrow[letter.len_utf8()..];
        if letter == '%' {
            out.push('%');
            continue;
        }
        let number = numbers.next().unwrap_or(0);
        let number = if is_wide || letter == 'p' { number } else { u64::from(number as u32) };
        match letter {
            'd' | 'i' if is_wide => out.push_str(&(number as i64).to_string()),
            'd' | 'i' => out.push_str(&(number as i32).to_string()),
            'u' => out.push_str(&number.to_string()),
            'x' => out.push_str(&format!("{number:x}")),
            'X' => out.push_str(&format!("{number:X}")),
            'p' => out.push_str(&format!("{number:#x}")),
            'c' => out.push(char::from(number as u8)),
            letter => {
                out.push('%');
                out.push(letter);
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_put_where_the_format_says() {
        let minus_one = u64::MAX;
        assert_eq!(formatted("a %d b %lld c %x", &[minus_one, minus_one, 0x1_0000_00ff]), "a -1 b -1 c ff");
        assert_eq!(formatted("%lu%% %c", &[7, u64::from(b'x'), 0]), "7% x");
        assert_eq!(formatted("%s %", &[7, 8, 9]), "%s %");
        assert_eq!(formatted("%llx %05d%p", &[1 << 40, 5, 6]), "10000000000 50x6");
    }
}
