//! The clauses of `PALIMPSEST_KEYS`.

use super::pattern::{Pattern, PatternError};
use super::state::State;

/// One clause: a pattern for the names of keys, and the state that they get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) pattern: Pattern,
    pub(super) state: State,
}

/// Why a clause is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectiveError {
    /// There is no `=`.
    #[error("{clause:?} does not say what the keys are to be; write {clause}=on or {clause}=off")]
    NoState {
        /// The clause.
        clause: String,
    },
    /// Behind the `=` stands neither `on` nor `off`.
    #[error("keys can be on or off, and not {state:?} as in {clause:?}")]
    State {
        /// The clause.
        clause: String,
        /// What was found.
        state: String,
    },
    /// There is no pattern before the `=`.
    #[error("{clause:?} does not name keys")]
    Pattern {
        /// The clause.
        clause: String,
        /// The reason.
        #[source]
        source: PatternError,
    },
}

/// Returns the clauses of `text`: `PATTERN=on` or `PATTERN=off`, separated by commas. Ignores spaces around each part,
/// and empty clauses.
pub(super) fn parse(text: &str) -> impl Iterator<Item = Result<Directive, DirectiveError>> {
    text.split(',').map(str::trim).filter(|clause| !clause.is_empty()).map(parse_clause)
}

fn parse_clause(clause: &str) -> Result<Directive, DirectiveError> {
    let (pattern, state) =
        clause.split_once('=').ok_or_else(|| DirectiveError::NoState { clause: clause.to_owned() })?;
    let pattern =
        Pattern::new(pattern.trim()).map_err(|source| DirectiveError::Pattern { clause: clause.to_owned(), source })?;
    let state = match state.trim() {
        "on" => State::On,
        "off" => State::Off,
        other => return Err(DirectiveError::State { clause: clause.to_owned(), state: other.to_owned() }),
    };
    Ok(Directive { pattern, state })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clause() -> impl Strategy<Value = (String, bool)> {
        ("[a-z.*?]{1,8}", any::<bool>())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            clauses in prop::collection::vec(clause(), 0..6),
            spaces in " {0,2}",
            commas in ",{1,3}",
        ) {
            let text = clauses
                .iter()
                .map(|(pattern, on)| (pattern, if *on { "on" } else { "off" }))
                .map(|(pattern, state)| format!("{spaces}{pattern}{spaces}={spaces}{state}{spaces}"))
                .collect::<Vec<_>>()
                .join(&commas);
            let read: Vec<_> = parse(&text).map(|directive| {
                let Directive { pattern, state } = directive.unwrap();
                (pattern.to_string(), state.is_on())
            }).collect();
            prop_assert_eq!(read, clauses);
        }

        #[test]
        fn nothing_is_ignored(text in "\\PC{0,40}") {
            let clauses = text.split(',').filter(|clause| !clause.trim().is_empty()).count();
            prop_assert_eq!(parse(&text).count(), clauses);
        }
    }

    #[test]
    fn errors_name_the_clause() {
        let errors: Vec<String> =
            parse("a, b=maybe ,=on,c*=on,d e=off").filter_map(Result::err).map(|error| error.to_string()).collect();
        assert_eq!(
            errors,
            [
                r#""a" does not say what the keys are to be; write a=on or a=off"#,
                r#"keys can be on or off, and not "maybe" as in "b=maybe""#,
                r#""=on" does not name keys"#,
                r#""d e=off" does not name keys"#,
            ]
        );
    }
}
