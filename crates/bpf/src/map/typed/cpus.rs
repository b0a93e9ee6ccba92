//! Handles for maps in which each CPU has values of its own.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use zerocopy::IntoBytes;

use super::super::{Definition, Kind, Map, OpError, Update};
use super::{Handle, Lengths, Plain, TypeError, check, read};

handle! {
    /// An array: one value for each number and CPU.
    PerCpuArrayHandle<V: Plain>, size_of::<u32>(), size_of::<V>(), [PerCpuArray]
}
handle! {
    /// Values by key, one for each CPU: a hash map, also one that drops what nobody uses (LRU).
    PerCpuHashHandle<K: Plain, V: Plain>, size_of::<K>(), size_of::<V>(), [PerCpuHash, LruPerCpuHash]
}

/// Returns a CPU's value.
fn of_cpu<V: Plain>(map: &Map, key: &[u8], cpu: u32) -> Option<V> {
    if cpu < map.cpus() { read(map, key, cpu).ok() } else { None }
}

/// Puts the values of all CPUs together.
fn fold<V: Plain, T>(map: &Map, key: &[u8], first: T, mut add: impl FnMut(T, V) -> T) -> Option<T> {
    let mut sum = first;
    for cpu in 0..map.cpus() {
        sum = add(sum, read(map, key, cpu).ok()?);
    }
    Some(sum)
}

impl<V: Plain> PerCpuArrayHandle<V> {
    /// Returns the value with this number of a CPU.
    pub fn get(&self, index: u32, cpu: u32) -> Option<V> {
        of_cpu(&self.map, index.as_bytes(), cpu)
    }

    /// Puts the values with this number of all CPUs together, beginning with `first`. Allocates nothing.
    pub fn fold<T>(&self, index: u32, first: T, add: impl FnMut(T, V) -> T) -> Option<T> {
        fold(&self.map, index.as_bytes(), first, add)
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

impl<K: Plain, V: Plain> PerCpuHashHandle<K, V> {
    /// Returns the value of `key` of a CPU.
    pub fn get(&self, key: &K, cpu: u32) -> Option<V> {
        of_cpu(&self.map, key.as_bytes(), cpu)
    }

    /// Puts the values of `key` of all CPUs together, beginning with `first`. Allocates nothing.
    pub fn fold<T>(&self, key: &K, first: T, add: impl FnMut(T, V) -> T) -> Option<T> {
        fold(&self.map, key.as_bytes(), first, add)
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
