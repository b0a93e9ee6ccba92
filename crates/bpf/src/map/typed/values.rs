//! Handles for values by number, by key, and without either.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use zerocopy::IntoBytes;

use super::super::{Definition, Kind, Map, OpError, Update, WhenFull};
use super::{Handle, Lengths, Plain, TypeError, check, read};

handle! {
    /// An array: one value for each number.
    ArrayHandle<V: Plain>, size_of::<u32>(), size_of::<V>(), [Array]
}
handle! {
    /// Values by key: a hash map, also one that drops what nobody uses (LRU).
    HashHandle<K: Plain, V: Plain>, size_of::<K>(), size_of::<V>(), [Hash, LruHash]
}
handle! {
    /// A queue or a stack.
    QueueHandle<V: Plain>, 0, size_of::<V>(), [Queue, Stack]
}
handle! {
    /// A bloom filter.
    BloomHandle<V: Plain>, 0, size_of::<V>(), [BloomFilter]
}

impl<V: Plain> ArrayHandle<V> {
    /// Returns the value with this number.
    pub fn get(&self, index: u32) -> Option<V> {
        read(&self.map, index.as_bytes(), 0).ok()
    }

    /// Sets the value with this number.
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

    /// Returns the value of `key`.
    pub fn get(&self, key: &K) -> Option<V> {
        read(&self.map, key.as_bytes(), 0).ok()
    }

    /// Sets the value of `key`.
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

    /// Returns the next value, and leaves it.
    pub fn peek(&self) -> Option<V> {
        let mut value = V::new_zeroed();
        self.map.peek(value.as_mut_bytes()).ok()?;
        Some(value)
    }
}

impl<V: Plain> BloomHandle<V> {
    /// Adds a value, which is never removed.
    pub fn insert(&self, value: &V) {
        let done = self.map.push(value.as_bytes(), WhenFull::Refuse);
        debug_assert!(done.is_ok(), "a filter takes any value of its length: {done:?}");
    }

    /// Whether `value` may be in it. If not, it certainly is not.
    pub fn may_contain(&self, value: &V) -> bool {
        self.map.may_have(value.as_bytes().into()).is_ok()
    }
}
