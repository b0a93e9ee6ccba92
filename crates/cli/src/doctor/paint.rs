//! Colours, if somebody looks and has not declined them.

use std::ffi::OsString;

/// Whether words are coloured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paint {
    Plain,
    Coloured,
}

/// What a word means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tone {
    Good,
    Middling,
    Bad,
    Quiet,
}

impl Paint {
    /// Uses colours on a terminal, unless `NO_COLOR` is set and not empty, or the terminal is dumb.
    pub(super) fn choose(terminal: bool, look_up: impl Fn(&str) -> Option<OsString>) -> Self {
        let forbidden = look_up("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = look_up("TERM").is_none_or(|value| value.is_empty() || value == "dumb");
        if terminal && !forbidden && !dumb { Self::Coloured } else { Self::Plain }
    }

    /// Colours `word` by its meaning.
    pub(super) fn tone(self, tone: Tone, word: &str) -> String {
        // Select Graphic Rendition (ECMA-48).
        let code = match tone {
            Tone::Good => 32,
            Tone::Middling => 33,
            Tone::Bad => 31,
            Tone::Quiet => 2,
        };
        match self {
            Self::Plain => word.to_owned(),
            Self::Coloured => format!("\x1b[{code}m{word}\x1b[0m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_coloured_unless_somebody_says_no() {
        let choose = |terminal, variables: &[(&str, &str)]| {
            Paint::choose(terminal, |name| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            })
        };
        assert_eq!(choose(true, &[("TERM", "xterm")]), Paint::Coloured);
        assert_eq!(choose(true, &[("TERM", "xterm"), ("NO_COLOR", "")]), Paint::Coloured);
        for (terminal, variables) in [
            (false, &[("TERM", "xterm")][..]),
            (true, &[("TERM", "xterm"), ("NO_COLOR", "1")]),
            (true, &[("TERM", "dumb")]),
            (true, &[]),
        ] {
            assert_eq!(choose(terminal, variables), Paint::Plain, "{variables:?}");
        }
        assert_eq!(Paint::Coloured.tone(Tone::Bad, "fails"), "\x1b[31mfails\x1b[0m");
        assert_eq!(Paint::Plain.tone(Tone::Bad, "fails"), "fails");
    }
}
