//! Sizes as users write them.

/// Reads the bytes in `text`: a decimal number with an optional suffix `K`, `M` or `G` (powers of 1024).
pub(super) fn bytes(text: &str) -> Option<u64> {
    let suffix = text.chars().last()?;
    let (digits, unit): (&str, u64) = match suffix {
        'K' => (text.strip_suffix(suffix)?, 1 << 10),
        'M' => (text.strip_suffix(suffix)?, 1 << 20),
        'G' => (text.strip_suffix(suffix)?, 1 << 30),
        _ => (text, 1),
    };
    // `parse` would allow a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(bytes("0"), Some(0));
        assert_eq!(bytes("12345"), Some(12345));
        assert_eq!(bytes("3K"), Some(3072));
        assert_eq!(bytes("2M"), Some(2 << 20));
        assert_eq!(bytes("4G"), Some(4 << 30));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "K", "+1", "-1", "1k", "1 M", "1MB", "1.5G", "99999999999999999999", "18014398509481984K"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
