//! An object's file: what is where, and how it is changed.

use object::elf::{self, DynamicTag};

use crate::{Relocation, tag_of};

/// Bytes of a word, and of a relocation (`Elf64_Rela`).
pub(crate) const WORD: u64 = 8;
pub(crate) const RELOCATION: u64 = 24;

/// Bytes of a program header, of a section header, and of an entry of the dynamic section.
const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: u64 = 64;
const ENTRY: u64 = 16;

/// Why nothing was deferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeferError {
    /// It is no object of 64 bits with the lower bytes first, for x86-64 or AArch64.
    #[error("it is no ELF object of 64 bits for x86-64 or AArch64")]
    Kind,
    /// The file ends before something that its headers name.
    #[error("it ends before byte {0:#x}, which its headers name")]
    Short(u64),
    /// A part is missing.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// Its relocations are deferred.
    #[error("its relocations are deferred already")]
    Done,
    /// Its parts do not lie as this crate expects.
    #[error(
        "its parts that are loaded are not two that can be written to behind others that cannot, at their addresses"
    )]
    Layout,
}

/// A range of the file, and where it is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) address: u64,
    len: u64,
}

impl Part {
    pub(crate) fn end(self) -> u64 {
        self.address.saturating_add(self.len)
    }
}

/// The table of relocations.
pub(crate) struct Relocations {
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) count: u64,
    /// The kind that adds the address of the object, as it is in the table.
    pub(crate) relative: u64,
}

/// Rights that the object takes away itself, by addresses.
pub(crate) struct Merged {
    /// The first byte of code, which is the end of constants; 0 if these cannot be executed anyway.
    pub(crate) code: u64,
    /// What is written only by relocations.
    pub(crate) relocated: u64,
    pub(crate) relocated_end: u64,
}

/// A program header.
#[derive(Clone, Copy)]
struct Header {
    /// Where it is in the file.
    place: u64,
    kind: u32,
    flags: u32,
    part: Part,
    /// In memory.
    room: u64,
}

pub(crate) struct File {
    bytes: Vec<u8>,
    relative: u64,
}

impl File {
    pub(crate) fn read(object: &[u8]) -> Result<Self, DeferError> {
        let mut file = Self { bytes: object.to_vec(), relative: 0 };
        let is_wide = object.starts_with(b"\x7fELF\x02\x01");
        if !is_wide {
            return Err(DeferError::Kind);
        }
        // `e_machine`
        file.relative = match elf::Machine(u16::try_from(file.number(18, 2)?).unwrap_or_default()) {
            elf::EM_X86_64 => elf::R_X86_64_RELATIVE.0.into(),
            elf::EM_AARCH64 => elf::R_AARCH64_RELATIVE.0.into(),
            _ => return Err(DeferError::Kind),
        };
        Ok(file)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn range(offset: u64, len: u64) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        Some(start..start.checked_add(usize::try_from(len).ok()?)?)
    }

