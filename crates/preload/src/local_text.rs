//! Puts the program's text into huge pages on one node, before `main`: `PALIMPSEST_TEXT`.
//!
//! Whatever goes wrong, the program runs from its own file, and one line on standard error says why.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use palimpsest_numa::{Alone, Folder, Localized, NodeId, Pages, ProgramText, Reach, Sharing, TextOptions};
use palimpsest_sys::Causes;

use crate::channel::Noted;
use crate::environment;
use crate::started::Origin;

/// The variable.
const VARIABLE: &str = "PALIMPSEST_TEXT";

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// Text stays where it is.
    Off,
    /// On this node, or that of the main thread.
    Local(Local),
}

/// Which text, and with whom it is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Local {
    /// That of the main thread if none is named.
    node: Option<NodeId>,
    whose: Whose,
    with: With,
    pages: Pages,
    /// How much of each part; by the number of nodes if none is named.
    reach: Option<Reach>,
}

/// Who uses the copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum With {
    /// This process, and those forked from it: nobody has a descriptor that a plain program would not have.
    Nobody,
    /// All processes of this user, through descriptors that forked children inherit; so it must be asked for.
    User,
}

/// Whose text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    /// Only the process that `palimpsest run` has started. Copying costs an executed program more than it gains in a
    /// short life.
    First,
    /// Also the programs that it executes.
    Heirs,
}

fn parse(value: &OsStr) -> Option<Wish> {
    let mut words = value.to_str()?.split(',');
    let node = match words.next()? {
        "" | "off" => return words.next().is_none().then_some(Wish::Off),
        "local" => None,
        place => {
            let digits =
                place.strip_prefix("local:").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
            Some(NodeId(digits.parse().ok()?))
        }
    };
    let (whose, with, pages) = (Whose::First, With::Nobody, Pages::OfTheFile);
    let mut local = Local { node, whose, with, pages, reach: None };
    for word in words {
        match word {
            "heirs" if local.whose == Whose::First => local.whose = Whose::Heirs,
            "shared" if local.with == With::Nobody => local.with = With::User,
            "copies" if local.pages == Pages::OfTheFile => local.pages = Pages::Copied,
            "all" if local.reach.is_none() => local.reach = Some(Reach::Everything),
            "huge" if local.reach.is_none() => local.reach = Some(Reach::HugePages),
            "reread" if local.pages == Pages::OfTheFile => local.pages = Pages::ReadAnew,
            _ => return None,
        }
    }
    Some(Wish::Local(local))
}

/// Whether to print nothing.
fn is_quiet() -> bool {
    std::env::var_os("PALIMPSEST_QUIET").is_some_and(|value| value == "1")
}

/// Does what the variable says.
///
/// # Safety
///
/// 1. Nobody may change the environment meanwhile.
pub(crate) unsafe fn begin(standard_error: Option<Noted>) {
    // SAFETY: 1. is this function's.
    let Some(value) = (unsafe { environment::value(VARIABLE) }) else { return };
    // SAFETY: 1. is this function's.
    let origin = unsafe { Origin::of_this_process() };
    localize(OsStr::from_bytes(value), origin, standard_error);
}

/// Does what `value` says.
#[cold]
#[inline(never)]
fn localize(value: &OsStr, origin: Origin, standard_error: Option<Noted>) {
    let tell = |text: &str| {
        // Once for a service, and not for each program that it executes.
        if origin == Origin::Heir || is_quiet() {
            return;
        }
        let line = format!("palimpsest: {}\n", text.replace('\n', " "));
        // Without standard error there is nobody to tell.
        let _ = standard_error.map(|descriptor| descriptor.write(line.as_bytes()));
    };
    let local = match parse(value) {
        Some(Wish::Off) => return,
        Some(Wish::Local(local)) if origin == Origin::Heir && local.whose == Whose::First => return,
        Some(Wish::Local(local)) => local,
        None => {
            let value = value.display();
            return tell(&format!(
                "{VARIABLE}={value}: not understood; allowed: off, local, local:N with the number of a node, both with \
                 `,all` for heads, tails and small parts, too, `,huge` for whole huge pages only, `,heirs` for the \
                 programs that it executes, `,shared` for copies that all processes of the user use, `,reread` to have \
                 its file read into huge pages, or `,copies` for copies even of what has these; the program runs from \
                 its own file"
            ));
        }
    };
    let sharing = match local.with {
        With::User => Sharing::User(Folder::usual()),
        With::Nobody => Sharing::Private,
    };
    let options = TextOptions::new().node(local.node).sharing(sharing).pages(local.pages).reach(local.reach);
    match ProgramText::localize(&options) {
        Err(error) => tell(&format!("{}; the program runs from its own file", Causes(&error))),
        Ok(text) => {
            // Small programs have nothing to exchange, and there is nothing wrong with them.
            let refused = text.parts().iter().filter(|part| part.exchanged == 0).find_map(|part| part.lacks.last());
            if let Some(lack) = refused {
                tell(&format!("{lack}; a part of the program runs from its own file"));
            } else if std::env::var_os("PALIMPSEST_REPORT").is_some_and(|place| place == "stderr") {
                tell(&text.to_string());
                for part in text.parts() {
                    part.lacks.iter().for_each(|lack| tell(&format!("{}: {lack}", part.path.display())));
                }
            } else if let Some(why) = text.parts().iter().find_map(refused_to_share) {
                tell(&format!("{why}; this process has a copy of its own"));
            }
            // It is offered for as long as the process lives. Whoever looks for it later removes what is left then.
            std::mem::forget(text);
        }
    }
}

/// Returns why a part is not shared, unless the reason is its address, which is no fault.
fn refused_to_share(part: &Localized) -> Option<&Alone> {
    part.not_shared.as_ref().filter(|why| matches!(why, Alone::Refused(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_understood() {
        let parse = |text: &str| parse(OsStr::new(text));
        assert_eq!((parse(""), parse("off")), (Some(Wish::Off), Some(Wish::Off)));
        let plain = |node: Option<u32>, whose, with| Local {
            node: node.map(NodeId),
            whose,
            with,
            pages: Pages::OfTheFile,
            reach: None,
        };
        let with_pages = |node, whose, with, pages| Some(Wish::Local(Local { pages, ..plain(node, whose, with) }));
        let local = |node, whose, with| with_pages(node, whose, with, Pages::OfTheFile);
        assert_eq!(parse("local"), local(None, Whose::First, With::Nobody));
        assert_eq!(parse("local:1"), local(Some(1), Whose::First, With::Nobody));
        assert_eq!(parse("local,heirs"), local(None, Whose::Heirs, With::Nobody));
        assert_eq!(parse("local:2,heirs,shared"), local(Some(2), Whose::Heirs, With::User));
        assert_eq!(parse("local,shared"), local(None, Whose::First, With::User));
        let copied = with_pages(Some(0), Whose::First, With::User, Pages::Copied);
        assert_eq!(parse("local:0,copies,shared"), copied);
        let anew = with_pages(None, Whose::First, With::Nobody, Pages::ReadAnew);
        assert_eq!(parse("local,reread"), anew);
        let plain = plain(None, Whose::First, With::Nobody);
        for (value, reach) in [("local,all", Reach::Everything), ("local,huge", Reach::HugePages)] {
            assert_eq!(parse(value), Some(Wish::Local(Local { reach: Some(reach), ..plain })));
        }
        for wrong in [
            "local,all,huge",
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
            "local,heirs,heirs",
            "local,shared,shared",
            "local,copies,copies",
            "local,copies,reread",
            "off,copies",
            "off,shared",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
