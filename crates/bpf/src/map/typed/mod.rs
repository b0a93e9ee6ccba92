//! Maps for the host, with types for keys and values.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Kind, Map, OpError, Update, WhenFull};

/// Types of keys and values: any bytes are a valid value, and a value has no padding.
pub trait Plain: FromBytes + IntoBytes + Immutable {}

impl<T: FromBytes + IntoBytes + Immutable> Plain for T {}

/// Why a handle does not fit a map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
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
}

fn check<K, V>(map: &Map, kinds: &[Kind]) -> Result<(), TypeError> {
    let definition = map.definition();
    if !kinds.contains(&definition.kind) {
        return Err(TypeError::Kind { kind: definition.kind });
    }
    for (what, len, given) in
        [("keys", definition.key_len, size_of::<K>()), ("values", definition.value_len, size_of::<V>())]
    {
        if len as usize != given {
            return Err(TypeError::Length { what, len, given });
        }
    }
    Ok(())
}

macro_rules! handle {
    ($(#[$meta:meta])* $name:ident<$($parameter:ident),+>, $key:ty, $value:ty, [$($kind:ident),+]) => {
        $(#[$meta])*
        pub struct $name<$($parameter),+> {
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

        impl<$($parameter: Plain),+> $name<$($parameter),+> {
            /// Makes a handle of `map`.
            ///
            /// # Errors
            ///
            /// [`TypeError`].
            pub fn new(map: Arc<Map>) -> Result<Self, TypeError> {
                check::<$key, $value>(&map, &[$(Kind::$kind),+])?;
                Ok(Self { map, types: PhantomData })
            }

            /// The map.
            pub const fn map(&self) -> &Arc<Map> {
                &self.map
            }
        }
    };
}

handle! {
    /// An array: one value for each number, or for each number and CPU.
    ArrayHandle<V>, u32, V, [Array, PerCpuArray]
}
handle! {
    /// Values by key: hash maps of all kinds, and tries.
    HashHandle<K, V>, K, V, [Hash, LruHash, PerCpuHash, LruPerCpuHash, LpmTrie]
}
handle! {
    /// A queue or a stack.
    QueueHandle<V>, (), V, [Queue, Stack]
}

fn read<V: Plain>(map: &Map, key: &[u8], cpu: u32) -> Result<V, OpError> {
    let mut value = V::new_zeroed();
    map.read(key, cpu, value.as_mut_bytes())?;
    Ok(value)
}

impl<V: Plain> ArrayHandle<V> {
    /// Returns the value with this number, of the first CPU.
    pub fn get(&self, index: u32) -> Option<V> {
        read(&self.map, index.as_bytes(), 0).ok()
    }

    /// Returns the values with this number, of each CPU.
    pub fn of_cpus(&self, index: u32) -> Vec<V> {
        (0..self.map.cpus()).filter_map(|cpu| read(&self.map, index.as_bytes(), cpu).ok()).collect()
    }

    /// Sets the value with this number, of every CPU.
    ///
    /// # Errors
    ///
    /// [`OpError::Full`] for a number that does not exist.
    pub fn set(&self, index: u32, value: &V) -> Result<(), OpError> {
        self.map.update(index.as_bytes(), value.as_bytes(), Update::Always)
    }
}

#[cfg(feature = "std")]
fn change_locked<V: Plain, T>(map: &Map, key: &[u8], change: impl FnOnce(&mut V) -> T) -> Result<T, OpError> {
    map.change_locked(key, |bytes| {
        let (len, given) = (size_of::<V>(), bytes.len());
        let mut value = V::read_from_bytes(bytes).map_err(|_| OpError::Length { len, given })?;
        let answer = change(&mut value);
        bytes.copy_from_slice(value.as_bytes());
        Ok(answer)
    })?
}

#[cfg(feature = "std")]
impl<V: Plain> ArrayHandle<V> {
    /// Changes the value with this number under its lock ([`Map::change_locked`]).
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn change_locked<T>(&self, index: u32, change: impl FnOnce(&mut V) -> T) -> Result<T, OpError> {
        change_locked(&self.map, index.as_bytes(), change)
    }
}

impl<K: Plain, V: Plain> HashHandle<K, V> {
    /// Changes the value of `key` under its lock ([`Map::change_locked`]).
    ///
    /// # Errors
    ///
    /// [`OpError`].
    #[cfg(feature = "std")]
    pub fn change_locked<T>(&self, key: &K, change: impl FnOnce(&mut V) -> T) -> Result<T, OpError> {
        change_locked(&self.map, key.as_bytes(), change)
    }

    /// Returns the value of `key`, of the first CPU.
    pub fn get(&self, key: &K) -> Option<V> {
        read(&self.map, key.as_bytes(), 0).ok()
    }

    /// Returns the values of `key`, of each CPU.
    pub fn of_cpus(&self, key: &K) -> Vec<V> {
        (0..self.map.cpus()).filter_map(|cpu| read(&self.map, key.as_bytes(), cpu).ok()).collect()
    }

    /// Sets the value of `key`, of every CPU.
    ///
    /// # Errors
    ///
    /// [`OpError`].
    pub fn set(&self, key: &K, value: &V, update: Update) -> Result<(), OpError> {
        self.map.update(key.as_bytes(), value.as_bytes(), update)
    }

    /// Removes `key`.
    ///
    /// # Errors
    ///
    /// [`OpError::NotFound`].
    pub fn remove(&self, key: &K) -> Result<(), OpError> {
        self.map.remove(key.as_bytes())
    }

    /// Returns the keys that exist. Those that come and go meanwhile may be among them or not.
    pub fn keys(&self) -> Vec<K> {
        self.map.keys().iter().filter_map(|key| K::read_from_bytes(key).ok()).collect()
    }
}

impl<V: Plain> QueueHandle<V> {
    /// Adds a value.
    ///
    /// # Errors
    ///
    /// [`OpError::Full`].
    pub fn push(&self, value: &V, when_full: WhenFull) -> Result<(), OpError> {
        self.map.push(value.as_bytes(), when_full)
    }

    /// Takes the next value out.
    pub fn pop(&self) -> Option<V> {
        let mut value = V::new_zeroed();
        self.map.pop(value.as_mut_bytes()).ok()?;
        Some(value)
    }
}
