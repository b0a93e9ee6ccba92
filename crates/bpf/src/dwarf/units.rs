//! Units of debug information, and entries in them, read with a budget of steps.
//!
//! An entry may refer to any other, and be read again through each reference; and an entry of one byte may have
//! thousands of attributes, which lie in its abbreviation. So each attribute counts as a step, and so does every 16
//! bytes. Honest debug information has more than a byte for each attribute, and is read at most twice.
//!
//! What is kept has a limit, too: units, abbreviations and types of a few bytes are far longer in memory.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;

use gimli::{
    Abbreviation, Abbreviations, Attribute, AttributeSpecification, AttributeValue, DebugAbbrev, DebugAbbrevOffset,
    DebugInfo, DebugTypes, DebuggingInformationEntry, DwAt, EndianSlice, EntriesRaw, Format, LittleEndian, Reader as _,
    UnitHeader, UnitOffset, UnitType,
};

use super::DwarfError;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

/// The longest name, since many names may be parts of one long text: Linux's `KSYM_NAME_LEN`.
const MOST_NAME: usize = 512;
/// Steps for each byte of debug information.
const STEPS: u64 = 16;
/// Bytes of an abbreviation in memory: with the room for more that a table has.
const ABBREVIATION: usize = 128;
/// Bytes of an attribute of an abbreviation.
const ATTRIBUTE: usize = size_of::<AttributeSpecification>();

/// The sections that are read.
#[derive(Debug, Default)]
pub(super) struct Sections {
    pub(super) info: Vec<u8>,
    pub(super) types: Vec<u8>,
    pub(super) abbreviations: Vec<u8>,
    pub(super) texts: Vec<u8>,
    pub(super) line_texts: Vec<u8>,
    pub(super) text_offsets: Vec<u8>,
}

/// Where an entry is: in which unit, and how many bytes from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    unit: usize,
    offset: usize,
}

/// What an attribute refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refers {
    Nothing,
    To(Place),
    /// To what is not in this file.
    Elsewhere,
}

struct Unit<'a> {
    header: UnitHeader<Slice<'a>>,
    abbreviations: Arc<Abbreviations>,
    /// Where its table of texts' offsets begins.
    text_base: usize,
}

/// How many steps are left.
#[derive(Debug)]
struct Budget {
    left: Cell<u64>,
    all: u64,
    bytes: usize,
}

impl Budget {
    fn pay(&self, attributes: usize, bytes: usize) -> Result<(), DwarfError> {
        let steps = 1 + attributes as u64 + bytes as u64 / 16;
        let left = self.left.get().checked_sub(steps);
        self.left.set(left.ok_or(DwarfError::Steps { bytes: self.bytes, steps: self.all })?);
        Ok(())
    }
}

/// How many bytes may still be kept.
#[derive(Debug)]
struct Memory {
    left: Cell<u64>,
    most: u64,
}

impl Memory {
    fn keep(&self, bytes: usize) -> Result<(), DwarfError> {
        let left = self.left.get().checked_sub(bytes as u64);
        self.left.set(left.ok_or(DwarfError::Memory { most: self.most })?);
        Ok(())
    }
}

/// All units.
pub(super) struct Units<'a> {
    sections: &'a Sections,
    /// Those of `.debug_info` by offset, and behind them those of `.debug_types`.
    units: Vec<Unit<'a>>,
    /// How many are in `.debug_info`.
    in_info: usize,
    signatures: BTreeMap<u64, Place>,
    split: Option<&'a str>,
    budget: Budget,
    memory: Memory,
}

impl<'a> Units<'a> {
    /// Reads the units, and keeps at most `most` bytes of what they say.
    pub(super) fn new(sections: &'a Sections, most: u64) -> Result<Self, DwarfError> {
        /// Bytes of a unit, with its signature.
        const UNIT: usize = size_of::<(UnitHeader<Slice<'_>>, Unit<'_>, u64, Place)>();
        let memory = Memory { left: Cell::new(most), most };
        let mut headers = Vec::new();
        for header in DebugInfo::new(&sections.info, LittleEndian).units() {
            memory.keep(UNIT)?;
            headers.push(header?);
        }
        let in_info = headers.len();
        for header in DebugTypes::new(&sections.types, LittleEndian).units() {
            memory.keep(UNIT)?;
            headers.push(header?);
        }
        let tables = tables(sections, &headers, &memory)?;
        let bytes = sections.info.len() + sections.types.len();
        let all = STEPS * bytes as u64 + (1 << 16);
        let budget = Budget { left: Cell::new(all), all, bytes };
        let (units, signatures) = (Vec::new(), BTreeMap::new());
        let mut this = Self { sections, units, in_info, signatures, split: None, budget, memory };
        for header in headers {
            if header.encoding().address_size != 8 {
                return Err(DwarfError::Wrong { what: "an address has not 8 bytes" });
            }
            let abbreviations = Arc::clone(&tables[&header.debug_abbrev_offset().0]);
            if let UnitType::Type { type_signature, type_offset } = header.type_() {
                let place = Place { unit: this.units.len(), offset: type_offset.0 };
                this.signatures.insert(type_signature.0, place);
            }
            this.units.push(Unit { header, abbreviations, text_base: 8 });
            this.look_at_root()?;
        }
        Ok(this)
    }

