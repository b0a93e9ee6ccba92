//! BTF: types as compilers describe them beside the code (Linux, `Documentation/bpf/btf.rst`).
//!
//! Everything is checked once when it is read; later steps look types up by number, and get `None` for invalid numbers.
//! Chains of types are followed for a limited number of steps, since a hostile one may be a circle.

use alloc::vec::Vec;

/// A number of a type; 0 is `void`.
pub(super) type TypeId = u32;

/// Why a section is not BTF.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The header is not one.
    #[error("the section {section} does not begin with the header of BTF in this machine's byte order")]
    Header {
        /// Name of the section.
        section: &'static str,
    },
    /// A part reaches beyond the end.
    #[error("a part of the section {section} reaches beyond its end at byte {offset}")]
    Short {
        /// Name of the section.
        section: &'static str,
        /// Where.
        offset: usize,
    },
    /// A type of an unknown kind.
    #[error("the type {id} is of the kind {kind}, which is not known")]
    Kind {
        /// Its number.
        id: u32,
        /// The kind.
        kind: u32,
    },
    /// There are too many types.
    #[error("there are more than {most} types")]
    Many {
        /// Types.
        most: usize,
    },
}

/// Most types of an object; Linux's own BTF has a tenth of that.
const MOST_TYPES: usize = 1 << 20;
/// Bytes of a text to look at: many texts may be parts of one long one.
const MOST_TEXT: usize = 1024;
/// Longest chain of names and qualifiers that is followed.
pub(super) const MOST_STEPS: usize = 32;

/// Bytes that are read one number after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    section: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(section: &'static str, bytes: &'a [u8]) -> Self {
        Self { section, bytes, at: 0 }
    }

    fn short(&self) -> BtfError {
        BtfError::Short { section: self.section, offset: self.at }
    }

    /// Returns the `len` bytes at `offset`.
    pub(super) fn part(&self, offset: usize, len: usize) -> Result<Self, BtfError> {
        let bytes = self.bytes.get(offset..).and_then(|rest| rest.get(..len));
        let bytes = bytes.ok_or(BtfError::Short { section: self.section, offset })?;
        Ok(Self { bytes, at: 0, ..*self })
    }

    pub(super) const fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(super) const fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], BtfError> {
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.get(..len)).ok_or_else(|| self.short())?;
        self.at += len;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, BtfError> {
        let bytes = self.take(4)?.first_chunk().ok_or_else(|| self.short())?;
        Ok(u32::from_le_bytes(*bytes))
    }

    /// Reads the header of `.BTF` or `.BTF.ext`. Returns its length.
    pub(super) fn header(&mut self) -> Result<usize, BtfError> {
        const MAGIC: u32 = 0xeb9f;
        const VERSION: u32 = 1;
        let head = self.u32()?;
        let len = self.u32()? as usize;
        let is_known = head & 0xffff == MAGIC && head >> 16 & 0xff == VERSION;
        if !is_known || len > self.bytes.len() {
            return Err(BtfError::Header { section: self.section });
        }
        Ok(len)
    }
}

/// A field of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) name: u32,
    pub(super) of: TypeId,
    /// Bits from the beginning.
    pub(super) offset: u32,
    /// Bits that it has, if it is a bit field.
    pub(super) bits: Option<u32>,
}

/// A value of an enumeration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Enumerator {
    pub(super) name: u32,
    pub(super) value: u64,
}

/// A variable in a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Variable {
    pub(super) of: TypeId,
    pub(super) offset: u32,
}

/// What a type is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Void,
    Integer {
        size: u32,
        is_signed: bool,
    },
    Pointer(TypeId),
    Array {
        of: TypeId,
        count: u32,
    },
    /// A structure, or a union.
    Struct {
        size: u32,
        members: Vec<Member>,
        is_union: bool,
    },
    Enum {
        size: u32,
        values: Vec<Enumerator>,
        is_signed: bool,
    },
    /// What a function takes and returns.
    Function {
        parameters: Vec<TypeId>,
        returns: TypeId,
    },
    /// A name of another type or a qualifier on it.
    Alias(TypeId),
    /// A function or variable of this type.
    Value(TypeId),
    Section(Vec<Variable>),
    /// A remark on a type: on this parameter of a function, or member.
    Tag {
        of: TypeId,
        component: u32,
    },
    /// A structure that is declared only.
    Declared {
        is_union: bool,
    },
    Float {
        size: u32,
    },
}

/// A type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Type {
    pub(super) name: u32,
    pub(super) form: Form,
}

/// The types of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Btf {
    types: Vec<Type>,
    strings: Vec<u8>,
}

