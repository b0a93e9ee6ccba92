//! What `env` makes of a script's line: the kernel passes everything behind `env` as one argument.
//!
//! As `env(1)` of coreutils does: one argument is the name of a program, blanks and all, unless it is `-S`, which
//! splits it. Then come options, settings, and the name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The variable that decides whether the object is loaded.
const PRELOAD: &[u8] = b"LD_PRELOAD";

/// Most words of a line to look at: the kernel takes 256 bytes of it.
const MOST_WORDS: usize = 256;

/// What `env` would execute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    /// The name.
    pub(super) program: OsString,
    /// Where to look for it, if the line says so.
    pub(super) path: Option<OsString>,
    /// The option or setting that keeps the object from the program, as it stands in the line.
    pub(super) lost: Option<String>,
}

/// Reads the argument; `None` if it names no program, so that `env` stays what it is.
pub(super) fn read(argument: &[u8], look_up: &dyn Fn(&OsStr) -> Option<OsString>) -> Option<Named> {
    let mut words = vec![argument.to_vec()];
    let mut named = Named { program: OsString::new(), path: None, lost: None };
    let mut place = 0;
    for turn in 0.. {
        let Some(word) = words.get(place).cloned() else { break };
        // A variable may contain the very text that names it.
        if turn == MOST_WORDS {
            return None;
        }
        place += 1;
        if clears(&word) {
            named.lost = Some(shown(&word));
        }
        match Flag::of(&word) {
            Flag::Last => break,
            Flag::Split(text) => {
                let text = match text {
                    Some(text) => text.to_vec(),
                    None if place < words.len() => words.remove(place),
                    None => return None,
                };
                words.splice(place..place, split(&text, look_up));
            }
            Flag::Unsets(name) => {
                let name = match name {
                    Some(name) => name.to_vec(),
                    None => next(&words, &mut place)?,
                };
                if name == PRELOAD {
                    named.lost = Some("-u LD_PRELOAD".to_owned());
                }
            }
            Flag::TakesOne => drop(next(&words, &mut place)?),
            Flag::Alone => {}
            Flag::None => {
                place -= 1;
                break;
            }
        }
    }
    for word in words.get(place..)? {
        let Some(equals) = word.iter().position(|&byte| byte == b'=').filter(|&equals| equals > 0) else {
            named.program = OsString::from_vec(word.clone());
            return (!word.is_empty()).then_some(named);
        };
        match &word[..equals] {
            b"PATH" => named.path = Some(OsString::from_vec(word[equals + 1..].to_vec())),
            PRELOAD => named.lost = Some(shown(word)),
            _ => {}
        }
    }
    None
}

fn next(words: &[Vec<u8>], place: &mut usize) -> Option<Vec<u8>> {
    *place += 1;
    words.get(*place - 1).cloned()
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).escape_debug().to_string()
}

/// What a word before the program's name means to `env`.
#[derive(PartialEq, Eq, Debug)]
enum Flag<'a> {
    /// It is not an option.
    None,
    /// `--`: no option follows.
    Last,
    /// `-S` and its text, which is the next word if it is not here.
    Split(Option<&'a [u8]>),
    /// `-u` and the name, which is the next word if it is not here.
    Unsets(Option<&'a [u8]>),
    /// The next word belongs to it.
    TakesOne,
    /// Any other.
    Alone,
}

impl<'a> Flag<'a> {
    fn of(word: &'a [u8]) -> Self {
        if let Some(long) = word.strip_prefix(b"--") {
            let (name, value) = match long.iter().position(|&byte| byte == b'=') {
                Some(equals) => (&long[..equals], Some(&long[equals + 1..])),
                None => (long, None),
            };
            return match name {
                b"" => Self::Last,
                b"split-string" => Self::Split(value),
                b"unset" => Self::Unsets(value),
                b"chdir" | b"argv0" if value.is_none() => Self::TakesOne,
                _ => Self::Alone,
            };
        }
        let Some(letters) = word.strip_prefix(b"-") else { return Self::None };
        for (index, letter) in letters.iter().enumerate() {
            let rest = Some(&letters[index + 1..]).filter(|rest| !rest.is_empty());
            match letter {
                b'S' => return Self::Split(rest),
                b'u' => return Self::Unsets(rest),
                b'C' | b'a' if rest.is_none() => return Self::TakesOne,
                b'C' | b'a' => return Self::Alone,
                _ => {}
            }
        }
        Self::Alone
    }
}

/// Whether a word makes `env` start with an empty environment: `-`, or `-i` among other letters.
fn clears(word: &[u8]) -> bool {
    match word.strip_prefix(b"-") {
        Some(b"" | b"-ignore-environment") => true,
        // The first letter that takes an argument (all but `i` do) takes the rest of the word.
        Some([letter, rest @ ..]) if *letter != b'-' => {
            let letters = [&[*letter], rest].concat();
            letters.iter().find(|letter| b"iSuCa".contains(letter)) == Some(&b'i')
        }
        _ => false,
    }
}

/// Splits text as `env -S` does: quotes, backslashes, variables, and a comment at the start of a word.
fn split(text: &[u8], look_up: &dyn Fn(&OsStr) -> Option<OsString>) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, quote) {
            (b'\'' | b'"', None) => {
                quote = Some(*byte);
                word.get_or_insert_default();
            }
            (_, Some(open)) if open == *byte => quote = None,
            (b'\\', Some(b'\'')) if !matches!(rest, [b'\\' | b'\'', ..]) => word.get_or_insert_default().push(b'\\'),
            (b'\\', _) => {
                let [escaped, after @ ..] = rest else { break };
                rest = after;
                match (escaped, quote) {
                    (b'c', _) => break,
                    // A blank ends a word that is not quoted.
                    (b'_', None) => words.extend(word.take()),
                    (b'_', _) => word.get_or_insert_default().push(b' '),
                    _ => word.get_or_insert_default().push(control(*escaped)),
                }
            }
            (b'$', None | Some(b'"')) if rest.starts_with(b"{") => {
                let Some(end) = rest.iter().position(|&byte| byte == b'}') else { break };
                if let Some(value) = look_up(OsStr::from_bytes(&rest[1..end])) {
                    word.get_or_insert_default().extend(value.as_bytes());
                }
                rest = &rest[end + 1..];
            }
            (b'#', None) if word.is_none() => break,
            (b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c, None) => words.extend(word.take()),
            (byte, _) => word.get_or_insert_default().push(*byte),
        }
    }
    words.extend(word);
    words
}

