//! Types of the host, from its debug information: programs are adapted to these if nobody has described the types by
//! [`layout!`](crate::layout!).
//!
//! A program in C declares the members that it reads, of any structure of the host: in C, C++ or Rust, also without
//! `#[repr(C)]`, where the compiler chooses the members' places. The debug information says where they are, and
//! [`Object::parse_for`](crate::elf::Object::parse_for) adapts the program.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palimpsest_bpf::dwarf::DebugInfo;
//! use palimpsest_bpf::elf::Object;
//!
//! let bytes = std::fs::read("filter.o")?;
//! let types = DebugInfo::of_this_process()?.types(Object::asks(&bytes)?)?;
//! let object = Object::parse_for(&bytes, Some(&types.btf()?))?;
//! # Ok(())
//! # }
//! ```
//!
//! A host that is shipped without debug information can keep its types from when it was built: [`HostTypes::section`]
//! is a file of a few kilobytes.
//!
//! # How types look
//!
//! Only types that are asked for are read, and the types that lie in them. Types behind pointers are not read: a
//! program asks for them by name. Copies of a type, one in each unit of the program, become one. Different types with
//! the same name all remain, and a program that depends on the difference is refused as ambiguous, unless a path
//! ([`Asked::new`]) tells them apart.
//!
//! | in Rust | here |
//! |---|---|
//! | structures, tuples (`__0`, `__1`, …), unions, arrays, integers, `bool`, `char` | as in C |
//! | references, boxes and raw pointers to types with a size | pointers |
//! | `&[T]`, `&str`, `Box<dyn T>` | structures: `data_ptr` and `length`; `pointer` and `vtable` |
//! | an `enum` whose variants have no fields | an `enum` |
//! | `enum State { Idle, Busy(Job) }` | a structure: `__tag`, and all variants as members |
//!
//! The type of `__tag` is `enum State__tag`, with the numbers that mean `Idle` and `Busy`. A variant that is recognised
//! by the absence of the others' numbers has none.
//!
//! # Limits
//!
//! Debug information may be hostile: its length bounds time and memory. Wrong types make a program read something else,
//! but only memory that it may read: it is verified after it was adapted.
//!
//! Types in `.dwo` files (`-gsplit-dwarf`, `split-debuginfo`) are read from the program's `.dwp` file, or beside the
//! program, or where the compiler has left these files; a file of another build counts as absent. Absolute paths are
//! followed wherever the program says, so that a hostile one has files of its choice opened and looked at; relative
//! ones begin at the program's folder. Types in supplementary files of `dwz` are not read.

mod file;
mod names;
mod split;
mod types;
mod units;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use std::io;
use std::path::{Path, PathBuf};

use palimpsest_sys::OpenRegularError;

use crate::elf::{Btf, BtfError};
use split::Files;
use units::Units;

/// Most bytes of debug information, unless more are allowed; and most bytes of what is kept while it is read.
pub const MOST_BYTES: u64 = 2 << 30;