impl Btf {
    /// Reads the section `.BTF`.
    ///
    /// # Errors
    ///
    /// [`BtfError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let all = Reader::new(".BTF", bytes);
        let mut header = all;
        let len = header.header()?;
        let mut part = || Ok((header.u32()? as usize, header.u32()? as usize));
        let (types, strings) = (part()?, part()?);
        let behind = |offset: usize| len.saturating_add(offset);
        let mut reader = all.part(behind(types.0), types.1)?;
        let mut strings = all.part(behind(strings.0), strings.1)?;
        let strings = Vec::from(strings.take(strings.rest())?);
        let mut types = Vec::from([Type { name: 0, form: Form::Void }]);
        while !reader.is_at_end() {
            if types.len() == MOST_TYPES {
                return Err(BtfError::Many { most: MOST_TYPES });
            }
            types.push(one(&mut reader, types.len() as u32)?);
        }
        Ok(Self { types, strings })
    }

    pub(super) fn get(&self, id: TypeId) -> Option<&Type> {
        self.types.get(id as usize)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = (TypeId, &Type)> {
        (0..).zip(&self.types)
    }

    /// Returns the text at this offset, cut off if it is long; empty if there is none.
    pub(super) fn text(&self, offset: u32) -> &str {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        let rest = &rest[..rest.len().min(MOST_TEXT)];
        let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        str::from_utf8(text).unwrap_or_default()
    }

    /// Returns the type behind names and qualifiers.
    pub(super) fn resolved(&self, mut id: TypeId) -> Option<(TypeId, &Type)> {
        for _ in 0..MOST_STEPS {
            let found = self.get(id)?;
            match found.form {
                Form::Alias(of) | Form::Value(of) => id = of,
                _ => return Some((id, found)),
            }
        }
        None
    }

    /// Returns the bytes of a type.
    pub(super) fn size(&self, id: TypeId) -> Option<u32> {
        let mut count = 1_u32;
        let mut id = id;
        for _ in 0..MOST_STEPS {
            let size = match self.resolved(id)?.1.form {
                Form::Integer { size, .. }
                | Form::Struct { size, .. }
                | Form::Enum { size, .. }
                | Form::Float { size } => size,
                Form::Pointer(_) => 8,
                Form::Array { of, count: more } => {
                    (id, count) = (of, count.checked_mul(more)?);
                    continue;
                }
                Form::Void
                | Form::Alias(_)
                | Form::Value(_)
                | Form::Section(_)
                | Form::Function { .. }
                | Form::Tag { .. }
                | Form::Declared { .. } => return None,
            };
            return count.checked_mul(size);
        }
        None
    }
}

fn one(reader: &mut Reader<'_>, id: u32) -> Result<Type, BtfError> {
    let name = reader.u32()?;
    let info = reader.u32()?;
    let size = reader.u32()?;
    let (count, kind, flag) = (info & 0xffff, info >> 24 & 0x1f, info >> 31 != 0);
    let form = match kind {
        1 => {
            const SIGNED: u32 = 1;
            Form::Integer { size, is_signed: reader.u32()? >> 24 & SIGNED != 0 }
        }
        2 => Form::Pointer(size),
        3 => {
            let of = reader.u32()?;
            let _index = reader.u32()?;
            Form::Array { of, count: reader.u32()? }
        }
        4 | 5 => {
            let members = (0..count).map(|_| member(reader, flag)).collect::<Result<_, _>>()?;
            Form::Struct { size, members, is_union: kind == 5 }
        }
        6 => {
            let value = |reader: &mut Reader<'_>| {
                let (name, value) = (reader.u32()?, reader.u32()?);
                let value = if flag { value as i32 as u64 } else { value.into() };
                Ok(Enumerator { name, value })
            };
            Form::Enum { size, values: (0..count).map(|_| value(reader)).collect::<Result<_, _>>()?, is_signed: flag }
        }
        19 => {
            let value = |reader: &mut Reader<'_>| {
                let (name, low, high) = (reader.u32()?, reader.u32()?, reader.u32()?);
                Ok(Enumerator { name, value: u64::from(high) << 32 | u64::from(low) })
            };
            Form::Enum { size, values: (0..count).map(|_| value(reader)).collect::<Result<_, _>>()?, is_signed: flag }
        }
        7 => Form::Declared { is_union: flag },
        // Names, `volatile`, `const`, `restrict`, tags of types.
        8..=11 | 18 => Form::Alias(size),
        12 => Form::Value(size),
        13 => {
            let parameter = |reader: &mut Reader<'_>| {
                let _name = reader.u32()?;
                reader.u32()
            };
            Form::Function {
                parameters: (0..count).map(|_| parameter(reader)).collect::<Result<_, _>>()?,
                returns: size,
            }
        }
        14 => {
            let _linkage = reader.u32()?;
            Form::Value(size)
        }
        15 => {
            let variable = |reader: &mut Reader<'_>| {
                let (of, offset) = (reader.u32()?, reader.u32()?);
                let _size = reader.u32()?;
                Ok(Variable { of, offset })
            };
            Form::Section((0..count).map(|_| variable(reader)).collect::<Result<_, _>>()?)
        }
        16 => Form::Float { size },
        17 => Form::Tag { of: size, component: reader.u32()? },
        kind => return Err(BtfError::Kind { id, kind }),
    };
    Ok(Type { name, form })
}

fn member(reader: &mut Reader<'_>, has_bits: bool) -> Result<Member, BtfError> {
    let (name, of, offset) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let (offset, bits) = if has_bits { (offset & 0xff_ffff, Some(offset >> 24)) } else { (offset, None) };
    Ok(Member { name, of, offset, bits: bits.filter(|bits| *bits > 0) })
}
