//! Relocatable objects (ELF `ET_REL`) as modules of a kernel: what a compiler writes is read, laid out in three parts,
//! and linked with the kernel that loads it.
//!
//! | step | what is known |
//! |---|---|
//! | [`Module::read`] | sections and symbols, and how much room each [`Part`] takes, with address slots and veneers |
//! | the kernel takes the room | where each part will lie |
//! | [`Module::link`] | the bytes of each part, and what its symbols mean |
//!
//! Nothing here touches memory of the kernel: the parts are bytes until the kernel has stored them. Code is relocated
//! before it is anywhere where it could run, so that no mapping has to be writable and executable.
//!
//! What is read may be anything: all of it is checked, and work and memory are bounded by the object's length and
//! [`Limits`]. A module that is linked is code that the kernel trusts, though: nothing here says what it does.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod error;
mod link;
mod read;
mod relocation;

pub use error::{Count, LinkError, ReadError, RelocationFault, SectionFault, SymbolFault};
pub use link::{Addresses, Linked};
pub use palimpsest_text::link::Architecture;
pub use read::Module;

/// What is mapped with the same rights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Code, and veneers behind it: read and execute.
    Text,
    /// Constants, those with addresses too, and address slots behind them: read.
    Constants,
    /// Data: read and write.
    Data,
}

impl Part {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Text, Self::Constants, Self::Data];
}

/// The room that a part takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub len: usize,
    /// The alignment of its address, a power of two.
    pub align: usize,
}

/// What an object may have at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a part.
    pub part: usize,
    /// The alignment of a section.
    pub align: usize,
    /// Sections, symbols and relocations, each.
    pub entries: usize,
    /// Bytes of a name: names may share bytes of the file, and each costs its whole length.
    pub name: usize,
}

impl Limits {
    /// A MiB for each part, 65 536 entries, and 512 bytes for a name.
    pub const USUAL: Self = Self { part: 1 << 20, align: 4096, entries: 1 << 16, name: 512 };
}