/// Why types cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DwarfError {
    /// A file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenRegularError),
    /// A file cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not a program or a library.
    #[error("this is no linked ELF file, little-endian and of 64 bits: {reason}")]
    Foreign {
        /// Why.
        reason: String,
    },
    /// The program has no debug information.
    #[error(
        "{program} has no debug information, and none lies apart from it (looked for: {tried:?}); build it with \
         `debug = true` (cargo) or -g, or make its types when it is built"
    )]
    Absent {
        /// The program.
        program: PathBuf,
        /// Files that do not exist or belong to another program.
        tried: Vec<PathBuf>,
    },
    /// The types are in other files.
    #[error(
        "the types are in .dwo files, and `{file}`, for one, is not there, or is another build's; leave these files \
         where the compiler has put them, put them or their package (.dwp) beside the program, or build with \
         `split-debuginfo = \"off\"` (cargo) or without -gsplit-dwarf"
    )]
    Split {
        /// One of these files.
        file: String,
    },
    /// A `.dwo` or `.dwp` file of the program cannot be read.
    #[error("{path}, which has types of the program")]
    Apart {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<DwarfError>,
    },
    /// There is more debug information than allowed.
    #[error("the debug information has {bytes} bytes, and {most} are allowed")]
    Long {
        /// Bytes, after decompression.
        bytes: u64,
        /// Bytes that are allowed.
        most: u64,
    },
    /// What is kept of the debug information while it is read takes more memory than allowed.
    #[error(
        "reading the debug information takes more than {most} bytes of memory besides its own; \
         `DebugInfo::open_within` allows more"
    )]
    Memory {
        /// Bytes that are allowed.
        most: u64,
    },
    /// The debug information is damaged.
    #[error("the debug information is damaged")]
    Damaged(#[from] gimli::Error),
    /// The debug information says something impossible.
    #[error("the debug information is damaged: {what}")]
    Wrong {
        /// What.
        what: &'static str,
    },
    /// Reading would take too long.
    #[error("the debug information refers to itself so often that reading {bytes} bytes takes more than {steps} steps")]
    Steps {
        /// Bytes.
        bytes: usize,
        /// Steps.
        steps: u64,
    },
    /// BTF has no place for the type.
    #[error("the type `{name}` has {what}")]
    Large {
        /// Its name.
        name: String,
        /// What it has too much of.
        what: &'static str,
    },
    /// The types together are too long.
    #[error("the types that are asked for, with all that lies in them, take more than {most} bytes; ask for fewer")]
    Many {
        /// Bytes.
        most: usize,
    },
}

/// A type that is asked for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Asked {
    /// Names of the namespaces and types around it, the outermost first.
    within: Vec<String>,
    name: String,
    called: Option<String>,
}

impl Asked {
    /// Asks for a type by its name, or by the end of its path: `Session`, `model::Session`, `server::model::Session`;
    /// with `::` before it, by its whole path. Types with parameters are called as in the debug information:
    /// `Ring<u8, alloc::alloc::Global>`.
    pub fn new(path: &str) -> Self {
        // Separators between the parameters of a type are part of its name.
        let path_end = path.find('<').unwrap_or(path.len());
        let (within, name) = match path[..path_end].rfind("::") {
            Some(place) => (path[..place].split("::").map(str::to_owned).collect(), &path[place + 2..]),
            None => (Vec::new(), path),
        };
        Self { within, name: name.to_owned(), called: None }
    }

    /// Sets the name by which programs call it, if that is another one.
    #[must_use]
    pub fn called(mut self, name: &str) -> Self {
        self.called = Some(name.to_owned());
        self
    }
}

impl From<&str> for Asked {
    fn from(path: &str) -> Self {
        Self::new(path)
    }
}

impl From<String> for Asked {
    fn from(path: String) -> Self {
        Self::new(&path)
    }
}

/// Types of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostTypes {
    section: Vec<u8>,
    missing: Vec<String>,
}

impl HostTypes {
    /// Returns them as a section `.BTF`, to keep in a file.
    pub fn section(&self) -> &[u8] {
        &self.section
    }

    /// Returns them for [`Object::parse_for`](crate::elf::Object::parse_for).
    ///
    /// # Errors
    ///
    /// [`BtfError`].
    pub fn btf(&self) -> Result<Btf, BtfError> {
        Btf::parse(&self.section)
    }

    /// Returns the names that the host does not have. A program may do without them; the verifier refuses one that
    /// cannot.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }
}

/// Returns the names of those that are asked for and not among the numbers found, each of which is looked at once: a
/// program asks for as many as it wants.
fn missing(asked: &[Asked], found: impl Iterator<Item = usize>) -> Vec<String> {
    let mut is_found = alloc::vec![false; asked.len()];
    found.for_each(|number| is_found[number] = true);
    let missing = asked.iter().zip(is_found).filter(|(_, is_found)| !is_found);
    missing.map(|(asked, _)| asked.name.clone()).collect()
}

