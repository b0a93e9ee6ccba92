//! Object files as clang and gcc make them: programs, maps, variables, and their lines in the source.
//!
//! An [`Object`] is what a file says, resolved only within itself: each program is put together from its own function
//! and those that it calls (`link`), from whatever sections they are in; its references to maps and variables are
//! indexes into [`Object::maps`]. [`Object::host`] makes the maps and gives them to a host.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palimpsest_bpf::elf::Object;
//! use palimpsest_bpf::verify::{ContextAccess, Contract};
//!
//! let object = Object::parse(&std::fs::read("filter.o")?)?;
//! let host = object.host()?.build();
//! let program = object.program("filter").ok_or("no such program")?;
//! let contract = Contract::new().context(64, ContextAccess::Read);
//! let linked = host.verify(contract, program.code()?).map_err(|error| program.explain(error))?;
//! # Ok(())
//! # }
//! ```
//!
//! Files may be hostile: their length and the sizes of their maps bound time and memory, and what is wrong is an
//! [`ObjectError`].

mod adapt;
mod attributes;
mod btf;
mod extension;
mod externs;
mod legacy;
mod link;
mod maps;
mod matching;
mod program;
mod types;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SectionFlags, SymbolKind};

pub use adapt::AdaptError;
pub use attributes::Pinning;
pub use btf::{Btf, BtfError};
pub use maps::{Initial, MapSource};
pub use program::{Explained, Program, SourceLine};

use crate::host::{Declaration, Host, HostBuilder};
use crate::map::{Map, MapError, Room};

/// Most bytes of an object's maps together, unless more are allowed.
pub const MOST_MAP_BYTES: u64 = 1 << 30;

/// Why a file is not an object with programs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// It is not an ELF file for eBPF.
    #[error("this is no object file for eBPF, little-endian and of 64 bits: {reason}")]
    Foreign {
        /// Why.
        reason: String,
    },
    /// It is damaged.
    #[error("the object file is damaged: {reason}")]
    Damaged {
        /// Where.
        reason: String,
    },
    /// Its types are damaged.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// A map lacks a kind or sizes.
    #[error("map `{map}`: {what}")]
    Map {
        /// Its name.
        map: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A map is of an unknown kind.
    #[error("map `{map}` is of kind {kind}, which is not supported here")]
    Kind {
        /// Its name.
        map: String,
        /// The number of Linux for its kind.
        kind: u32,
    },
    /// A map has an attribute that asks for what is not done here.
    #[error("map `{map}`: {attribute} ({value:#x}): {reason}")]
    Attribute {
        /// Its name.
        map: String,
        /// The attribute, or the flag of `map_flags`.
        attribute: &'static str,
        /// Its value.
        value: u32,
        /// Why, and the way out.
        reason: &'static str,
    },
    /// A reference to something that is missing, or cannot be referred to.
    #[error("section `{section}`, byte {offset:#x}: {what} `{symbol}`")]
    Reference {
        /// Section of the reference.
        section: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        what: &'static str,
        /// What is referred to.
        symbol: String,
    },
    /// A program, or all of them together, are too long.
    #[error("with all that they call, the programs up to `{program}` are longer than {most} slots")]
    Long {
        /// The last one's name.
        program: String,
        /// Slots.
        most: usize,
    },
    /// Types cannot be adapted.
    #[error("program `{program}`")]
    Adapt {
        /// Its name.
        program: String,
        /// Why.
        #[source]
        source: AdaptError,
    },
}

/// A section, as far as it matters.
struct Section<'a> {
    name: &'a str,
    data: &'a [u8],
    size: u64,
    is_code: bool,
}

/// A symbol, as far as it matters.
struct Symbol<'a> {
    name: &'a str,
    /// The section that it is in; `None` if it is not in this object.
    section: Option<usize>,
    offset: u64,
    size: u64,
    is_function: bool,
    is_section: bool,
    is_global: bool,
}

/// A reference from code.
struct Reference {
    symbol: usize,
    kind: u32,
    /// What to add, if the instruction does not say it.
    addend: Option<i64>,
}

/// How the immediate of a load that refers to a named symbol counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Addend {
    /// From the symbol.
    #[default]
    Symbol,
    /// From the beginning of its section, as GNU's assembler writes it (binutils 2.40: its reference adds the symbol's
    /// value to what is in place).
    Section,
}

