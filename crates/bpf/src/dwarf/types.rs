//! Writes entries as BTF.
//!
//! A type's record is made after those of the types that lie in it, and pointers point to nothing. So equal types have
//! equal records, and get one number.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use gimli::{AttributeValue, DwAt, Operation};

use super::DwarfError;
use super::units::{Entry, Place, Refers, Units};
use crate::layout::{Kind, Section};

/// How deeply types lie in each other at most.
const MOST_NESTED: usize = 256;
/// Most bytes of all records and texts.
const MOST: usize = 64 << 20;
/// Most parts of a record.
const MOST_PARTS: usize = 0xffff;

/// A number of a type; 0 is `void`.
type TypeId = u32;

/// A type that is being made, or was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Begun,
    Done(TypeId),
}

/// The contents of a structure.
#[derive(Clone, Copy)]
struct Member<'a> {
    name: &'a str,
    of: Refers,
    /// Bits from the beginning.
    offset: u64,
    bits: Option<u64>,
}

/// One of the forms of a Rust `enum`.
struct Variant<'a> {
    /// The number that means it.
    tag: Option<u64>,
    member: Member<'a>,
}

/// What an entry of a structure tells.
#[derive(Default)]
struct Contents<'a> {
    members: Vec<Member<'a>>,
    variants: Vec<Variant<'a>>,
    tag: Option<Member<'a>>,
}

pub(super) struct Builder<'u, 'a> {
    units: &'u Units<'a>,
    section: Section,
    made: BTreeMap<Place, Made>,
    /// By record.
    known: BTreeMap<Vec<u32>, TypeId>,
}

impl<'u, 'a> Builder<'u, 'a> {
    pub(super) fn new(units: &'u Units<'a>) -> Self {
        Self { units, section: Section::new(), made: BTreeMap::new(), known: BTreeMap::new() }
    }

    pub(super) fn section(self) -> Vec<u8> {
        self.section.bytes()
    }

    /// Adds a type, under another name if one is given.
    pub(super) fn root(&mut self, place: Place, called: Option<&str>) -> Result<(), DwarfError> {
        match called {
            None => self.make(place, 0).map(drop),
            Some(called) => self.convert(place, Some(called), 0).map(drop),
        }
    }

    fn record(&mut self, words: Vec<u32>) -> Result<TypeId, DwarfError> {
        if let Some(id) = self.known.get(&words) {
            return Ok(*id);
        }
        let id = self.section.add(&words);
        self.known.insert(words, id);
        if self.section.len() > MOST { Err(DwarfError::Many { most: MOST }) } else { Ok(id) }
    }

    /// Adds a type of which only the name is known.
    fn declared(&mut self, name: &str) -> Result<TypeId, DwarfError> {
        let name = self.section.text(name);
        self.record(Vec::from([name, Kind::Declared.with(0), 0]))
    }

    /// Makes a type, unless it was made before.
    fn make(&mut self, place: Place, depth: usize) -> Result<TypeId, DwarfError> {
        match self.made.get(&place) {
            Some(Made::Done(id)) => return Ok(*id),
            Some(Made::Begun) => return Err(DwarfError::Wrong { what: "a type lies in itself" }),
            None => {}
        }
        if depth > MOST_NESTED {
            return Err(DwarfError::Wrong { what: "types nest too deeply" });
        }
        self.units.keep(size_of::<(Place, Made)>())?;
        self.made.insert(place, Made::Begun);
        let id = self.convert(place, None, depth)?;
        self.made.insert(place, Made::Done(id));
        Ok(id)
    }

    fn referred(&mut self, refers: Refers, depth: usize) -> Result<TypeId, DwarfError> {
        match refers {
            Refers::Nothing => Ok(0),
            Refers::To(place) => self.make(place, depth + 1),
            Refers::Elsewhere => self.declared(""),
        }
    }

