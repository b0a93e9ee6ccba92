//! Why an object is no module.

use alloc::string::String;

use palimpsest_text::link::Misfit;

use crate::Part;

/// What an object has too many of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// Sections.
    Sections,
    /// Symbols.
    Symbols,
    /// Relocations of what is loaded.
    Relocations,
}

/// Why an object cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not ELF with 64 bits, or its tables are not in the file.
    #[error("the file is no ELF object with 64 bits, or is cut off")]
    Elf(#[source] object::read::Error),
    /// It was compiled for another machine.
    #[error("the object is for machine {machine}; compile it for machine {wanted}")]
    Machine {
        /// The number in the file.
        machine: u16,
        /// This kernel's.
        wanted: u16,
    },
    /// It is linked already.
    #[error("the file's type is {0}, and only relocatable objects (1) are modules; compile it with `--emit obj`")]
    Type(u16),
    /// It has too many of something.
    #[error("the object has {count} {what:?}, more than {limit}")]
    Many {
        /// Of what.
        what: Count,
        /// How many.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A name is too long.
    #[error("number {index} of {what:?} has a name of more than {limit} bytes")]
    LongName {
        /// Among what.
        what: Count,
        /// Its number there.
        index: usize,
        /// How many bytes it may have.
        limit: usize,
    },
    /// A section cannot be loaded.
    #[error("section {index} cannot be loaded: {fault}")]
    Section {
        /// Its number.
        index: usize,
        /// Why.
        fault: SectionFault,
    },
    /// There are several sections of a name that the kernel reads as one table.
    #[error("sections {first} and {second} are both called {name}; link them into one with `ld -r`")]
    Twice {
        /// Their name.
        name: String,
        /// The number of the first.
        first: usize,
        /// The number of the second.
        second: usize,
    },
    /// A table has a part of an entry.
    #[error("section {index} has {len} bytes, which are no whole number of entries of {entry} bytes")]
    Entries {
        /// Its number.
        index: usize,
        /// Its bytes.
        len: usize,
        /// Bytes of an entry.
        entry: usize,
    },
    /// A part is too large.
    #[error("{part:?} takes more than {limit} bytes")]
    Large {
        /// Which.
        part: Part,
        /// What it may take.
        limit: usize,
    },
    /// A symbol means nothing that can be loaded.
    #[error("symbol {index} cannot be used: {fault}")]
    Symbol {
        /// Its number.
        index: usize,
        /// Why.
        fault: SymbolFault,
    },
    /// A place for an address cannot be filled.
    #[error("the relocation at {offset:#x} of section {section} cannot be applied: {fault}")]
    Relocation {
        /// The section that it changes.
        section: usize,
        /// Its place there.
        offset: u64,
        /// Why.
        fault: RelocationFault,
    },
}

/// Why a section cannot be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SectionFault {
    /// It is to be writable and executable.
    #[error("it is writable code")]
    WritableCode,
    /// It has a copy for each thread.
    #[error("a kernel has no threads with data of their own")]
    ThreadLocal,
    /// It lists functions to be called before others.
    #[error("functions that run by themselves are not called; export one by name")]
    Constructors,
    /// It is compressed.
    #[error("it is compressed")]
    Compressed,
    /// It has code or constants, and no bytes.
    #[error("it has no bytes")]
    NoBytes,
    /// Its bytes are not in the file.
    #[error("its bytes are not in the file")]
    Outside,
    /// Its alignment is no power of two, or too large.
    #[error("its alignment is {0}")]
    Alignment(u64),
    /// Its relocations are of a kind that this architecture does not use.
    #[error("its relocations have no addends of their own")]
    NoAddends,
}

/// Why a symbol cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SymbolFault {
    /// It lies outside its section, or the section does not exist.
    #[error("it lies outside its section")]
    Outside,
    /// It has no place yet.
    #[error("it is common data; compile with -fno-common")]
    Common,
    /// It has a copy for each thread.
    #[error("it is of a thread")]
    ThreadLocal,
    /// Its address is found by calling it.
    #[error("it is an indirect function")]
    Indirect,
    /// Its name is not in the file, or no UTF-8.
    #[error("its name cannot be read")]
    Name,
    /// Another one that others see has the same name.
    #[error("its name is taken by symbol {0}")]
    Taken(usize),
}

/// Why a relocation cannot be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RelocationFault {
    /// Code for this kernel does not need its type.
    #[error("its type is {0}; compile position-independent code")]
    Type(u32),
    /// It reaches beyond the section.
    #[error("it lies outside the section")]
    Outside,
    /// It would change part of two instructions.
    #[error("it is not at an instruction")]
    Alignment,
    /// There is no such symbol.
    #[error("there is no symbol {0}")]
    Symbol(u32),
    /// The symbol's section is not loaded.
    #[error("symbol {0} is not loaded")]
    NotLoaded(u32),
    /// A slot holds the address of a symbol, and nothing beside it.
    #[error("a slot with addend {0}")]
    Addend(i64),
}

/// Why a module cannot be linked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// A part is to lie where it must not.
    #[error("{part:?} is to lie at {address:#x}, and must be aligned to {align}")]
    Alignment {
        /// Which.
        part: Part,
        /// Where.
        address: u64,
        /// To what it must be aligned.
        align: usize,
    },
    /// Nobody has what it needs.
    #[error("nobody exports {0}")]
    Undefined(String),
    /// An address does not go into its place.
    #[error("the address for {part:?} + {offset:#x} does not fit")]
    Misfit {
        /// The part of the place.
        part: Part,
        /// Its place there.
        offset: usize,
        /// Why.
        #[source]
        misfit: Misfit,
    },
}