/// What a file says.
struct Parts<'a> {
    /// Bytes of the file.
    len: usize,
    sections: Vec<Section<'a>>,
    symbols: Vec<Symbol<'a>>,
    /// Of each section, by offset.
    references: Vec<Vec<(u64, Reference)>>,
    btf: Option<Arc<Btf>>,
    told: BTreeMap<String, extension::Told>,
    addend: Addend,
}

/// An object file.
#[derive(Clone, Debug)]
pub struct Object {
    maps: Vec<MapSource>,
    programs: Vec<Program>,
    declared: Vec<Declaration>,
    btf: Option<Arc<Btf>>,
}

impl Object {
    /// Parses a file. Leaves code that could be adapted to other types as it was compiled.
    ///
    /// # Errors
    ///
    /// [`ObjectError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        Self::parse_for(bytes, None)
    }

    /// Parses a file and adapts its programs to the types of `target` (CO-RE): members of structures are where the
    /// target has them.
    ///
    /// # Errors
    ///
    /// [`ObjectError`].
    pub fn parse_for(bytes: &[u8], target: Option<&Btf>) -> Result<Self, ObjectError> {
        let parts = read(bytes)?;
        let maps = maps::find(&parts)?;
        let (programs, declared) = link::programs(&parts, &maps, target.map(adapt::Target::new).as_ref())?;
        let maps = maps.into_iter().map(|(_, map)| map).collect();
        Ok(Self { maps, programs, declared, btf: parts.btf })
    }

    /// Returns the names of the types to which the programs in a file are to be adapted, each once. A host that has not
    /// described these types looks them up.
    ///
    /// # Errors
    ///
    /// [`ObjectError`].
    pub fn asks(bytes: &[u8]) -> Result<Vec<String>, ObjectError> {
        let parts = read(bytes)?;
        let Some(btf) = &parts.btf else { return Ok(Vec::new()) };
        let adaptations = parts.told.values().flat_map(|told| &told.adaptations);
        let names: BTreeSet<&str> = adaptations.filter_map(|adaptation| adapt::asks(adaptation, btf)).collect();
        Ok(names.into_iter().map(ToString::to_string).collect())
    }

    /// Returns its maps, and its sections of variables, which are arrays of one value.
    pub fn maps(&self) -> &[MapSource] {
        &self.maps
    }

    /// Returns its programs.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Returns the program of this name.
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.name() == name)
    }

    /// Returns functions that it declares but does not define: the host must have them ([`HostBuilder::function`]).
    pub fn declared(&self) -> &[Declaration] {
        &self.declared
    }

    /// Returns its types.
    pub fn btf(&self) -> Option<&Btf> {
        self.btf.as_deref()
    }

    /// Makes its maps, with the values of variables, for a host to which helpers may be added. Together they take at
    /// most [`MOST_MAP_BYTES`]; [`host_within`](Self::host_within) allows more.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn host(&self) -> Result<HostBuilder, MapError> {
        self.host_of(&[], MOST_MAP_BYTES)
    }

    /// Makes the same with maps of at most `most` bytes together.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn host_within(&self, most: u64) -> Result<HostBuilder, MapError> {
        self.host_of(&[], most)
    }

    /// Makes the same as [`host`](Self::host), but takes maps of `given` instead of making those of the same names:
    /// maps that are pinned ([`Pinning::ByName`]) must be given, others may be, and variables are never taken. A given
    /// map keeps its contents; whoever makes it first, perhaps by [`MapSource::make`], shares it. Maps that the object
    /// does not have are left alone.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn host_sharing(&self, given: &[Arc<Map>]) -> Result<HostBuilder, MapError> {
        self.host_of(given, MOST_MAP_BYTES)
    }

    fn host_of(&self, given: &[Arc<Map>], most: u64) -> Result<HostBuilder, MapError> {
        // Names come from hostile files, and there may be many.
        let given: BTreeMap<&str, &Arc<Map>> = given.iter().map(|map| (map.definition().name.as_str(), map)).collect();
        let taken: Vec<Option<&Arc<Map>>> =
            self.maps.iter().map(|source| source.taken(&given)).collect::<Result<_, _>>()?;
        // Before any memory is allocated.
        let mut room = Room::new(most);
        for (source, _) in self.maps.iter().zip(&taken).filter(|(_, taken)| taken.is_none()) {
            Map::take_room(source.definition(), &mut room)?;
        }
        let made = self.maps.iter().zip(&taken).map(|(source, taken)| match taken {
            Some(map) => Ok(Arc::clone(map)),
            None => source.make().map(Arc::new),
        });
        let maps: Vec<Arc<Map>> = made.collect::<Result<_, _>>()?;
        self.nest(&maps, &taken)?;
        let builder = Host::builder().declared(&self.declared);
        Ok(maps.into_iter().fold(builder, HostBuilder::map))
    }

    /// Puts maps into maps that were made.
    fn nest(&self, maps: &[Arc<Map>], taken: &[Option<&Arc<Map>>]) -> Result<(), MapError> {
        let made = maps.iter().zip(&self.maps).zip(taken).filter(|(_, taken)| taken.is_none());
        for ((outer, source), _) in made {
            for (number, initial) in source.initial() {
                if let (Initial::Map(inner), Some(into)) = (initial, outer.maps()) {
                    let key = number.to_ne_bytes();
                    into.set(&key, maps.get(*inner).cloned()).map_err(|source| MapError::Inner {
                        name: outer.definition().name.clone(),
                        number: *number,
                        source: Box::new(source),
                    })?;
                }
            }
        }
        Ok(())
    }
}