/// The debug information of a program or library.
#[derive(Debug)]
pub struct DebugInfo {
    files: Files,
    /// Most bytes that are kept while they are read.
    most: u64,
}

impl DebugInfo {
    /// Reads the debug information of the program that this process runs, even if its file has been replaced or removed
    /// since. It may be in a separate file ([`open`](Self::open)).
    ///
    /// # Errors
    ///
    /// [`DwarfError`].
    pub fn of_this_process() -> Result<Self, DwarfError> {
        let own = Path::new("/proc/self/exe");
        // The path by which it was started, for files beside it.
        let beside = std::fs::read_link(own).unwrap_or_else(|_| own.to_owned());
        Self::open_beside(own, &beside, MOST_BYTES)
    }

    /// Reads the debug information of a program or library. If the file has none, reads
    /// `/usr/lib/debug/.build-id/xx/….debug`, or the file that its section `.gnu_debuglink` names, beside it, in
    /// `.debug` beside it or in `/usr/lib/debug`; that file's build id, or its checksum if there is none, must be the
    /// right one. If types are in `.dwo` files, reads these too, or the package that lies beside the program, with
    /// `.dwp` behind its name.
    ///
    /// # Errors
    ///
    /// [`DwarfError`].
    pub fn open(path: &Path) -> Result<Self, DwarfError> {
        Self::open_within(path, MOST_BYTES)
    }

    /// Opens a file like [`open`](Self::open), with at most `most` bytes of debug information. The list of its sections
    /// and its symbols, and then what is kept while types are read, take no more either; and a file that is known by
    /// its checksum is no longer.
    ///
    /// # Errors
    ///
    /// [`DwarfError`].
    pub fn open_within(path: &Path, most: u64) -> Result<Self, DwarfError> {
        Self::open_beside(path, path, most)
    }

    fn open_beside(path: &Path, beside: &Path, most: u64) -> Result<Self, DwarfError> {
        let (sections, place) = file::open(path, beside, most)?;
        let places = [beside, &place];
        let places = if beside == place { &places[..1] } else { &places };
        Ok(Self { files: Files::find(sections, places, most)?, most })
    }

    /// Reads the debug information from the bytes of a file, without looking for other files.
    ///
    /// # Errors
    ///
    /// [`DwarfError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, DwarfError> {
        let files = Files::alone(file::parse(bytes, MOST_BYTES)?, MOST_BYTES)?;
        Ok(Self { files, most: MOST_BYTES })
    }

    /// Returns the types that are asked for.
    ///
    /// # Errors
    ///
    /// [`DwarfError`]. A name that does not exist is no error ([`HostTypes::missing`]).
    pub fn types<A: Into<Asked>>(&self, asked: impl IntoIterator<Item = A>) -> Result<HostTypes, DwarfError> {
        let asked: Vec<Asked> = asked.into_iter().map(Into::into).collect();
        let units = Units::new(self.files.views(), self.most)?;
        let found = names::find(&units, &asked)?;
        let missing = missing(&asked, found.iter().map(|(number, _)| *number));
        if let (false, Some(file)) = (missing.is_empty(), self.files.absent()) {
            return Err(DwarfError::Split { file: file.to_owned() });
        }
        let mut builder = types::Builder::new(&units);
        for (number, place) in found {
            builder.root(place, asked[number].called.as_deref())?;
        }
        Ok(HostTypes { section: builder.section(), missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_looked_at_once() {
        let asked = ["a", "b", "c", "d"].map(Asked::new);
        let mut looks = 0;
        let found = [2, 0, 2, 2, 0].into_iter().inspect(|_| looks += 1);
        assert_eq!(missing(&asked, found), ["b", "d"]);
        assert_eq!(looks, 5);
    }
}
