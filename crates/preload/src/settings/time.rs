//! Times as users write them.

use std::time::Duration;

/// Reads a decimal number with a suffix `ns`, `us`, `ms` or `s`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|character: char| !character.is_ascii_digit())?;
    let (digits, unit) = text.split_at(unit);
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "ns" => Duration::from_nanos(number),
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_needs_a_unit() {
        let times = ["7ns", "500us", "2ms", "1s"].map(duration);
        assert_eq!(
            times.map(|time| time.map(|time| time.as_nanos())),
            [7, 500_000, 2_000_000, 1_000_000_000].map(Some)
        );
        for text in ["", "2", "ms", "-2ms", "+2ms", "2 ms", "2m", "1.5ms", "99999999999999999999s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