impl MapSource {
    /// Returns the given map that stands for it.
    fn taken<'a>(&self, given: &BTreeMap<&str, &'a Arc<Map>>) -> Result<Option<&'a Arc<Map>>, MapError> {
        let name = || self.definition().name.clone();
        let found = given.get(self.definition().name.as_str()).filter(|_| self.value().is_none()).copied();
        match found {
            None if self.pinning() == Pinning::ByName => Err(MapError::Pinned { name: name() }),
            Some(map) if !self.definition().is_like(map.definition()) => Err(MapError::Unlike {
                name: name(),
                given: Box::new(map.definition().clone()),
                wanted: Box::new(self.definition().clone()),
            }),
            found => Ok(found),
        }
    }

    /// Makes the map with its initial value.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn make(&self) -> Result<Map, MapError> {
        let map = Map::new(self.definition().clone())?;
        if let Some(value) = self.value() {
            map.set_first(value);
        }
        Ok(map)
    }
}

fn damaged(error: object::Error) -> ObjectError {
    ObjectError::Damaged { reason: error.to_string() }
}

fn read(bytes: &[u8]) -> Result<Parts<'_>, ObjectError> {
    let foreign = |reason: &str| ObjectError::Foreign { reason: reason.to_string() };
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| foreign(&error.to_string()))?;
    if file.architecture() != object::Architecture::Bpf {
        return Err(foreign("it is for another architecture"));
    }
    if !file.is_little_endian() {
        return Err(foreign("it is big-endian; compile it for bpfel"));
    }
    let mut parts = Parts {
        len: bytes.len(),
        sections: Vec::new(),
        symbols: Vec::new(),
        references: Vec::new(),
        btf: None,
        told: BTreeMap::new(),
        addend: Addend::Symbol,
    };
    // A reference takes 16 bytes of the file. More would be sections of references that share their bytes.
    let most = bytes.len() / 16;
    let mut count = 0;
    // Sections by their number in the file; the first has none.
    for section in file.sections() {
        let place = section.index().0;
        while parts.sections.len() < place {
            parts.sections.push(Section { name: "", data: &[], size: 0, is_code: false });
            parts.references.push(Vec::new());
        }
        let is_code = matches!(section.flags(), SectionFlags::Elf { sh_flags, .. }
            if sh_flags.0 & object::elf::SHF_EXECINSTR.0 != 0);
        let name = short(section.name_bytes().map_err(damaged)?)?;
        let data = section.data().map_err(damaged)?;
        let mut references = Vec::new();
        for (offset, relocation) in section.relocations() {
            count += 1;
            if count > most {
                return Err(ObjectError::Damaged { reason: "sections of references overlap".to_string() });
            }
            let object::RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let object::RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let addend = (!relocation.has_implicit_addend()).then(|| relocation.addend());
            references.push((offset, Reference { symbol: symbol.0, kind: r_type.0, addend }));
        }
        references.sort_by_key(|(offset, _)| *offset);
        parts.sections.push(Section { name, data, size: section.size(), is_code });
        parts.references.push(references);
    }
    for symbol in file.symbols() {
        while parts.symbols.len() < symbol.index().0 {
            parts.symbols.push(Symbol::none());
        }
        parts.symbols.push(Symbol {
            name: short(symbol.name_bytes().unwrap_or_default())?,
            section: symbol.section_index().map(|index| index.0).filter(|index| *index < parts.sections.len()),
            offset: symbol.address(),
            size: symbol.size(),
            is_function: symbol.kind() == SymbolKind::Text,
            is_section: symbol.kind() == SymbolKind::Section,
            is_global: symbol.is_global(),
        });
    }
    let data = |name: &str| parts.sections.iter().find(|section| section.name == name).map(|section| section.data);
    // Texts, each behind a zero.
    let mut made_by = data(".comment").unwrap_or_default().split(|byte| *byte == 0);
    let is_by_gcc = made_by.any(|text| text.starts_with(b"GCC: "));
    let addend = if is_by_gcc { Addend::Section } else { Addend::Symbol };
    let btf = data(".BTF").map(Btf::parse).transpose()?.map(Arc::new);
    if let (Some(btf), Some(bytes)) = (&btf, data(".BTF.ext")) {
        parts.told = extension::parse(bytes, btf)?;
    }
    (parts.btf, parts.addend) = (btf, addend);
    Ok(parts)
}

