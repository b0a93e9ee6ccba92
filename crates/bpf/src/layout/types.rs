//! The described types, in the order of their descriptions, and their BTF.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::any::TypeId;

use super::Described;
use super::section::{Kind, Section};

/// The number of a type in its [`Types`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Number(pub(super) u32);

/// What an integer's bits mean. The values are those of BTF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Integer {
    Unsigned = 0,
    Signed = 1,
    Truth = 4,
}

/// What a type is.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Integer { name: &'static str, len: u32, sign: Integer },
    Array { of: Number, count: u32 },
    Pointer(Number),
    Struct { name: &'static str, fields: Vec<Field> },
}

/// A type, with its size and alignment.
#[derive(Clone, Debug)]
pub(super) struct Type {
    pub(super) form: Form,
    pub(super) size: usize,
    pub(super) align: usize,
}

/// A field of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    pub(super) name: &'static str,
    pub(super) of: Number,
    /// Bytes from the beginning.
    pub(super) offset: usize,
}

/// Types that programs are told about.
#[derive(Clone, Debug, Default)]
pub struct Types {
    /// By number, from 1.
    types: Vec<Type>,
    known: BTreeMap<TypeId, Number>,
}

impl Types {
    /// Makes an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Describes a type and all types that it is made of.
    pub fn of<T: Described>() -> Self {
        Self::new().and::<T>()
    }

    /// Adds another type.
    pub fn and<T: Described>(mut self) -> Self {
        self.number::<T>();
        self
    }

    /// The number of `T`, which is added if it is missing.
    pub fn number<T: Described>(&mut self) -> Number {
        match self.known.get(&TypeId::of::<T>()) {
            Some(number) => *number,
            None => T::describe(self),
        }
    }

    fn add<T: 'static>(&mut self, form: Form) -> Number {
        self.types.push(Type { form, size: size_of::<T>(), align: align_of::<T>() });
        let number = Number(self.types.len() as u32);
        self.known.insert(TypeId::of::<T>(), number);
        number
    }

    /// Adds a type that needs no other, or whose parts are there already.
    pub(super) fn plain<T: Described>(&mut self, form: Form) -> Number {
        self.add::<T>(form)
    }

    /// Adds a pointer, before the type that it points to, which may contain such a pointer itself.
    pub(super) fn pointer<T: Described, To: Described>(&mut self) -> Number {
        let number = self.add::<T>(Form::Pointer(Number(0)));
        let to = self.number::<To>();
        self.types[number.0 as usize - 1].form = Form::Pointer(to);
        number
    }

    /// Adds a structure with these fields. [`layout!`](crate::layout!) calls this.
    pub fn structure<T: Described>(
        &mut self,
        name: &'static str,
        fields: impl FnOnce(&mut Self) -> Vec<Field>,
    ) -> Number {
        // Added before its fields, which may point to it.
        let number = self.add::<T>(Form::Struct { name, fields: Vec::new() });
        let mut fields = fields(self);
        fields.sort_by_key(|field| field.offset);
        self.types[number.0 as usize - 1].form = Form::Struct { name, fields };
        number
    }

    /// Makes a field of the type `T`. [`layout!`](crate::layout!) calls this.
    pub fn field<T: Described>(&mut self, name: &'static str, offset: usize) -> Field {
        // C and BTF have no raw identifiers.
        let name = name.strip_prefix("r#").unwrap_or(name);
        Field { name, of: self.number::<T>(), offset }
    }

    pub(super) fn all(&self) -> &[Type] {
        &self.types
    }

    pub(super) fn get(&self, number: Number) -> &Type {
        &self.types[number.0 as usize - 1]
    }

    /// Writes the types as a section `.BTF`, little-endian, for [`Btf::parse`](crate::elf::Btf::parse), `bpftool` and
    /// others.
    pub fn btf(&self) -> Vec<u8> {
        let mut section = Section::new();
        // Indexes of arrays are counted in one more type, behind the others.
        let index = self.types.len() as u32 + 1;
        for found in &self.types {
            match &found.form {
                Form::Integer { name, len, sign } => {
                    let name = section.text(name);
                    section.add(&[name, Kind::Integer.with(0), *len, (*sign as u32) << 24 | (len * 8)]);
                }
                Form::Array { of, count } => {
                    section.add(&[0, Kind::Array.with(0), 0, of.0, index, *count]);
                }
                Form::Pointer(to) => {
                    section.add(&[0, Kind::Pointer.with(0), to.0]);
                }
                Form::Struct { name, fields } => {
                    let head = [section.text(name), Kind::Struct.with(fields.len() as u32), found.size as u32];
                    let mut words = Vec::from(head);
                    for field in fields {
                        words.extend([section.text(field.name), field.of.0, field.offset as u32 * 8]);
                    }
                    section.add(&words);
                }
            }
        }
        let name = section.text("__ARRAY_SIZE_TYPE__");
        section.add(&[name, Kind::Integer.with(0), 4, 32]);
        section.bytes()
    }
}
