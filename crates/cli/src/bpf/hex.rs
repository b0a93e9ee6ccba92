//! Bytes as hexadecimal digits, with or without blanks between them.

/// Why a text is not bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum HexError {
    /// A character that is neither digit nor blank.
    #[error("`{}` at character {at} is no hexadecimal digit", found.escape_default())]
    Digit {
        /// Where, from 1.
        at: usize,
        /// What is there.
        found: char,
    },
    /// A byte of one digit.
    #[error("the last byte has one digit, and bytes have two")]
    Half,
}

/// Reads the bytes in `text`.
pub(crate) fn read(text: &str) -> Result<Vec<u8>, HexError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high = None;
    for (index, found) in text.chars().enumerate() {
        if found.is_whitespace() {
            continue;
        }
        let digit = found.to_digit(16).ok_or(HexError::Digit { at: index + 1, found })? as u8;
        match high.take() {
            None => high = Some(digit),
            Some(high) => bytes.push(high << 4 | digit),
        }
    }
    if high.is_some() { Err(HexError::Half) } else { Ok(bytes) }
}

/// Writes `bytes` as digits.
pub(crate) fn write(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_are_free_and_everything_else_is_named() {
        assert_eq!(read("01 ff\n0A"), Ok(vec![1, 255, 10]));
        assert_eq!(read("0 1"), Ok(vec![1]));
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("012"), Err(HexError::Half));
        assert_eq!(read("0x12").expect_err("x").to_string(), "`x` at character 2 is no hexadecimal digit");
        assert_eq!(read(&write(&[0, 128, 255])), Ok(vec![0, 128, 255]));
    }
}
