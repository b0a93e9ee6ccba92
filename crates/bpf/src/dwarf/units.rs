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
/// The longest path of a file (`PATH_MAX`).
const MOST_PATH: usize = 4096;
/// Steps for each byte of debug information.
const STEPS: u64 = 16;
/// Bytes of an abbreviation in memory: with the room for more that a table has.
const ABBREVIATION: usize = 128;
/// Bytes of an attribute of an abbreviation.
const ATTRIBUTE: usize = size_of::<AttributeSpecification>();

/// The sections of a file that are read.
#[derive(Debug, Default)]
pub(super) struct Sections {
    pub(super) info: Vec<u8>,
    pub(super) types: Vec<u8>,
    pub(super) abbreviations: Vec<u8>,
    pub(super) texts: Vec<u8>,
    pub(super) line_texts: Vec<u8>,
    pub(super) text_offsets: Vec<u8>,
    /// Where a package has the parts of each unit, and of each type.
    pub(super) unit_index: Vec<u8>,
    pub(super) type_index: Vec<u8>,
}

/// Whose units these are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// The program's.
    Program,
    /// A `.dwo` file's, or part of a package of such files.
    Split,
}

/// Units that share abbreviations and texts: those of a file, or what a package has of one.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    pub(super) role: Role,
    pub(super) info: Vec<&'a [u8]>,
    pub(super) types: Vec<&'a [u8]>,
    pub(super) abbreviations: &'a [u8],
    pub(super) texts: &'a [u8],
    pub(super) line_texts: &'a [u8],
    pub(super) text_offsets: &'a [u8],
}

impl Sections {
    /// Returns all units of the file.
    pub(super) fn view(&self, role: Role) -> View<'_> {
        View {
            role,
            info: Vec::from([&self.info[..]]),
            types: Vec::from([&self.types[..]]),
            abbreviations: &self.abbreviations,
            texts: &self.texts,
            line_texts: &self.line_texts,
            text_offsets: &self.text_offsets,
        }
    }

    /// Returns how many bytes they have.
    pub(super) fn bytes(&self) -> u64 {
        let info = [&self.info, &self.types, &self.abbreviations, &self.unit_index, &self.type_index];
        let texts = [&self.texts, &self.line_texts, &self.text_offsets];
        info.into_iter().chain(texts).map(|section| section.len() as u64).sum()
    }
}

/// A unit whose types are in a `.dwo` file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Skeleton<'a> {
    pub(super) file: &'a str,
    /// The folder in which the compiler ran.
    pub(super) folder: Option<&'a str>,
    /// The number that the unit there has, too.
    pub(super) id: Option<u64>,
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
    /// The number of its view.
    view: usize,
}

/// A view, and which units it has.
struct Viewed<'a> {
    view: View<'a>,
    /// The first one's number.
    first: usize,
    /// How many are in the section of units; those behind them are in the section of types.
    in_info: usize,
}

/// How many steps are left.
#[derive(Debug)]
struct Budget {
    left: Cell<u64>,
    all: u64,
    bytes: usize,
}

impl Budget {
    /// Allows the steps for so many bytes more.
    fn add(&mut self, bytes: usize) {
        let steps = STEPS * bytes as u64;
        self.left.set(self.left.get() + steps);
        self.all += steps;
        self.bytes += bytes;
    }

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
    views: Vec<Viewed<'a>>,
    units: Vec<Unit<'a>>,
    signatures: BTreeMap<u64, Place>,
    skeletons: Vec<Skeleton<'a>>,
    /// The numbers of units in `.dwo` files.
    ids: Vec<u64>,
    budget: Budget,
    memory: Memory,
}

impl<'a> Units<'a> {
    /// Reads the units, and keeps at most `most` bytes of what they say.
    pub(super) fn new(views: impl IntoIterator<Item = View<'a>>, most: u64) -> Result<Self, DwarfError> {
        let memory = Memory { left: Cell::new(most), most };
        let budget = Budget { left: Cell::new(1 << 16), all: 1 << 16, bytes: 0 };
        let (units, signatures) = (Vec::new(), BTreeMap::new());
        let (views, skeletons, ids) = (views.into_iter(), Vec::new(), Vec::new());
        let mut this = Self { views: Vec::new(), units, signatures, skeletons, ids, budget, memory };
        for view in views {
            this.add(view)?;
        }
        Ok(this)
    }