    /// Reads what the root of the last unit says of it.
    fn look_at_root(&mut self) -> Result<(), DwarfError> {
        let place = self.root(self.units.len() - 1);
        let root = self.entry(place)?;
        if let (Some(AttributeValue::DebugStrOffsetsBase(base)), Some(unit)) =
            (root.attr_value(gimli::DW_AT_str_offsets_base), self.units.last_mut())
        {
            unit.text_base = base.0;
        }
        let file =
            [gimli::DW_AT_dwo_name, gimli::DW_AT_GNU_dwo_name].into_iter().find_map(|name| root.attr_value(name));
        if let (Some(file), None) = (file, self.split) {
            self.split = self.text(place, file);
        }
        Ok(())
    }

    fn root(&self, unit: usize) -> Place {
        Place { unit, offset: self.units[unit].header.root_offset().0 }
    }

    /// Returns where the first entry of each unit is.
    pub(super) fn roots(&self) -> Vec<Place> {
        (0..self.units.len()).map(|unit| self.root(unit)).collect()
    }

    /// Returns a file in which the types of a unit are, if they are not here.
    pub(super) const fn split(&self) -> Option<&'a str> {
        self.split
    }

    /// Pays for looking at so many things more.
    pub(super) fn look(&self, count: usize) -> Result<(), DwarfError> {
        self.budget.pay(count, 0)
    }

    /// Notes that so many bytes more are kept of what the units say.
    pub(super) fn keep(&self, bytes: usize) -> Result<(), DwarfError> {
        self.memory.keep(bytes)
    }

    /// Returns the entries from this place on, to the end of its unit.
    pub(super) fn cursor(&self, place: Place) -> Result<Cursor<'_, 'a>, DwarfError> {
        let unit = &self.units[place.unit];
        let entries = unit.header.entries_raw(&unit.abbreviations, Some(UnitOffset(place.offset)))?;
        Ok(Cursor { entries, unit: place.unit, budget: &self.budget })
    }

    /// Reads the entry at this place.
    pub(super) fn entry(&self, place: Place) -> Result<Entry<'a>, DwarfError> {
        let mut entry = Entry::null();
        self.cursor(place)?.read(&mut entry)?;
        Ok(entry)
    }

    /// Returns how the unit of this place is written.
    pub(super) fn encoding(&self, place: Place) -> gimli::Encoding {
        self.units[place.unit].header.encoding()
    }

    /// Returns the text of an attribute of the unit of `within`; `None` if it is too long, or no text.
    pub(super) fn text(&self, within: Place, value: AttributeValue<Slice<'a>>) -> Option<&'a str> {
        let unit = &self.units[within.unit];
        let in_texts = |offset: usize| self.sections.texts.get(offset..);
        let bytes = match value {
            AttributeValue::String(text) => text.slice(),
            AttributeValue::DebugStrRef(offset) => in_texts(offset.0)?,
            AttributeValue::DebugLineStrRef(offset) => self.sections.line_texts.get(offset.0..)?,
            AttributeValue::DebugStrOffsetsIndex(index) => {
                let len = if unit.header.format() == Format::Dwarf64 { 8 } else { 4 };
                let start = index.0.checked_mul(len)?.checked_add(unit.text_base)?;
                let mut offset = [0; 8];
                offset[..len].copy_from_slice(self.sections.text_offsets.get(start..)?.get(..len)?);
                in_texts(usize::try_from(u64::from_le_bytes(offset)).ok()?)?
            }
            _ => return None,
        };
        let most = &bytes[..bytes.len().min(MOST_NAME + 1)];
        let len = most.iter().position(|byte| *byte == 0).unwrap_or(most.len());
        if len > MOST_NAME { None } else { str::from_utf8(&most[..len]).ok() }
    }

    /// Returns what an attribute of an entry in the unit of `within` refers to.
    pub(super) fn refers(&self, within: Place, entry: &Entry<'a>, attribute: DwAt) -> Refers {
        let place = match entry.attr_value(attribute) {
            None => return Refers::Nothing,
            Some(AttributeValue::UnitRef(offset)) => Some(Place { unit: within.unit, offset: offset.0 }),
            Some(AttributeValue::DebugInfoRef(offset)) => {
                let start = |unit: &Unit<'a>| unit.header.debug_info_offset().map_or(usize::MAX, |start| start.0);
                let info = &self.units[..self.in_info];
                let behind = info.partition_point(|unit| start(unit) <= offset.0);
                behind.checked_sub(1).map(|unit| Place { unit, offset: offset.0 - start(&info[unit]) })
            }
            Some(AttributeValue::DebugTypesRef(signature)) => self.signatures.get(&signature.0).copied(),
            Some(_) => None,
        };
        place.map_or(Refers::Elsewhere, Refers::To)
    }
}

