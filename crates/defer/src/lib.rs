//! Rewrites the preload object (`palimpsest-preload`) so that programs which have no use for it pay little for it.
//!
//! The dynamic linker makes each relocation of an object before the program's `main`: two thousand here, on eight pages
//! of constants, most of which no program needs that is over in a millisecond. And it makes a mapping for each part of
//! the file. In what [`deferred`] returns
//!
//! * the relocations of constants and variables (`.data.rel.ro`, `.data`) come last in their table, and `DT_RELASZ`
//!   ends before them. A table in the section `palimpsest_deferred` tells the object where they are, which makes them
//!   itself when it needs them;
//! * the object's start is called by `DT_INIT`, which needs no relocation, and nothing else of `DT_INIT_ARRAY`: what
//!   Rust's standard library and `palimpsest-sys` do there, nobody asks an object for;
//! * there are two mappings, if the linker has laid it out so that this can be: what can be executed or is constant,
//!   and what can be written to. The object takes away the rights that nobody needs when it has made its relocations.
//!
//! An object that is loaded as the linker has written it finds its table empty, and has nothing to do.
//!
//! Formats: `elf(5)`, and the ELF specification of System V.

#![forbid(unsafe_code)]

mod file;

use object::elf::{self, DynamicTag};

pub use file::DeferError;
use file::{File, RELOCATION, Relocations, WORD};

/// The section with the table for the object.
const TABLE: &str = "palimpsest_deferred";

/// What holds addresses, but nothing that the linker itself needs.
const DEFERRED: [&str; 3] = [".data.rel.ro", ".data", ".init_array"];

/// Where the table has how far the start is behind it.
const START: u64 = 6;

/// Returns the object with its relocations of constants deferred.
///
/// # Errors
///
/// This is not an object that it can be done with: not of 64 bits and little-endian, without section headers or the
/// table, done already, or laid out in another way than `palimpsest-preload` makes its linker do it.
pub fn deferred(object: &[u8]) -> Result<Vec<u8>, DeferError> {
    let mut file = File::read(object)?;
    let table = file.section(TABLE)?;
    if table.end().saturating_sub(table.address) != (START + 1) * WORD {
        return Err(DeferError::Layout);
    }
    if file.word(table.offset)? != 0 {
        return Err(DeferError::Done);
    }
    let mut ranges = Vec::new();
    for name in DEFERRED {
        let part = file.section(name)?;
        ranges.push(part.address..part.end());
    }
    let relocations = file.relocations()?;
    let Sorted { eager, others, late } = sort(&file, &relocations, &ranges)?;
    let count = eager.len() as u64;
    let done = count + others.len() as u64;
    for (number, relocation) in eager.iter().chain(&others).chain(&late).enumerate() {
        file.set(relocations.offset.saturating_add(number as u64 * RELOCATION), relocation)?;
    }
    file.set_dynamic(elf::DT_RELASZ, done * RELOCATION)?;
    file.set_dynamic(elf::DT_RELACOUNT, count)?;
    let start = table.address.wrapping_add(file.word(table.offset.saturating_add(START * WORD))?);
    file.replace_dynamic(elf::DT_INIT_ARRAY, elf::DT_INIT, start)?;
    // What debuggers look for in programs, and nobody in objects.
    file.replace_dynamic(elf::DT_INIT_ARRAYSZ, elf::DT_DEBUG, 0)?;
    let merged = file.merge_loads()?;
    let words = [
        table.address,
        relocations.address.saturating_add(done * RELOCATION),
        late.len() as u64,
        merged.code,
        merged.relocated,
        merged.relocated_end,
    ];
    for (number, word) in words.into_iter().enumerate() {
        file.set_word(table.offset.saturating_add(number as u64 * WORD), word)?;
    }
    Ok(file.into_bytes())
}

/// The bytes of a relocation.
type Relocation = [u8; RELOCATION as usize];

/// Relocations by who makes them.
struct Sorted {
    /// The dynamic linker, by adding an address: these come first, and are counted.
    eager: Vec<Relocation>,
    /// The dynamic linker.
    others: Vec<Relocation>,
    /// The object.
    late: Vec<Relocation>,
}

fn sort(file: &File, all: &Relocations, ranges: &[std::ops::Range<u64>]) -> Result<Sorted, DeferError> {
    let mut sorted = Sorted { eager: Vec::new(), others: Vec::new(), late: Vec::new() };
    for number in 0..all.count {
        let bytes = file.relocation(all.offset.saturating_add(number * RELOCATION))?;
        let (place, kind) = (word_of(&bytes, 0), word_of(&bytes, 1));
        let group = match kind == all.relative {
            true if ranges.iter().any(|range| range.contains(&place)) => &mut sorted.late,
            true => &mut sorted.eager,
            false => &mut sorted.others,
        };
        group.push(bytes);
    }
    Ok(sorted)
}

fn word_of(relocation: &Relocation, number: usize) -> u64 {
    let (words, _) = relocation.as_chunks::<{ WORD as usize }>();
    words.get(number).map_or(0, |word| u64::from_le_bytes(*word))
}

/// The tag of an entry, as it is in the file.
fn tag_of(tag: DynamicTag) -> u64 {
    tag.0.cast_unsigned()
}
