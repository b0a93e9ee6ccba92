//! Reads an object, and lays it out.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::elf::{FileHeader as _, Rela as _, SectionHeader as _, SectionTable, Sym as _};
use object::{LittleEndian as Le, SectionIndex};
use palimpsest_text::link::{self, Architecture, Encoder, Field, Role};

use crate::error::{Count, ReadError, RelocationFault, SectionFault, SymbolFault};
use crate::relocation::{self, Meaning};
use crate::{Extent, Limits, Part};

type Sections<'a> = SectionTable<'a, FileHeader64<Le>>;

/// Bytes of an address slot.
const SLOT: usize = 8;

/// A section that is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) part: Part,
    /// Its place in the part.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// Its bytes; none if it begins as zeros.
    pub(crate) bytes: Option<&'a [u8]>,
}

/// What a symbol means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meant<'a> {
    /// A place in a part.
    Here(Part, usize),
    /// A number.
    Absolute(u64),
    /// What somebody else exports by this name.
    There(&'a str),
    /// Something that is not loaded.
    NotLoaded,
}

/// A place for an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    pub(crate) part: Part,
    pub(crate) offset: usize,
    pub(crate) field: Field,
    pub(crate) role: Role,
    /// The symbol's number.
    pub(crate) symbol: usize,
    pub(crate) addend: i64,
}

/// An object that can be loaded, read and laid out.
#[derive(Debug)]
pub struct Module<'a> {
    pub(crate) architecture: Architecture,
    pub(crate) encoder: &'static dyn Encoder,
    /// By the number of the part.
    pub(crate) extents: [Extent; 3],
    /// By the number of the section.
    pub(crate) sections: Vec<Option<Loaded<'a>>>,
    pub(crate) symbols: Vec<Meant<'a>>,
    pub(crate) exports: BTreeMap<&'a str, usize>,
    pub(crate) relocations: Vec<Relocation>,
    /// Slots for addresses in the constants, by symbol.
    pub(crate) slots: BTreeMap<usize, usize>,
    /// Veneers in the text, by symbol and addend.
    pub(crate) veneers: BTreeMap<(usize, i64), usize>,
}

