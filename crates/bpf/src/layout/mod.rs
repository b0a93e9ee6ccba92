//! Types of this process, described to programs: where their members are, as BTF and as a C header.
//!
//! [`layout!`](crate::layout!) defines structures and describes them. Programs are compiled against a
//! [header](Types::header) made from them. A program that was compiled against the header of an older or newer host is
//! adapted when it is [read](crate::elf::Object::parse_for) for these types: each access then goes where the member is
//! here.
//!
//! ```
//! use palimpsest_bpf::elf::{Btf, Object};
//! use palimpsest_bpf::layout;
//! use palimpsest_bpf::layout::Types;
//!
//! layout! {
//!     /// What programs see of a request.
//!     #[repr(C)]
//!     pub struct Request {
//!         pub bytes: u64,
//!         pub path: [u8; 32],
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let types = Types::of::<Request>();
//! assert!(types.header("request").contains("unsigned char path[32];"));
//! let btf = Btf::parse(&types.btf())?;
//! # let read = || -> Result<(), Box<dyn std::error::Error>> {
//! let object = Object::parse_for(&std::fs::read("filter.o")?, Some(&btf))?;
//! # Ok(()) };
//! # Ok(())
//! # }
//! ```

mod header;
mod section;
mod types;

use core::sync::atomic::{
    AtomicBool, AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32,
    AtomicU64, AtomicUsize,
};

#[cfg(feature = "dwarf")]
pub(crate) use section::{Kind, Section};
pub use types::{Field, Number, Types};
use types::{Form, Integer};

/// A type that can be described: integers and `bool`, also as atomics, arrays, raw pointers, and what
/// [`layout!`](crate::layout!) defines.
pub trait Described: 'static {
    /// Adds the type to `types`, and returns its number.
    fn describe(types: &mut Types) -> Number;
}

/// Describes integers by C's names.
macro_rules! integers {
    ($($type:ty, $atomic:ty, $name:literal, $sign:ident;)+) => {$(
        impl Described for $type {
            fn describe(types: &mut Types) -> Number {
                types.plain::<Self>(Form::Integer { name: $name, len: size_of::<Self>() as u32, sign: Integer::$sign })
            }
        }

        impl Described for $atomic {
            fn describe(types: &mut Types) -> Number {
                types.number::<$type>()
            }
        }
    )+};
}

integers! {
    u8, AtomicU8, "unsigned char", Unsigned;
    u16, AtomicU16, "unsigned short", Unsigned;
    u32, AtomicU32, "unsigned int", Unsigned;
    u64, AtomicU64, "unsigned long long", Unsigned;
    usize, AtomicUsize, "unsigned long", Unsigned;
    i8, AtomicI8, "signed char", Signed;
    i16, AtomicI16, "short", Signed;
    i32, AtomicI32, "int", Signed;
    i64, AtomicI64, "long long", Signed;
    isize, AtomicIsize, "long", Signed;
    bool, AtomicBool, "_Bool", Truth;
}

impl<T: Described, const COUNT: usize> Described for [T; COUNT] {
    fn describe(types: &mut Types) -> Number {
        let of = types.number::<T>();
        types.plain::<Self>(Form::Array { of, count: COUNT as u32 })
    }
}

macro_rules! pointers {
    ($($type:ty),+) => {$(
        impl<T: Described> Described for $type {
            fn describe(types: &mut Types) -> Number {
                types.pointer::<Self, T>()
            }
        }
    )+};
}

pointers!(*const T, *mut T, AtomicPtr<T>);

/// Defines structures that are described to programs ([`layout`](mod@crate::layout)). In C they have the same name, or
/// the text behind `as`.
#[macro_export]
macro_rules! layout {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident $(as $text:literal)? {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
    })+) => {$(
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl $crate::layout::Described for $name {
            fn describe(types: &mut $crate::layout::Types) -> $crate::layout::Number {
                let name = [$($text,)? stringify!($name)][0];
                types.structure::<Self>(name, |types| [
                    $(types.field::<$type>(stringify!($field), ::core::mem::offset_of!($name, $field)),)*
                ].into())
            }
        }
    )+};
}