/// Reads the tables of abbreviations. Each ends where the next one begins, so that no byte is read twice.
fn tables(
    sections: &Sections,
    headers: &[UnitHeader<Slice<'_>>],
    memory: &Memory,
) -> Result<BTreeMap<usize, Arc<Abbreviations>>, DwarfError> {
    let mut offsets: Vec<usize> = headers.iter().map(|header| header.debug_abbrev_offset().0).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let ends = offsets.iter().skip(1).copied().chain([sections.abbreviations.len()]);
    let table = |(start, end): (&usize, usize)| {
        let bytes = sections.abbreviations.get(*start..end).unwrap_or_default();
        keep_table(EndianSlice::new(bytes, LittleEndian), memory)?;
        let table = DebugAbbrev::new(bytes, LittleEndian).abbreviations(DebugAbbrevOffset(0))?;
        Ok((*start, Arc::new(table)))
    };
    offsets.iter().zip(ends).map(table).collect()
}

/// Notes how many bytes a table of abbreviations will have in memory, before it is read.
fn keep_table(mut table: Slice<'_>, memory: &Memory) -> Result<(), DwarfError> {
    while table.read_uleb128()? != 0 {
        memory.keep(ABBREVIATION)?;
        // What kind of entry it is, and whether it has children.
        table.skip_leb128()?;
        table.skip(1)?;
        loop {
            let (name, form) = (table.read_uleb128()?, table.read_uleb128()?);
            if (name, form) == (0, 0) {
                break;
            }
            memory.keep(ATTRIBUTE)?;
            if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                table.skip_leb128()?;
            }
        }
    }
    Ok(())
}

/// Entries one after the other.
pub(super) struct Cursor<'u, 'a> {
    entries: EntriesRaw<'u, Slice<'a>>,
    unit: usize,
    budget: &'u Budget,
}

impl<'u, 'a> Cursor<'u, 'a> {
    /// How deep the next entry is below the first one; `None` behind the last one.
    pub(super) fn depth(&self) -> Option<isize> {
        if self.entries.is_empty() { None } else { Some(self.entries.next_depth()) }
    }

    pub(super) fn place(&self) -> Place {
        Place { unit: self.unit, offset: self.entries.next_offset().0 }
    }

    /// Reads an entry. One at the end of a list of children is null.
    pub(super) fn read(&mut self, entry: &mut Entry<'a>) -> Result<(), DwarfError> {
        let start = self.place().offset;
        self.entries.read_entry(entry)?;
        self.budget.pay(entry.attrs().len(), self.place().offset - start)
    }

    /// Reads what kind of entry it is; `None` at the end of a list of children. Its attributes must be read next.
    pub(super) fn kind(&mut self) -> Result<Option<&'u Abbreviation>, DwarfError> {
        Ok(self.entries.read_abbreviation()?)
    }

    /// Passes over the attributes of an entry.
    pub(super) fn skip(&mut self, kind: &Abbreviation) -> Result<(), DwarfError> {
        let start = self.place().offset;
        self.entries.skip_attributes(kind.attributes())?;
        self.budget.pay(kind.attributes().len(), self.place().offset - start)
    }

    /// Calls `see` with each attribute of an entry.
    pub(super) fn attributes(
        &mut self,
        kind: &Abbreviation,
        mut see: impl FnMut(&Attribute<Slice<'a>>),
    ) -> Result<(), DwarfError> {
        let start = self.place().offset;
        for specification in kind.attributes() {
            see(&self.entries.read_attribute(*specification)?);
        }
        self.budget.pay(kind.attributes().len(), self.place().offset - start)
    }
}
