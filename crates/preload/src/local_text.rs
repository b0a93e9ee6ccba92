//! The program's text in huge pages on one node, before `main`: `PALIMPSEST_TEXT`.
//!
//! Whatever goes wrong, the program runs from its own file, and one line on standard error says why.

use std::ffi::OsStr;

use palimpsest_numa::{NodeId, ProgramText, Sharing, TextOptions};
use palimpsest_sys::Causes;

use crate::channel::Noted;
use crate::started::Origin;

/// The variable.
const VARIABLE: &str = "PALIMPSEST_TEXT";

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// Text stays where it is.
    Off,
    /// On this node, or that of the main thread.
    Local(Option<NodeId>, Whose),
}

/// Whose text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    /// That of the process that `palimpsest run` has started. Copying costs an executed program more than it gains in a
    /// short life, and each has a copy of its own.
    First,
    /// That of the programs which it executes, too.
    Heirs,
}

fn parse(value: &OsStr) -> Option<Wish> {
    let text = value.to_str()?;
    let (place, whose) = match text.strip_suffix(",heirs") {
        Some(place) => (place, Whose::Heirs),
        None => (text, Whose::First),
    };
    match place {
        "" | "off" if whose == Whose::First => Some(Wish::Off),
        "local" => Some(Wish::Local(None, whose)),
        _ => {
            let digits =
                place.strip_prefix("local:").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
            Some(Wish::Local(Some(NodeId(digits.parse().ok()?)), whose))
        }
    }
}

/// Whether nothing is to be told.
fn is_quiet() -> bool {
    std::env::var_os("PALIMPSEST_QUIET").is_some_and(|value| value == "1")
}

/// Does what the variable says.
pub(crate) fn begin(standard_error: Option<Noted>) {
    let Some(value) = std::env::var_os(VARIABLE) else { return };
    let origin = Origin::of_this_process();
    let tell = |text: &str| {
        // Once for a service, and not for each program that it executes.
        if origin == Origin::Heir || is_quiet() {
            return;
        }
        let line = format!("palimpsest: {}\n", text.replace('\n', " "));
        // Without standard error there is nobody to tell.
        let _ = standard_error.map(|descriptor| descriptor.write(line.as_bytes()));
    };
    let node = match parse(&value) {
        Some(Wish::Off) => return,
        Some(Wish::Local(_, Whose::First)) if origin == Origin::Heir => return,
        Some(Wish::Local(node, _)) => node,
        None => {
            let value = value.display();
            return tell(&format!(
                "{VARIABLE}={value}: not understood; allowed: off, local, local:N with the number of a node, both with \
                 `,heirs` for the programs that it executes; the program runs from its own file"
            ));
        }
    };
    // Private: no process has a descriptor that a plain one would not have. Forked children share the copies.
    match ProgramText::localize(&TextOptions { node, sharing: Sharing::Private }) {
        Err(error) => tell(&format!("{}; the program runs from its own file", Causes(&error))),
        Ok(text) => {
            // Small programs have nothing to exchange, and nothing is wrong with them.
            let refused = text.parts().iter().filter(|part| part.exchanged == 0).find_map(|part| part.lacks.first());
            if let Some(lack) = refused {
                tell(&format!("{lack}; a part of the program runs from its own file"));
            } else if std::env::var_os("PALIMPSEST_REPORT").is_some_and(|place| place == "stderr") {
                tell(&text.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_understood() {
        let parse = |text: &str| parse(OsStr::new(text));
        assert_eq!((parse(""), parse("off")), (Some(Wish::Off), Some(Wish::Off)));
        assert_eq!(parse("local"), Some(Wish::Local(None, Whose::First)));
        assert_eq!(parse("local:1"), Some(Wish::Local(Some(NodeId(1)), Whose::First)));
        assert_eq!(parse("local,heirs"), Some(Wish::Local(None, Whose::Heirs)));
        assert_eq!(parse("local:2,heirs"), Some(Wish::Local(Some(NodeId(2)), Whose::Heirs)));
        for wrong in [
            "1",
            "local:",
            "local:+1",
            "local:-1",
            "local:4294967296",
            "LOCAL",
            "node:1",
            "off,heirs",
            ",heirs",
            "local,",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