/// Reads a name. Its length is limited, since many names may be parts of one long string.
fn short(name: &[u8]) -> Result<&str, ObjectError> {
    /// Longest name (`KSYM_NAME_LEN` of Linux).
    const MOST: usize = 512;
    let wrong = |what: &str| ObjectError::Damaged { reason: what.to_string() };
    if name.len() > MOST {
        return Err(wrong("a name is longer than 512 bytes"));
    }
    str::from_utf8(name).map_err(|_| wrong("a name is no text"))
}

impl Symbol<'_> {
    const fn none() -> Self {
        Self { name: "", section: None, offset: 0, size: 0, is_function: false, is_section: false, is_global: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Definition, Kind};

    fn object(maps: Vec<Definition>) -> Object {
        Object {
            maps: maps.into_iter().map(|definition| MapSource::of(definition, Pinning::None)).collect(),
            programs: Vec::new(),
            declared: Vec::new(),
            btf: None,
        }
    }

    #[test]
    fn the_maps_of_an_object_have_one_limit() {
        let array = |name: &str| Definition::new(name, Kind::Array, 4, 8, 100);
        // Values, and the numbers of the elements.
        let both = object(Vec::from([array("a"), array("b")]));
        assert_eq!(both.host_within(3200).map(drop), Ok(()));
        let refused = MapError::Room { name: "b".to_string(), bytes: 1600, left: 1599, most: 3199 };
        assert_eq!(both.host_within(3199).map(drop), Err(refused));
        // Many sections of zeros, for which the file has no byte.
        let zeros = (0..400).map(|n| Definition::new(&alloc::format!(".bss.s{n}"), Kind::Array, 4, 1 << 26, 1));
        let Err(MapError::Room { name, most, .. }) = object(zeros.collect()).host() else { panic!("25 GiB") };
        assert_eq!((name.as_str(), most), (".bss.s15", MOST_MAP_BYTES));
    }

    #[test]
    fn every_part_of_a_map_counts() {
        let least = |kind, key, value, entries| {
            let definition = Definition { cpus: Some(3), ..Definition::new("m", kind, key, value, entries) };
            let Err(MapError::Room { bytes, .. }) = object(Vec::from([definition])).host_within(0).map(drop) else {
                panic!("there is no room")
            };
            bytes
        };
        assert_eq!(least(Kind::Array, 4, 9, 10), 10 * (16 + 8));
        assert_eq!(least(Kind::PerCpuArray, 4, 9, 10), 10 * (3 * 16 + 8));
        // Values, keys, links, marks; 16 buckets.
        assert_eq!(least(Kind::Hash, 12, 8, 10), 10 * (8 + 16 + 4 + 1) + 16 * 16);
        assert_eq!(least(Kind::LruPerCpuHash, 12, 8, 10), 10 * (3 * 8 + 16 + 4 + 1) + 16 * 16);
        // And how many prefixes there are of 0 to 64 bits.
        assert_eq!(least(Kind::LpmTrie, 12, 8, 10), 10 * (8 + 16 + 4 + 1) + 16 * 16 + 65 * 4);
        assert_eq!(least(Kind::Queue, 0, 8, 10), 80);
        assert_eq!(least(Kind::BloomFilter, 0, 8, 1000), 1024);
        assert!(least(Kind::RingBuffer, 0, 0, 4096) > 4096);
        #[cfg(feature = "std")]
        assert_eq!(least(Kind::Programs, 4, 4, 1 << 26), 1 << 31);
    }
}
