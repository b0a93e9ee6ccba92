//! Puts the program's text into huge pages on one node, before `main`: `PALIMPSEST_TEXT`.
//!
//! Whatever goes wrong, the program runs from its own file, and one line on standard error says why.

use std::ffi::OsStr;
use std::iter;
use std::os::unix::ffi::OsStrExt;

use palimpsest_numa::{Alone, Folder, Localized, NodeId, Pages, ProgramText, Reach, Sharing, TextOptions, Topology};
use palimpsest_sys::seccomp::Calls;
use palimpsest_sys::threads::child::{self, Child};

use crate::channel::{self, Noted};
use crate::filters::{self, Filters, Trial};
use crate::settings::{ReportTo, report_to};
use crate::started::Origin;

/// The variable.
const VARIABLE: &str = "PALIMPSEST_TEXT";

/// The variable that says where to report.
const REPORT: &str = "PALIMPSEST_REPORT";

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

/// Whether a variable that is off or on is on.
fn is_on(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// To whom this process tells what becomes of its text.
struct Audience {
    standard_error: Option<Noted>,
    report: ReportTo,
    /// The descriptor for the report, if that is where it goes.
    descriptor: Option<Noted>,
    /// seccomp filters under which the program was started.
    filters: Option<Filters>,
}

impl Audience {
    fn new(standard_error: Option<Noted>, filters: Option<Filters>) -> Self {
        // What is not understood is told when all settings are read.
        let report = std::env::var(REPORT).ok().filter(|value| !value.is_empty()).and_then(|value| report_to(&value));
        let report = report.unwrap_or(ReportTo::Nowhere);
        let descriptor = channel::noted(&report, standard_error);
        Self { standard_error, report, descriptor, filters }
    }

    /// Tells in one line that something is not as it was wanted, unless nobody wants to know.
    fn complain(&self, text: &str) {
        // Without standard error there is nobody to tell.
        if !is_on("PALIMPSEST_QUIET") {
            let _ = self.standard_error.map(|descriptor| descriptor.write(line(text).as_bytes()));
        }
    }

    /// Writes lines of a report, if there is one.
    fn report(&self, lines: &[String]) {
        if let Some(number) = channel::never_open(&self.report, self.descriptor) {
            self.complain(&format!("{REPORT}=fd:{number}: no such descriptor is open; text is not reported"));
        }
        let text: String = lines.iter().map(|text| line(text)).collect();
        let is_free = matches!(self.filters, Some(Filters { trial: Trial::Unneeded | Trial::Done(Calls::NONE), .. }));
        if is_free || !matches!(self.report, ReportTo::File(_)) {
            return channel::report(&self.report, self.descriptor, self.standard_error, || text);
        }
        let errand = || {
            channel::report_in_child(&self.report, self.descriptor, text.as_bytes());
            0
        };
        // A filter that nobody has tried may end the child for making a file, instead of the program. SAFETY: 1. opens
        // a file with a short name, looks at it, and writes.
        let child = unsafe { child::spawn(&[libc::SIGSYS], errand) };
        // If it could not be made, nothing more can be done.
        let _ = child.map(Child::wait);
    }

    /// Tells in one line why nothing is done, and again in a report that goes elsewhere.
    fn refuse(&self, why: &str) {
        if self.report != ReportTo::StandardError {
            self.report(&[why.to_owned()]);
        }
        self.complain(why);
    }

    /// Tells that nothing is done, where the report goes, or if there is none, on standard error.
    fn tell_of_dry_run(&self) {
        let told = "this is a dry run: text stays in the program's own file".to_owned();
        match self.report {
            ReportTo::Nowhere => self.complain(&told),
            _ => self.report(&[told]),
        }
    }

    /// Tells what has become of the text.
    fn tell(&self, text: &ProgramText, wanted: Option<NodeId>) {
        // Small programs have nothing to exchange, and there is nothing wrong with them.
        let refused = text.parts().iter().filter(|part| part.exchanged == 0).find_map(|part| part.lacks.last());
        let refused = refused.map(|lack| format!("{lack}; a part of the program runs from its own file"));
        // Who has named no node has the nearest one that can be had.
        let elsewhere = || wanted.and_then(|_| text.not_on_the_node());
        let alone = || {
            let why = text.parts().iter().find_map(refused_to_share)?;
            Some(format!("{why}; this process has a copy of its own"))
        };
        if self.report != ReportTo::Nowhere {
            let lacks = text
                .parts()
                .iter()
                .flat_map(|part| part.lacks.iter().map(|lack| format!("{}: {lack}", part.path.display())));
            self.report(&iter::once(text.to_string()).chain(lacks).collect::<Vec<_>>());
        }
        // The report says the same.
        let is_told = self.report == ReportTo::StandardError;
        if let Some(why) = refused.or_else(elsewhere).or_else(alone).filter(|_| !is_told) {
            self.complain(&why);
        }
    }
}

/// Returns one line of this object's.
fn line(text: &str) -> String {
    format!("palimpsest: {}\n", text.replace('\n', " "))
}

/// Does what the variable says.
#[inline]
pub(crate) fn begin<'a>(standard_error: Option<Noted>, variable: &impl Fn(&str) -> Option<&'a [u8]>) {
    let Some(value) = variable(VARIABLE) else { return };
    let origin = Origin::of_this_process(variable);
    let filters = filters::at_the_start(variable);
    localize(OsStr::from_bytes(value), origin, standard_error, filters);
}

/// Does what `value` says.
#[cold]
#[inline(never)]
fn localize(value: &OsStr, origin: Origin, standard_error: Option<Noted>, filters: Option<Filters>) {
    // It is told once for a service, and not for each program that it executes.
    let audience = (origin != Origin::Heir).then(|| Audience::new(standard_error, filters));
    let refuse = |why: &str| {
        if let Some(audience) = &audience {
            audience.refuse(&format!("{why}; the program runs from its own file"));
        }
    };
    let local = match parse(value) {
        Some(Wish::Off) => return,
        Some(Wish::Local(local)) if origin == Origin::Heir && local.whose == Whose::First => return,
        Some(Wish::Local(local)) => local,
        None => {
            let value = value.display();
            return refuse(&format!(
                "{VARIABLE}={value}: not understood; allowed: off, local, local:N with the number of a node, both with \
                 `,all` for heads, tails and small parts, too, `,huge` for whole huge pages only, `,heirs` for the \
                 programs that it executes, `,shared` for copies that all processes of the user use, `,reread` to have \
                 its file read into huge pages, or `,copies` for copies even of what has these"
            ));
        }
    };
    if is_on("PALIMPSEST_DRY_RUN") {
        if let Some(audience) = audience {
            audience.tell_of_dry_run();
        }
        return;
    }
    if let Some(Err(error)) = local.node.map(|node| Topology::read().check(node)) {
        return refuse(&format!("{VARIABLE}={}: {error}", value.display()));
    }
    let sharing = match local.with {
        With::User => Sharing::User(Folder::usual()),
        With::Nobody => Sharing::Private,
    };
    let options = TextOptions::new().node(local.node).sharing(sharing).pages(local.pages).reach(local.reach);
    match ProgramText::localize(&options) {
        Err(error) => refuse(&error.causes().to_string()),
        Ok(text) => {
            if let Some(audience) = audience {
                audience.tell(&text, local.node);
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
