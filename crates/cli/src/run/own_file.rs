//! Programs that load no object (static ones, those of another C library), with `--local-text --no-freeze`: their text
//! can be in huge pages of their own file, which the kernel needs to be asked for only once.

use std::fmt;
use std::path::PathBuf;

use palimpsest_numa::{FileText, NodeId, Pages, Topology};
use palimpsest_sys::Causes;

use crate::run::arguments::{Arguments, LocalText};
use crate::run::one_node::one_node;
use crate::run::program::{self, ProgramError};
use crate::run::proof::NotLoaded;
use crate::run::report;

/// A program's own file, and why nothing is loaded into the program.
pub(super) struct OwnFile {
    program: PathBuf,
    why: Why,
}

/// Why a program loads no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Static,
    OtherLibrary,
    NoLibraries,
}

impl fmt::Display for Why {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Static => "it is statically linked",
            Self::OtherLibrary => "its dynamic linker is not that of glibc",
            Self::NoLibraries => "it needs no library",
        })
    }
}

/// Whether the command asks for nothing that needs the object.
pub(super) fn is_enough(arguments: &Arguments) -> bool {
    // Reports elsewhere are the object's.
    let is_told_here = report::place(arguments).is_none_or(|place| place == "stderr");
    let needs_copies = arguments.copies || arguments.shared || arguments.local_text == Some(LocalText::All);
    arguments.local_text.is_some() && arguments.no_freeze && !arguments.heirs && !needs_copies && is_told_here
}

impl OwnFile {
    /// Returns the file of a program that cannot be served otherwise; else the error.
    pub(super) fn unless_checked(error: ProgramError) -> Result<Self, ProgramError> {
        match error {
            ProgramError::Static { path } => Ok(Self { program: path, why: Why::Static }),
            ProgramError::OtherLibrary { path, .. } => Ok(Self { program: path, why: Why::OtherLibrary }),
            error => Err(error),
        }
    }

    /// The same for a program that a dynamic linker would load.
    pub(super) fn unless_loaded(error: NotLoaded) -> Result<Self, NotLoaded> {
        match error {
            NotLoaded::NoLibraries { program } => Ok(Self { program, why: Why::NoLibraries }),
            error => Err(error),
        }
    }

    /// Has the kernel cache the file in huge pages. Returns what users are told: always why that is not possible, and
    /// how much it is if they ask for a report.
    pub(super) fn prepare(&self, arguments: &Arguments) -> Option<String> {
        let pages = if arguments.reread { Pages::ReadAnew } else { Pages::OfTheFile };
        let pieces = match program::constants(&self.program) {
            Ok(pieces) => pieces,
            Err(error) => return self.refused(arguments, &Causes(&error)),
        };
        match FileText::prepare(&self.program, &pieces, pages) {
            Err(error) => self.refused(arguments, &Causes(&error)),
            Ok(text) => self.told(&text, arguments),
        }
    }

    fn told(&self, text: &FileText, arguments: &Arguments) -> Option<String> {
        let (huge, whole, why) = (text.huge >> 10, text.whole >> 10, self.why);
        // A small program has no whole huge page, and there is nothing wrong with it.
        let is_lacking = text.whole > 0 && text.huge == 0;
        let lacks: String = text.lacks.iter().map(|lack| format!(" ({lack})")).collect();
        if is_lacking {
            let way_out = if arguments.reread { "" } else { "; try --reread" };
            return self.refused(arguments, &format!("the kernel has it in small pages{lacks}{way_out}"));
        }
        let topology = Topology::read();
        let is_only_one = |node: &u16| topology.is_one_node() && topology.homes() == [NodeId((*node).into())];
        if arguments.node.as_ref().is_some_and(|node| !is_only_one(node)) {
            return self.refused(arguments, &"only a copy could be on a wanted node");
        }
        let is_asked = report::place(arguments).is_some();
        is_asked.then(|| {
            let name = self.program.display();
            let nodes = one_node(&topology).map(|machine| format!("; {machine}")).unwrap_or_default();
            format!("{huge} of {whole} KiB of the text of {name} are in huge pages of the file{lacks}; {why}{nodes}")
        })
    }

    fn refused(&self, arguments: &Arguments, because: &dyn fmt::Display) -> Option<String> {
        let Self { program, why } = self;
        let line = format!("{} runs from its own file as it is: {why}, and {because}", program.display());
        (!report::is_quiet(arguments)).then(|| line.replace('\n', " "))
    }
}
