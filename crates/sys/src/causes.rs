//! Errors in one line.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

/// Shows an error and its sources, from the outermost inwards, with colons between them.
///
/// # Examples
///
/// ```
/// use palimpsest_sys::Causes;
///
/// let error = "x".parse::<u8>().unwrap_err();
/// assert_eq!(Causes(&error).to_string(), "invalid digit found in string");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Causes<'a>(pub &'a dyn Error);

impl Display for Causes<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(formatter, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outside")]
    struct Outside(#[source] Inside);

    #[derive(Debug, thiserror::Error)]
    #[error("inside")]
    struct Inside;

    #[test]
    fn sources_follow_in_one_line() {
        assert_eq!(Causes(&Outside(Inside)).to_string(), "outside: inside");
        assert_eq!(Causes(&Inside).to_string(), "inside");
    }
}