    fn name(&self, place: Place, entry: &Entry<'a>) -> &'a str {
        entry.attr_value(gimli::DW_AT_name).and_then(|name| self.units.text(place, name)).unwrap_or_default()
    }

    fn convert(&mut self, place: Place, called: Option<&str>, depth: usize) -> Result<TypeId, DwarfError> {
        let entry = self.units.entry(place)?;
        let name = called.unwrap_or(self.name(place, &entry));
        let of = self.units.refers(place, &entry, gimli::DW_AT_type);
        match entry.tag() {
            gimli::DW_TAG_base_type => self.number(&entry, name),
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => {
                self.record(Vec::from([0, Kind::Pointer.with(0), 0]))
            }
            gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => self.referred(of, depth),
            gimli::DW_TAG_typedef | gimli::DW_TAG_template_alias => {
                let of = self.referred(of, depth)?;
                let name = self.section.text(name);
                self.record(Vec::from([name, Kind::Name.with(0), of]))
            }
            gimli::DW_TAG_array_type => self.array(place, name, of, depth),
            gimli::DW_TAG_enumeration_type => self.enumeration(place, &entry, name),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => {
                self.structure(place, &entry, name, Kind::Struct, depth)
            }
            gimli::DW_TAG_union_type => self.structure(place, &entry, name, Kind::Union, depth),
            _ => self.declared(name),
        }
    }

    fn number(&mut self, entry: &Entry<'a>, name: &str) -> Result<TypeId, DwarfError> {
        let size = constant(entry, gimli::DW_AT_byte_size).unwrap_or(0);
        let text = self.section.text(name);
        let size = match size {
            1..=16 => size as u32,
            // `()` and `!` are empty.
            0 => return self.record(Vec::from([text, Kind::Struct.with(0), 0])),
            _ => return self.declared(name),
        };
        /// What BTF says of numbers with a sign, and of truth values.
        const SIGNED: u32 = 1 << 24;
        const TRUTH: u32 = 4 << 24;
        let meaning = match entry.attr_value(gimli::DW_AT_encoding) {
            Some(AttributeValue::Encoding(gimli::DW_ATE_float)) => {
                return self.record(Vec::from([text, Kind::Float.with(0), size]));
            }
            Some(AttributeValue::Encoding(gimli::DW_ATE_signed | gimli::DW_ATE_signed_char)) => SIGNED,
            Some(AttributeValue::Encoding(gimli::DW_ATE_boolean)) => TRUTH,
            _ => 0,
        };
        self.record(Vec::from([text, Kind::Integer.with(0), size, meaning | (size * 8)]))
    }

    fn array(&mut self, place: Place, name: &str, of: Refers, depth: usize) -> Result<TypeId, DwarfError> {
        let mut counts = Vec::new();
        let mut entry = Entry::null();
        let mut cursor = self.units.cursor(place)?;
        cursor.read(&mut entry)?;
        while let Some(level @ 1..) = cursor.depth() {
            cursor.read(&mut entry)?;
            if level == 1 && entry.tag() == gimli::DW_TAG_subrange_type {
                let first = constant(&entry, gimli::DW_AT_lower_bound).unwrap_or(0);
                let last = constant(&entry, gimli::DW_AT_upper_bound);
                let count = constant(&entry, gimli::DW_AT_count)
                    .or_else(|| last.map(|last| last.wrapping_sub(first).wrapping_add(1)));
                // An array without a length ends its structure.
                push(&mut counts, count.unwrap_or(0), name)?;
            }
        }
        let mut id = self.referred(of, depth)?;
        let index = self.section.text("__ARRAY_SIZE_TYPE__");
        let index = self.record(Vec::from([index, Kind::Integer.with(0), 4, 32]))?;
        for count in counts.iter().rev() {
            // What is longer than BTF can say counts as without a length.
            let count = u32::try_from(*count).unwrap_or(0);
            id = self.record(Vec::from([0, Kind::Array.with(0), 0, id, index, count]))?;
        }
        Ok(id)
    }

    fn enumeration(&mut self, place: Place, entry: &Entry<'a>, name: &str) -> Result<TypeId, DwarfError> {
        let Some(size) = constant(entry, gimli::DW_AT_byte_size) else { return self.declared(name) };
        let mut values = Vec::new();
        let mut entry = Entry::null();
        let mut cursor = self.units.cursor(place)?;
        cursor.read(&mut entry)?;
        while let Some(level @ 1..) = cursor.depth() {
            let place = cursor.place();
            cursor.read(&mut entry)?;
            if level == 1
                && entry.tag() == gimli::DW_TAG_enumerator
                && let Some(value) = signed_or_not(&entry, gimli::DW_AT_const_value)
            {
                push(&mut values, (self.name(place, &entry), value), name)?;
            }
        }
        self.enumerators(name, size, &values)
    }

    /// Adds an `enum` with these values, in the form with numbers of 64 bits if one needs them.
    fn enumerators(&mut self, name: &str, size: u64, values: &[(&str, i128)]) -> Result<TypeId, DwarfError> {
        let parts = parts(name, values.len())?;
        let is_signed = values.iter().any(|(_, value)| *value < 0);
        let most = if is_signed { i32::MAX.into() } else { u32::MAX.into() };
        let is_wide = values.iter().any(|(_, value)| *value < i32::MIN.into() || *value > most);
        let kind = if is_wide { Kind::Enum64 } else { Kind::Enum };
        let size = u32::try_from(size).unwrap_or(0);
        let info = if is_signed { kind.flagged(parts) } else { kind.with(parts) };
        let mut words = Vec::from([self.section.text(name), info, size]);
        for (name, value) in values {
            words.extend([self.section.text(name), *value as u32]);
            if is_wide {
                words.push((*value >> 32) as u32);
            }
        }
        self.record(words)
    }

    fn structure(
        &mut self,
        place: Place,
        entry: &Entry<'a>,
        name: &str,
        kind: Kind,
        depth: usize,
    ) -> Result<TypeId, DwarfError> {
        // Defined in a unit of its own.
        if let Refers::To(place) = self.units.refers(place, entry, gimli::DW_AT_signature) {
            return self.make(place, depth + 1);
        }
        let Some(size) = constant(entry, gimli::DW_AT_byte_size) else { return self.declared(name) };
        let mut contents = self.contents(place, name, kind)?;
        // They stay while the types that lie in it are made.
        let count = contents.members.len() + contents.variants.len();
        self.units.keep(count * size_of::<(Variant<'_>, Member<'_>, TypeId)>())?;
        let mut fields = Vec::new();
        let mut has_bits = false;
        contents.members.sort_by_key(|member| member.offset);
        for member in &contents.members {
            has_bits |= member.bits.is_some();
            fields.push((*member, self.referred(member.of, depth)?));
        }
        if !contents.variants.is_empty() {
            let (of, variants) = (Refers::Nothing, self.variants(size, &contents.variants, depth)?);
            fields.push((Member { name: "", of, offset: 0, bits: None }, variants));
        }
        if let Some(tag) = contents.tag {
            fields.push((Member { name: "__tag", ..tag }, self.tag(name, &tag, &contents.variants, depth)?));
        }
        self.fields(name, kind, size, &fields, has_bits)
    }

    /// Adds a structure or union with these fields.
    fn fields(
        &mut self,
        name: &str,
        kind: Kind,
        size: u64,
        fields: &[(Member<'a>, TypeId)],
        has_bits: bool,
    ) -> Result<TypeId, DwarfError> {
        let parts = parts(name, fields.len())?;
        let large = || DwarfError::Large { name: name.to_owned(), what: "more bytes than BTF can say" };
        let size = u32::try_from(size).map_err(|_| large())?;
        let info = if has_bits { kind.flagged(parts) } else { kind.with(parts) };
        let mut words = Vec::from([self.section.text(name), info, size]);
        for (member, of) in fields {
            let mut offset = u32::try_from(member.offset).map_err(|_| large())?;
            if has_bits {
                let bits = u8::try_from(member.bits.unwrap_or(0)).map_err(|_| large())?;
                if offset >> 24 != 0 {
                    return Err(large());
                }
                offset |= u32::from(bits) << 24;
            }
            words.extend([self.section.text(member.name), *of, offset]);
        }
        self.record(words)
    }

    /// Adds the union of all variants.
    fn variants(&mut self, size: u64, variants: &[Variant<'a>], depth: usize) -> Result<TypeId, DwarfError> {
        let mut fields = Vec::new();
        for variant in variants {
            fields.push((variant.member, self.referred(variant.member.of, depth)?));
        }
        self.fields("", Kind::Union, size, &fields, false)
    }

    /// Adds the `enum` of the numbers that mean the variants.
    fn tag(
        &mut self,
        name: &str,
        tag: &Member<'a>,
        variants: &[Variant<'a>],
        depth: usize,
    ) -> Result<TypeId, DwarfError> {
        let size = match tag.of {
            Refers::To(place) => constant(&self.units.entry(place)?, gimli::DW_AT_byte_size),
            _ => None,
        };
        let Some(size) = size else { return self.referred(tag.of, depth) };
        let value = |variant: &Variant<'a>| Some((variant.member.name, i128::from(variant.tag?)));
        let values: Vec<(&str, i128)> = variants.iter().filter_map(value).collect();
        let name: String = if name.is_empty() { String::new() } else { format!("{name}__tag") };
        self.enumerators(&name, size, &values)
    }

    /// Reads the contents of the structure at this place.
    fn contents(&self, place: Place, name: &str, kind: Kind) -> Result<Contents<'a>, DwarfError> {
        let mut contents = Contents::default();
        let mut entry = Entry::null();
        let mut cursor = self.units.cursor(place)?;
        cursor.read(&mut entry)?;
        // Inside the part with variants; and inside which of these, with its number.
        let mut is_in_part = false;
        let mut variant = None;
        while let Some(level @ 1..) = cursor.depth() {
            let place = cursor.place();
            cursor.read(&mut entry)?;
            if entry.is_null() {
                continue;
            }
            match (level, entry.tag()) {
                (1, gimli::DW_TAG_variant_part) => is_in_part = true,
                (1, gimli::DW_TAG_member | gimli::DW_TAG_inheritance) => {
                    is_in_part = false;
                    if let Some(member) = self.member(place, &entry, kind)? {
                        push(&mut contents.members, member, name)?;
                    }
                }
                (1, _) => is_in_part = false,
                (2, gimli::DW_TAG_member) if is_in_part => contents.tag = self.member(place, &entry, kind)?,
                (2, gimli::DW_TAG_variant) if is_in_part => {
                    variant = Some(constant(&entry, gimli::DW_AT_discr_value));
                }
                (2, _) => variant = None,
                (3, gimli::DW_TAG_member) if is_in_part => {
                    if let (Some(tag), Some(member)) = (variant, self.member(place, &entry, kind)?) {
                        push(&mut contents.variants, Variant { tag, member }, name)?;
                    }
                }
                _ => {}
            }
        }
        Ok(contents)
    }

    /// Reads a member; `None` if it is no part of each value, or if its place depends on the value.
    fn member(&self, place: Place, entry: &Entry<'a>, kind: Kind) -> Result<Option<Member<'a>>, DwarfError> {
        // Those of a class, in C++, have no place.
        let is_set = |name: DwAt| entry.attr_value(name) == Some(AttributeValue::Flag(true));
        if is_set(gimli::DW_AT_external) || is_set(gimli::DW_AT_declaration) {
            return Ok(None);
        }
        let bits = constant(entry, gimli::DW_AT_bit_size);
        let start = match entry.attr_value(gimli::DW_AT_data_member_location) {
            None if kind == Kind::Union || bits.is_some() => Some(0),
            None => constant(entry, gimli::DW_AT_data_bit_offset).map(|_| 0),
            Some(AttributeValue::Exprloc(expression)) => {
                let mut operations = expression.operations(self.units.encoding(place));
                match operations.next()? {
                    // Compilers for DWARF 2 write it like this: what is on the stack, plus this number.
                    Some(Operation::PlusConstant { value }) if operations.next()?.is_none() => Some(value),
                    _ => None,
                }
            }
            Some(value) => value.udata_value(),
        };
        let wrong = DwarfError::Wrong { what: "a member lies beyond all memory" };
        let Some(start) = start else { return Ok(None) };
        let Some(mut offset) = start.checked_mul(8) else { return Err(wrong) };
        if let (Some(bits), Some(from_end)) = (bits, constant(entry, gimli::DW_AT_bit_offset)) {
            // Before DWARF 4: from the most significant bit of a number of so many bytes.
            let Some(size) = constant(entry, gimli::DW_AT_byte_size) else { return Ok(None) };
            let inside = size.checked_mul(8).and_then(|all| all.checked_sub(from_end)?.checked_sub(bits));
            offset = inside.and_then(|inside| offset.checked_add(inside)).ok_or(wrong)?;
        } else if let Some(inside) = constant(entry, gimli::DW_AT_data_bit_offset) {
            offset = inside;
        }
        let of = self.units.refers(place, entry, gimli::DW_AT_type);
        let name = if entry.tag() == gimli::DW_TAG_inheritance { "" } else { self.name(place, entry) };
        Ok(Some(Member { name, of, offset, bits }))
    }
}

fn constant(entry: &Entry<'_>, name: DwAt) -> Option<u64> {
    let value = entry.attr_value(name)?;
    // A number that is written as a signed one may be a pattern of bits.
    value.udata_value().or_else(|| value.sdata_value().map(|value| value as u64))
}

/// Returns a number, which is negative only if it is written as a signed one.
fn signed_or_not(entry: &Entry<'_>, name: DwAt) -> Option<i128> {
    match entry.attr_value(name)? {
        AttributeValue::Sdata(value) => Some(value.into()),
        value => value.udata_value().map(i128::from),
    }
}

fn parts(name: &str, parts: usize) -> Result<u32, DwarfError> {
    if parts > MOST_PARTS {
        return Err(DwarfError::Large { name: name.to_owned(), what: "more members than BTF can say" });
    }
    Ok(parts as u32)
}

/// Adds a part of the type `name`, unless it is one too many: what is read of an entry is far longer than the entry.
fn push<T>(into: &mut Vec<T>, part: T, name: &str) -> Result<(), DwarfError> {
    parts(name, into.len() + 1)?;
    into.push(part);
    Ok(())
}