/// Returns what a letter behind a backslash stands for.
const fn control(letter: u8) -> u8 {
    match letter {
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(argument: &str) -> Option<Named> {
        read(argument.as_bytes(), &|name| (name == "WHICH").then(|| "ruby".into()))
    }

    fn program(argument: &str) -> String {
        let named = of(argument).unwrap_or_else(|| panic!("{argument}"));
        assert_eq!(named.lost, None, "{argument}");
        named.program.into_string().expect("UTF-8")
    }

    #[test]
    fn the_program_is_found_behind_options_and_settings() {
        for (argument, expected) in [
            ("python3", "python3"),
            // The kernel splits nothing.
            ("python3 -u", "python3 -u"),
            ("-S python3 -u", "python3"),
            ("-Spython3 -u", "python3"),
            ("-vS python3", "python3"),
            ("--split-string=python3 -u", "python3"),
            ("-S A=1 B='two words' ruby -w", "ruby"),
            ("-S -u HOME -C / ruby", "ruby"),
            ("-S -uHOME -C/ --unset=X --chdir=/ ruby", "ruby"),
            ("-S --chdir / -a name ruby", "ruby"),
            ("-S --ignore-signal=PIPE --block-signal -- ruby", "ruby"),
            ("-S -- -odd", "-odd"),
            ("-S \"my program\" x", "my program"),
            ("-S my\\ program", "my program"),
            ("-S 'it\\'s'", "it's"),
            ("-S one\\_two", "one"),
            ("-S ${WHICH} -w", "ruby"),
            ("-S -S 'ruby -w'", "ruby"),
        ] {
            assert_eq!(program(argument), expected, "{argument}");
        }
    }

    #[test]
    fn who_takes_the_object_away_is_told() {
        for (argument, part) in [
            ("-S -i ruby", "-i"),
            ("-iS ruby", "-iS"),
            ("-S - ruby", "-"),
            ("-S --ignore-environment ruby", "--ignore"),
            ("-S -u LD_PRELOAD ruby", "LD_PRELOAD"),
            ("-S LD_PRELOAD=x.so ruby", "LD_PRELOAD=x.so"),
        ] {
            let named = of(argument).unwrap_or_else(|| panic!("{argument}"));
            assert!(named.lost.is_some_and(|lost| lost.contains(part)), "{argument}");
        }
        assert_eq!(of("-S PATH=/a:/b ruby").and_then(|named| named.path), Some("/a:/b".into()));
    }

    #[test]
    fn lines_without_a_program_leave_env_what_it_is() {
        for argument in ["", "-S", "-S -i", "-S A=1", "-S -u", "-S # ruby", "A=1", "-i", "-S ${NONE}", "-S \\c ruby"] {
            assert_eq!(of(argument), None, "{argument}");
        }
        assert_eq!(read(b"-S${X}", &|_| Some("-S${X}".into())), None);
        // None of these panics or loops for ever.
        for argument in ["-S ${", "-S '", "-S \\", "-S -S -S -S", "-S \"${WHICH", "-S -C"] {
            let _anything = of(argument);
        }
    }
}