    /// Reads a number of so many bytes.
    fn number(&self, offset: u64, len: u64) -> Result<u64, DeferError> {
        let bytes =
            Self::range(offset, len).and_then(|range| self.bytes.get(range)).ok_or(DeferError::Short(offset))?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    pub(crate) fn word(&self, offset: u64) -> Result<u64, DeferError> {
        self.number(offset, WORD)
    }

    pub(crate) fn relocation(&self, offset: u64) -> Result<Relocation, DeferError> {
        let bytes = Self::range(offset, RELOCATION).and_then(|range| self.bytes.get(range)?.try_into().ok());
        bytes.ok_or(DeferError::Short(offset))
    }

    pub(crate) fn set(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeferError> {
        let place = Self::range(offset, bytes.len() as u64).and_then(|range| self.bytes.get_mut(range));
        place.ok_or(DeferError::Short(offset))?.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn set_word(&mut self, offset: u64, word: u64) -> Result<(), DeferError> {
        self.set(offset, &word.to_le_bytes())
    }

    /// Finds a section by its name.
    pub(crate) fn section(&self, name: &'static str) -> Result<Part, DeferError> {
        // `e_shoff`, `e_shnum` and `e_shstrndx`
        let (table, count, names) = (self.word(40)?, self.number(60, 2)?, self.number(62, 2)?);
        let header = |number: u64| table.saturating_add(number * SECTION_HEADER);
        let names = self.word(header(names).saturating_add(24)).map_err(|_| DeferError::Missing("section headers"))?;
        for number in 0..count {
            let header = header(number);
            let at = names.saturating_add(self.number(header, 4)?);
            let named = Self::range(at, name.len() as u64 + 1).and_then(|range| self.bytes.get(range));
            if named.and_then(|named| named.strip_prefix(name.as_bytes())) == Some(&[0]) {
                let [address, offset, len] = [16, 24, 32].map(|field| self.word(header.saturating_add(field)));
                return Ok(Part { offset: offset?, address: address?, len: len? });
            }
        }
        Err(DeferError::Missing(name))
    }

    fn headers(&self) -> Result<Vec<Header>, DeferError> {
        // `e_phoff` and `e_phnum`
        let (table, count) = (self.word(32)?, self.number(56, 2)?);
        let header = |number: u64| {
            let place = table.saturating_add(number * PROGRAM_HEADER);
            let field = |field| self.word(place.saturating_add(field));
            let part = Part { offset: field(8)?, address: field(16)?, len: field(32)? };
            let (kind, flags) = (self.number(place, 4)? as u32, self.number(place.saturating_add(4), 4)? as u32);
            Ok(Header { place, kind, flags, part, room: field(40)? })
        };
        (0..count).map(header).collect()
    }

    /// Returns where the entry of the dynamic section with this tag has its value.
    fn dynamic(&self, tag: DynamicTag) -> Result<Option<u64>, DeferError> {
        let headers = self.headers()?;
        let section = headers.iter().find(|header| header.kind == elf::PT_DYNAMIC.0);
        let Part { offset, len, .. } = section.ok_or(DeferError::Missing("dynamic section"))?.part;
        let places = (0..len / ENTRY).map(|number| offset.saturating_add(number * ENTRY));
        for place in places {
            let found = self.word(place)?;
            if found == tag_of(elf::DT_NULL) {
                break;
            }
            if found == tag_of(tag) {
                return Ok(Some(place.saturating_add(WORD)));
            }
        }
        Ok(None)
    }

    fn dynamic_value(&self, tag: DynamicTag, name: &'static str) -> Result<u64, DeferError> {
        self.word(self.dynamic(tag)?.ok_or(DeferError::Missing(name))?)
    }

    pub(crate) fn set_dynamic(&mut self, tag: DynamicTag, value: u64) -> Result<(), DeferError> {
        let place = self.dynamic(tag)?.ok_or(DeferError::Missing("DT_RELACOUNT"))?;
        self.set_word(place, value)
    }

    /// Puts another entry in the place of one.
    pub(crate) fn replace_dynamic(&mut self, old: DynamicTag, new: DynamicTag, value: u64) -> Result<(), DeferError> {
        let place = self.dynamic(old)?.ok_or(DeferError::Missing("DT_INIT_ARRAY"))?;
        self.set_word(place - WORD, tag_of(new))?;
        self.set_word(place, value)
    }

    pub(crate) fn relocations(&self) -> Result<Relocations, DeferError> {
        let address = self.dynamic_value(elf::DT_RELA, "DT_RELA")?;
        let len = self.dynamic_value(elf::DT_RELASZ, "DT_RELASZ")?;
        let headers = self.headers()?;
        let within = |header: &&Header| {
            let Part { address: start, .. } = header.part;
            header.kind == elf::PT_LOAD.0 && (start..header.part.end()).contains(&address)
        };
        let Header { part, .. } = headers.iter().find(within).ok_or(DeferError::Missing("relocations"))?;
        let offset = part.offset.saturating_add(address - part.address);
        Ok(Relocations { offset, address, count: len / RELOCATION, relative: self.relative })
    }

    /// Makes two parts to load of all, if they lie so: the first can be read and executed, the second written to. Lets
    /// what is written only by relocations be written to in any case.
    pub(crate) fn merge_loads(&mut self) -> Result<Merged, DeferError> {
        let headers = self.headers()?;
        let loads: Vec<Header> = headers.iter().copied().filter(|header| header.kind == elf::PT_LOAD.0).collect();
        let is_data = |header: &Header| header.flags & elf::PF_W.0 != 0;
        let (constant, data) = loads.split_at(loads.iter().position(is_data).unwrap_or(loads.len()));
        let relocated = headers.iter().find(|header| header.kind == elf::PT_GNU_RELRO.0);
        let (Some(first), Some(start), Some(end), Some(relocated)) =
            (constant.first(), data.first(), data.last(), relocated)
        else {
            return Err(DeferError::Layout);
        };
        let code = constant.iter().find(|header| header.flags & elf::PF_X.0 != 0).ok_or(DeferError::Layout)?;
        let mut merged = Merged {
            code: 0,
            relocated: relocated.part.address,
            relocated_end: relocated.part.address.saturating_add(relocated.room),
        };
        self.set(relocated.place, &elf::PT_NULL.0.to_le_bytes())?;
        let is_in_place = loads.iter().all(|header| header.part.offset == header.part.address);
        let is_in_order = loads.is_sorted_by_key(|header| header.part.address) && data.iter().all(is_data);
        // The code comes last.
        let is_last = constant.last().is_some_and(|last| last.place == code.place);
        let is_whole = end.part.len == end.room && first.part.address == 0;
        if !(is_in_place && is_in_order && is_last && is_whole) {
            return Ok(merged);
        }
        merged.code = code.part.address;
        for header in &loads {
            self.set(header.place, &elf::PT_NULL.0.to_le_bytes())?;
        }
        self.set_load(first, elf::PF_R.0 | elf::PF_X.0, code.part.end())?;
        self.set_load(start, elf::PF_R.0 | elf::PF_W.0, end.part.end() - start.part.address)?;
        Ok(merged)
    }

    fn set_load(&mut self, header: &Header, flags: u32, len: u64) -> Result<(), DeferError> {
        self.set(header.place, &elf::PT_LOAD.0.to_le_bytes())?;
        self.set(header.place + 4, &flags.to_le_bytes())?;
        self.set_word(header.place + 32, len)?;
        self.set_word(header.place + 40, len)
    }
}
