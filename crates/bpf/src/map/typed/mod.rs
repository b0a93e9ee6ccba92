//! Maps for the host, with types for keys, values and records.
//!
//! A handle is made once of a map, whose kind and lengths are compared with its types; what it does afterwards needs no
//! checks, and has no errors for them. Maps of programs have types already ([`Programs`](super::Programs)).

use alloc::boxed::Box;
use alloc::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Definition, Kind, Map, OpError};

/// Types of keys and values: any bytes are a valid value, and a value has no padding.
pub trait Plain: FromBytes + IntoBytes + Immutable {}

impl<T: FromBytes + IntoBytes + Immutable> Plain for T {}

/// Why a handle does not fit a map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// It is of another kind.
    #[error("the map is of the kind {kind:?}, which this handle does not work on")]
    Kind {
        /// What it is.
        kind: Kind,
    },
    /// Keys or values have another length.
    #[error("{what} of the map have {len} bytes, and the type has {given}")]
    Length {
        /// Keys or values.
        what: &'static str,
        /// Bytes.
        len: u32,
        /// Bytes of the type.
        given: usize,
    },
    /// The handle for the maps in it does not fit them.
    #[error("the maps in the map are others")]
    Inner(#[source] Box<TypeError>),
}

/// What all handles have in common.
pub trait Handle: Sized {
    /// Compares the types with what a map is made from.
    ///
    /// # Errors
    ///
    /// [`TypeError`].
    fn fits(definition: &Definition) -> Result<(), TypeError>;

    /// Makes a handle of `map`.
    ///
    /// # Errors
    ///
    /// [`TypeError`].
    fn new(map: Arc<Map>) -> Result<Self, TypeError>;

    /// Returns the map.
    fn map(&self) -> &Arc<Map>;
}

/// Bytes of keys and values of a handle's types.
#[derive(Clone, Copy)]
struct Lengths {
    key: usize,
    value: usize,
}

fn check(definition: &Definition, kinds: &[Kind], lengths: Lengths) -> Result<(), TypeError> {
    if !kinds.contains(&definition.kind) {
        return Err(TypeError::Kind { kind: definition.kind });
    }
    for (what, len, given) in
        [("keys", definition.key_len, lengths.key), ("values", definition.value_len, lengths.value)]
    {
        if len as usize != given {
            return Err(TypeError::Length { what, len, given });
        }
    }
    Ok(())
}

/// Defines handles. Behind the kinds stands what else a definition must have.
macro_rules! handle {
    (
        $(#[$meta:meta])* $name:ident<$($parameter:ident: $bound:ident),+>,
        $key:expr, $value:expr, [$($kind:ident),+] $(, $also:expr)?
    ) => {
        $(#[$meta])*
        pub struct $name<$($parameter),+> {
            /// # Invariants
            ///
            /// 1. `Handle::fits` has accepted it.
            map: Arc<Map>,
            types: PhantomData<fn() -> ($($parameter,)+)>,
        }

        impl<$($parameter),+> Clone for $name<$($parameter),+> {
            fn clone(&self) -> Self {
                Self { map: Arc::clone(&self.map), types: PhantomData }
            }
        }

        impl<$($parameter),+> fmt::Debug for $name<$($parameter),+> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(self.map.definition()).finish()
            }
        }

        impl<$($parameter: $bound),+> Handle for $name<$($parameter),+> {
            fn fits(definition: &Definition) -> Result<(), TypeError> {
                check(definition, &[$(Kind::$kind),+], Lengths { key: $key, value: $value })?;
                $($also(definition)?;)?
                Ok(())
            }

            fn new(map: Arc<Map>) -> Result<Self, TypeError> {
                Self::fits(map.definition())?;
                Ok(Self { map, types: PhantomData })
            }

            fn map(&self) -> &Arc<Map> {
                &self.map
            }
        }

        impl<$($parameter: $bound),+> $name<$($parameter),+> {
            /// Makes a handle of `map`.
            ///
            /// # Errors
            ///
            /// [`TypeError`].
            pub fn new(map: Arc<Map>) -> Result<Self, TypeError> {
                Handle::new(map)
            }

            /// The map.
            pub const fn map(&self) -> &Arc<Map> {
                &self.map
            }
        }
    };
}

mod cpus;
mod nested;
mod prefix;
mod rings;
#[cfg(test)]
mod tests;
mod values;

pub use cpus::{PerCpuArrayHandle, PerCpuHashHandle};
pub use nested::MapsHandle;
pub use prefix::{Prefix, TrieHandle};
pub use rings::{RecordConsumer, RecordLength, RingHandle, SampleProducer, UserRingHandle};
pub use values::{ArrayHandle, BloomHandle, HashHandle, QueueHandle};

fn read<V: Plain>(map: &Map, key: &[u8], cpu: u32) -> Result<V, OpError> {
    let mut value = V::new_zeroed();
    map.read(key, cpu, value.as_mut_bytes())?;
    Ok(value)
}