impl<'a> Module<'a> {
    /// Reads an object for this architecture.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn read(bytes: &'a [u8], architecture: Architecture, limits: &Limits) -> Result<Self, ReadError> {
        let header = FileHeader64::<Le>::parse(bytes).map_err(ReadError::Elf)?;
        header.endian().map_err(ReadError::Elf)?;
        let (machine, wanted) = (header.e_machine(Le).0, relocation::machine(architecture));
        if machine != wanted {
            return Err(ReadError::Machine { machine, wanted });
        }
        let kind = header.e_type(Le);
        if kind != elf::ET_REL {
            return Err(ReadError::Type(kind.0));
        }
        let sections = header.sections(Le, bytes).map_err(ReadError::Elf)?;
        bound(Count::Sections, sections.len(), limits)?;
        let mut module = Self {
            architecture,
            encoder: link::encoder(architecture),
            extents: [Extent { len: 0, align: 8 }; 3],
            sections: Vec::new(),
            symbols: Vec::new(),
            exports: BTreeMap::new(),
            relocations: Vec::new(),
            slots: BTreeMap::new(),
            veneers: BTreeMap::new(),
        };
        for (index, section) in sections.enumerate() {
            let loaded = module.place(&sections, (index.0, section), bytes, limits);
            let loaded = loaded.map_err(|why| why.of_section(index.0))?;
            module.sections.push(loaded);
        }
        module.read_symbols(&sections, bytes, limits)?;
        module.read_relocations(&sections, bytes, limits)?;
        module.forget_unused();
        module.plan_islands(limits)?;
        Ok(module)
    }

    /// Returns the room that a part takes.
    pub fn extent(&self, part: Part) -> Extent {
        self.extents[part as usize]
    }

    /// Returns the names that it needs from others.
    pub fn needs(&self) -> impl Iterator<Item = &'a str> {
        self.symbols.iter().filter_map(|symbol| match symbol {
            Meant::There(name) => Some(*name),
            _ => None,
        })
    }

    /// Takes `len` bytes at the end of a part. Returns where they begin.
    fn append(&mut self, part: Part, len: usize, align: usize, limits: &Limits) -> Result<usize, ReadError> {
        let extent = &mut self.extents[part as usize];
        let large = ReadError::Large { part, limit: limits.part };
        let Some(offset) = extent.len.checked_next_multiple_of(align) else { return Err(large) };
        let end = offset.checked_add(len).filter(|end| *end <= limits.part);
        extent.len = end.ok_or(large)?;
        extent.align = extent.align.max(align);
        Ok(offset)
    }

    /// Finds a place for a section, if it is loaded at all.
    fn place(
        &mut self,
        sections: &Sections<'a>,
        (index, section): (usize, &SectionHeader64<Le>),
        file: &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Loaded<'a>>, Why> {
        let has = |flag: elf::SectionFlags| section.sh_flags(Le).0 & flag.0 != 0;
        if !has(elf::SHF_ALLOC) {
            return Ok(None);
        }
        let name = sections.section_name(Le, section).map_err(ReadError::Elf)?;
        if name.len() > limits.name {
            return Err(ReadError::LongName { what: Count::Sections, index, limit: limits.name }.into());
        }
        let kind = section.sh_type(Le);
        // What is filled in once, when it is linked, and never changes again.
        let is_constant = !has(elf::SHF_WRITE) || name.starts_with(b".data.rel.ro");
        let part = match (has(elf::SHF_EXECINSTR), is_constant) {
            (true, _) if has(elf::SHF_WRITE) => return Err(SectionFault::WritableCode.into()),
            (true, _) => Part::Text,
            (false, true) => Part::Constants,
            (false, false) => Part::Data,
        };
        if has(elf::SHF_TLS) {
            return Err(SectionFault::ThreadLocal.into());
        }
        if has(elf::SHF_COMPRESSED) {
            return Err(SectionFault::Compressed.into());
        }
        if [elf::SHT_INIT_ARRAY, elf::SHT_FINI_ARRAY, elf::SHT_PREINIT_ARRAY].contains(&kind) || lists_functions(name) {
            return Err(SectionFault::Constructors.into());
        }
        let align = section.sh_addralign(Le).max(1);
        if !align.is_power_of_two() || align > limits.align as u64 {
            return Err(SectionFault::Alignment(align).into());
        }
        let least = if part == Part::Text { relocation::trap(self.architecture).len() } else { 1 };
        let bytes = match kind {
            elf::SHT_NOBITS if part == Part::Data => None,
            elf::SHT_NOBITS => return Err(SectionFault::NoBytes.into()),
            _ => Some(section.data(Le, file).map_err(|_| SectionFault::Outside)?),
        };
        let len = usize::try_from(section.sh_size(Le)).unwrap_or(usize::MAX);
        let offset = self.append(part, len, (align as usize).max(least), limits)?;
        Ok(Some(Loaded { name, part, offset, len, bytes }))
    }

    fn read_symbols(&mut self, sections: &Sections<'a>, file: &'a [u8], limits: &Limits) -> Result<(), ReadError> {
        let table = sections.symbols(Le, file, elf::SHT_SYMTAB).map_err(ReadError::Elf)?;
        bound(Count::Symbols, table.len(), limits)?;
        for (number, symbol) in table.enumerate() {
            let index = number.0;
            let fault = |fault| ReadError::Symbol { index, fault };
            if index == 0 {
                self.symbols.push(Meant::Absolute(0));
                continue;
            }
            let name = || {
                let name = table.symbol_name(Le, symbol).map_err(|_| fault(SymbolFault::Name))?;
                if name.len() > limits.name {
                    return Err(ReadError::LongName { what: Count::Symbols, index, limit: limits.name });
                }
                core::str::from_utf8(name).map_err(|_| fault(SymbolFault::Name))
            };
            let meant = match symbol.st_shndx(Le) {
                elf::SHN_UNDEF => Meant::There(name()?),
                elf::SHN_ABS => Meant::Absolute(symbol.st_value(Le)),
                elf::SHN_COMMON => return Err(fault(SymbolFault::Common)),
                _ => self.place_of(table.symbol_section(Le, symbol, number), symbol.st_value(Le)).map_err(fault)?,
            };
            match symbol.st_type() {
                elf::STT_TLS => return Err(fault(SymbolFault::ThreadLocal)),
                elf::STT_GNU_IFUNC => return Err(fault(SymbolFault::Indirect)),
                _ => {}
            }
            let is_seen = !symbol.is_local() && symbol.st_visibility() == elf::STV_DEFAULT;
            if is_seen
                && matches!(meant, Meant::Here(..))
                && let Some(other) = self.exports.insert(name()?, index)
            {
                return Err(fault(SymbolFault::Taken(other)));
            }
            self.symbols.push(meant);
        }
        Ok(())
    }

    /// Returns what is at `value` in a section.
    fn place_of(
        &self,
        section: object::read::Result<Option<SectionIndex>>,
        value: u64,
    ) -> Result<Meant<'a>, SymbolFault> {
        let section = section.ok().flatten().ok_or(SymbolFault::Outside)?;
        match self.sections.get(section.0).ok_or(SymbolFault::Outside)? {
            None => Ok(Meant::NotLoaded),
            Some(loaded) if value <= loaded.len as u64 => Ok(Meant::Here(loaded.part, loaded.offset + value as usize)),
            Some(_) => Err(SymbolFault::Outside),
        }
    }

    fn read_relocations(&mut self, sections: &Sections<'a>, file: &'a [u8], limits: &Limits) -> Result<(), ReadError> {
        for (_, section) in sections.enumerate() {
            let index = section.info_link(Le).0;
            let kind = section.sh_type(Le);
            if ![elf::SHT_REL, elf::SHT_RELA, elf::SHT_CREL].contains(&kind) {
                continue;
            }
            let Some(Some(changed)) = self.sections.get(index).copied() else { continue };
            if kind != elf::SHT_RELA {
                return Err(ReadError::Section { index, fault: SectionFault::NoAddends });
            }
            let Some((entries, _)) = section.rela(Le, file).map_err(ReadError::Elf)? else { continue };
            bound(Count::Relocations, self.relocations.len() + entries.len(), limits)?;
            for entry in entries {
                let offset = entry.r_offset(Le);
                let fault = |fault| ReadError::Relocation { section: index, offset, fault };
                let number = entry.r_type(Le, false).0;
                let meaning = relocation::meaning(self.architecture, number);
                let field = match meaning.ok_or(fault(RelocationFault::Type(number)))? {
                    Meaning::Nothing => continue,
                    Meaning::Field(field) => field,
                };
                let (symbol, addend) = (entry.r_sym(Le, false), entry.r_addend(Le));
                let found = self.relocation(&changed, offset, field, symbol, addend).map_err(fault)?;
                self.relocations.push(found);
            }
        }
        Ok(())
    }

    fn relocation(
        &self,
        changed: &Loaded<'_>,
        offset: u64,
        field: Field,
        symbol: u32,
        addend: i64,
    ) -> Result<Relocation, RelocationFault> {
        let bytes = changed.bytes.ok_or(RelocationFault::Outside)?;
        let end = offset.checked_add(relocation::width(field)).ok_or(RelocationFault::Outside)?;
        if end > bytes.len() as u64 {
            return Err(RelocationFault::Outside);
        }
        if relocation::is_in_word(field) && !offset.is_multiple_of(4) {
            return Err(RelocationFault::Alignment);
        }
        let offset = offset as usize;
        let role = link::role(self.encoder, field, &bytes[..offset]);
        match self.symbols.get(symbol as usize).ok_or(RelocationFault::Symbol(symbol))? {
            Meant::NotLoaded => return Err(RelocationFault::NotLoaded(symbol)),
            Meant::Here(..) | Meant::Absolute(_) | Meant::There(_) => {}
        }
        // The distance to a slot counts from the field's end on x86-64.
        if role == Role::Slot && addend != -self.encoder.call_bias() {
            return Err(RelocationFault::Addend(addend));
        }
        let (part, offset) = (changed.part, changed.offset + offset);
        Ok(Relocation { part, offset, field, role, symbol: symbol as usize, addend })
    }

    /// Forgets names that nothing refers to: compilers leave some.
    fn forget_unused(&mut self) {
        let mut is_used = alloc::vec![false; self.symbols.len()];
        self.relocations.iter().for_each(|relocation| is_used[relocation.symbol] = true);
        for (symbol, is_used) in self.symbols.iter_mut().zip(is_used) {
            if matches!(symbol, Meant::There(_)) && !is_used {
                *symbol = Meant::NotLoaded;
            }
        }
    }

    /// Finds places for slots and for veneers to what others export.
    fn plan_islands(&mut self, limits: &Limits) -> Result<(), ReadError> {
        for index in 0..self.relocations.len() {
            let Relocation { role, symbol, addend, .. } = self.relocations[index];
            match role {
                Role::Slot if !self.slots.contains_key(&symbol) => {
                    let offset = self.append(Part::Constants, SLOT, SLOT, limits)?;
                    self.slots.insert(symbol, offset);
                }
                Role::Call
                    if !matches!(self.symbols[symbol], Meant::Here(..))
                        && !self.veneers.contains_key(&(symbol, addend)) =>
                {
                    let offset = self.append(Part::Text, self.encoder.veneer_len(), SLOT, limits)?;
                    self.veneers.insert((symbol, addend), offset);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Why a section has no place.
enum Why {
    Section(SectionFault),
    Object(ReadError),
}

impl Why {
    fn of_section(self, index: usize) -> ReadError {
        match self {
            Self::Section(fault) => ReadError::Section { index, fault },
            Self::Object(error) => error,
        }
    }
}

impl From<SectionFault> for Why {
    fn from(fault: SectionFault) -> Self {
        Self::Section(fault)
    }
}

impl From<ReadError> for Why {
    fn from(error: ReadError) -> Self {
        Self::Object(error)
    }
}

/// Whether a section of this name lists functions to be called before or after others, whatever its type: `.ctors` has
/// none of its own, and assemblers give the others' any. Priorities follow a dot.
fn lists_functions(name: &[u8]) -> bool {
    let lists: [&[u8]; 5] = [b".init_array", b".fini_array", b".preinit_array", b".ctors", b".dtors"];
    lists.iter().any(|list| name.strip_prefix(*list).is_some_and(|rest| rest.is_empty() || rest.starts_with(b".")))
}

fn bound(what: Count, count: usize, limits: &Limits) -> Result<(), ReadError> {
    let limit = limits.entries;
    if count > limit { Err(ReadError::Many { what, count, limit }) } else { Ok(()) }
}
