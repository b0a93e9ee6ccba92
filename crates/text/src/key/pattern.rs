//! Patterns for names.

use std::fmt;
use std::str::FromStr;

/// A pattern for the names of keys: `*` matches any characters, dots included, `?` any one character, and every other
/// character itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern(String);

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is empty.
    #[error("an empty pattern names no key; for all keys write *")]
    Empty,
    /// It contains a character that no name has.
    #[error(
        "no key has {character:?} in its name, as in the pattern {pattern:?}; names have letters, digits and . _ - : /"
    )]
    Character {
        /// The pattern.
        pattern: String,
        /// The character.
        character: char,
    },
}

impl Pattern {
    /// Parses `text` as a pattern.
    ///
    /// # Errors
    ///
    /// See [`PatternError`].
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let is_known = |character: char| {
            character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-' | ':' | '/' | '*' | '?')
        };
        match text.chars().find(|&character| !is_known(character)) {
            Some(character) => Err(PatternError::Character { pattern: text.to_owned(), character }),
            None if text.is_empty() => Err(PatternError::Empty),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// Returns whether the pattern matches `name`. Takes time proportional to the product of both lengths at worst.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // The last star's index in the pattern, and the end of its match in the name.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(&byte) if byte == b'?' || byte == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => match star {
                    // Whatever an earlier star could match, the last one can match too.
                    Some((at, taken)) => {
                        star = Some((at, taken + 1));
                        p = at + 1;
                        n = taken + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns whether `pattern` matches `name`, by the definition, in exponential time.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|taken| by_definition(rest, &name[taken..])),
            ([b'?', rest @ ..], [_, tail @ ..]) => by_definition(rest, tail),
            ([byte, rest @ ..], [first, tail @ ..]) => byte == first && by_definition(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_is_as_defined(pattern in "[ab.*?]{1,8}", name in "[ab.]{1,10}") {
            let expected = by_definition(pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(Pattern::new(&pattern).unwrap().matches(&name), expected);
        }

        #[test]
        fn any_text_is_a_pattern_or_an_error(text in "\\PC{0,12}") {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-:/*?".contains(c);
            let is_pattern = !text.is_empty() && text.chars().all(is_allowed);
            prop_assert_eq!(Pattern::new(&text).is_ok(), is_pattern);
        }
    }

    #[test]
    fn stars_pass_dots() {
        let pattern = Pattern::new("net.*").unwrap();
        assert!(pattern.matches("net.a.b") && pattern.matches("net."));
        assert!(!pattern.matches("net") && !pattern.matches("ne.t"));
    }
}
