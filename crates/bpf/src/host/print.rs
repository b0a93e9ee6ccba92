//! Helpers that ask the operating system, and the one that prints.

use std::format;
use std::hash::{BuildHasher, Hasher};
use std::string::{String, ToString};
use std::sync::OnceLock;
use std::time::Instant;

use super::call::Call;
use crate::interp::{Answer, HelperError};

/// Nanoseconds since some moment.
pub(super) fn monotonic(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    // Not 0, which programs take for "never".
    Ok(Answer::Value(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).saturating_add(1)))
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

/// An event of `tracing` with the target `bpf`.
pub(super) fn trace(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    /// Longest format (`MAX_BPRINTF_BUF` of Linux, `kernel/bpf/helpers.c`).
    const MOST: usize = 1024;
    let mut bytes = [0; MOST];
    let len = call.read(0, &mut bytes)?;
    let format = bytes[..len].split(|byte| *byte == 0).next().unwrap_or_default();
    let text = formatted(&String::from_utf8_lossy(format), [call.number(2), call.number(3), call.number(4)]);
    tracing::info!(target: "bpf", "{}", text.trim_end_matches('\n'));
    Ok(Answer::Value(text.len() as u64))
}

/// `format` with numbers in the place of `%d`, `%u`, `%x`, `%c` and `%p`, with `l` and `ll`. What else stands behind a
/// percent sign stays: texts are not followed, since their addresses are numbers here.
fn formatted(format: &str, numbers: [u64; 3]) -> String {
    let mut numbers = numbers.into_iter();
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
        assert_eq!(formatted("a %d b %lld c %x", [minus_one, minus_one, 0x1_0000_00ff]), "a -1 b -1 c ff");
        assert_eq!(formatted("%lu%% %c", [7, u64::from(b'x'), 0]), "7% x");
        assert_eq!(formatted("%s %", [7, 8, 9]), "%s %");
        assert_eq!(formatted("%llx %05d%p", [1 << 40, 5, 6]), "10000000000 50x6");
    }
}