    /// Reads the units of a view.
    fn add(&mut self, view: View<'a>) -> Result<(), DwarfError> {
        /// Bytes of a unit, with its signature.
        const UNIT: usize = size_of::<(UnitHeader<Slice<'_>>, Unit<'_>, u64, Place)>();
        self.memory.keep(size_of::<Viewed<'_>>())?;
        let mut headers = Vec::new();
        for info in &view.info {
            for header in DebugInfo::new(info, LittleEndian).units() {
                self.memory.keep(UNIT)?;
                headers.push(header?);
            }
        }
        let in_info = headers.len();
        for types in &view.types {
            for header in DebugTypes::new(types, LittleEndian).units() {
                self.memory.keep(UNIT)?;
                headers.push(header?);
            }
        }
        let tables = tables(view.abbreviations, &headers, &self.memory)?;
        self.budget.add(view.info.iter().chain(&view.types).map(|part| part.len()).sum());
        let (role, number) = (view.role, self.views.len());
        self.views.push(Viewed { view, first: self.units.len(), in_info });
        for header in headers {
            if header.encoding().address_size != 8 {
                return Err(DwarfError::Wrong { what: "an address has not 8 bytes" });
            }
            let abbreviations = Arc::clone(&tables[&header.debug_abbrev_offset().0]);
            match header.type_() {
                UnitType::Type { type_signature, type_offset }
                | UnitType::SplitType { type_signature, type_offset } => {
                    let place = Place { unit: self.units.len(), offset: type_offset.0 };
                    self.signatures.insert(type_signature.0, place);
                }
                UnitType::SplitCompilation(id) => self.ids.push(id.0),
                _ => {}
            }
            let text_base = match (role, header.encoding()) {
                // Version 4 has the table alone; from version 5 on, its length and version are before it.
                (Role::Split, gimli::Encoding { version: ..=4, .. }) => 0,
                (Role::Split, gimli::Encoding { format: Format::Dwarf64, .. }) => 16,
                _ => 8,
            };
            self.units.push(Unit { header, abbreviations, text_base, view: number });
            self.look_at_root(role)?;
        }
        Ok(())
    }

    /// Reads what the root of the last unit says of it.
    fn look_at_root(&mut self, role: Role) -> Result<(), DwarfError> {
        let place = self.root(self.units.len() - 1);
        let root = self.entry(place)?;
        if let (Some(AttributeValue::DebugStrOffsetsBase(base)), Some(unit)) =
            (root.attr_value(gimli::DW_AT_str_offsets_base), self.units.last_mut())
        {
            unit.text_base = base.0;
        }
        let id = match self.units[place.unit].header.type_() {
            UnitType::Skeleton(id) => Some(id.0),
            _ => root.attr(gimli::DW_AT_GNU_dwo_id).and_then(Attribute::udata_value),
        };
        if role == Role::Split {
            self.ids.extend(id);
            return Ok(());
        }
        let path = |name| root.attr_value(name).and_then(|value| self.text_within(place, value, MOST_PATH));
        if let Some(file) = [gimli::DW_AT_dwo_name, gimli::DW_AT_GNU_dwo_name].into_iter().find_map(path) {
            let folder = path(gimli::DW_AT_comp_dir);
            // The texts are not copied, but compared with each other, and many may be parts of a long one.
            self.memory.keep(size_of::<Skeleton<'_>>() + file.len() + folder.map_or(0, str::len))?;
            self.skeletons.push(Skeleton { file, folder, id });
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

    /// Returns the program's units whose types are in `.dwo` files.
    pub(super) fn skeletons(&self) -> &[Skeleton<'a>] {
        &self.skeletons
    }

    /// Returns the numbers of the units that are in `.dwo` files.
    pub(super) fn ids(&self) -> &[u64] {
        &self.ids
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
        self.text_within(within, value, MOST_NAME)
    }

    fn text_within(&self, within: Place, value: AttributeValue<Slice<'a>>, most: usize) -> Option<&'a str> {
        let unit = &self.units[within.unit];
        let View { texts, line_texts, text_offsets, .. } = self.views[unit.view].view;
        let bytes = match value {
            AttributeValue::String(text) => text.slice(),
            AttributeValue::DebugStrRef(offset) => texts.get(offset.0..)?,
            AttributeValue::DebugLineStrRef(offset) => line_texts.get(offset.0..)?,
            AttributeValue::DebugStrOffsetsIndex(index) => {
                let len = if unit.header.format() == Format::Dwarf64 { 8 } else { 4 };
                let start = index.0.checked_mul(len)?.checked_add(unit.text_base)?;
                let mut offset = [0; 8];
                offset[..len].copy_from_slice(text_offsets.get(start..)?.get(..len)?);
                texts.get(usize::try_from(u64::from_le_bytes(offset)).ok()?..)?
            }
            _ => return None,
        };
        let first = &bytes[..bytes.len().min(most + 1)];
        let len = first.iter().position(|byte| *byte == 0).unwrap_or(first.len());
        if len > most { None } else { str::from_utf8(&first[..len]).ok() }
    }

    /// Returns what an attribute of an entry in the unit of `within` refers to.
    pub(super) fn refers(&self, within: Place, entry: &Entry<'a>, attribute: DwAt) -> Refers {
        let place = match entry.attr_value(attribute) {
            None => return Refers::Nothing,
            Some(AttributeValue::UnitRef(offset)) => Some(Place { unit: within.unit, offset: offset.0 }),
            Some(AttributeValue::DebugInfoRef(offset)) => {
                let start = |unit: &Unit<'a>| unit.header.debug_info_offset().map_or(usize::MAX, |start| start.0);
                let Viewed { view, first, in_info } = &self.views[self.units[within.unit].view];
                let info = &self.units[*first..first + in_info];
                let behind = info.partition_point(|unit| start(unit) <= offset.0);
                // In a package nobody knows any more what the offset was counted from.
                let unit = behind.checked_sub(1).filter(|_| view.info.len() == 1);
                unit.map(|unit| Place { unit: first + unit, offset: offset.0 - start(&info[unit]) })
            }
            Some(AttributeValue::DebugTypesRef(signature)) => self.signatures.get(&signature.0).copied(),
            Some(_) => None,
        };
        place.map_or(Refers::Elsewhere, Refers::To)
    }
}

/// Reads the tables of abbreviations. Each ends where the next one begins, so that no byte is read twice.
fn tables(
    abbreviations: &[u8],
    headers: &[UnitHeader<Slice<'_>>],
    memory: &Memory,
) -> Result<BTreeMap<usize, Arc<Abbreviations>>, DwarfError> {
    let mut offsets: Vec<usize> = headers.iter().map(|header| header.debug_abbrev_offset().0).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let ends = offsets.iter().skip(1).copied().chain([abbreviations.len()]);
    let table = |(start, end): (&usize, usize)| {
        let bytes = abbreviations.get(*start..end).unwrap_or_default();
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
