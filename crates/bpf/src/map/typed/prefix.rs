//! Handles for tries: values by the longest prefix.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use super::super::trie::{HEAD, MOST_DATA};
use super::super::{Definition, Kind, Map, OpError, Update};
use super::{Handle, Lengths, Plain, TypeError, check, read};

handle! {
    /// Values by the longest prefix of data: of an address, for example, `[u8; 4]`. In programs a key is the number of
    /// bits that count, 4 bytes long, with the data behind it.
    TrieHandle<D: Plain, V: Plain>, HEAD + size_of::<D>(), size_of::<V>(), [LpmTrie]
}

/// Data of which the first bits count: the highest bits of each byte are the first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix<D> {
    /// How many bits count.
    pub bits: u32,
    /// The data. Bits that do not count may have any value.
    pub data: D,
}

/// Bytes of a prefix, as maps have them.
struct Key {
    bytes: [u8; HEAD + MOST_DATA as usize],
    len: usize,
}

impl Key {
    /// `data` has no more bytes than the keys of the trie for which there is a handle.
    fn new<D: Plain>(bits: u32, data: &D) -> Self {
        let mut bytes = [0; HEAD + MOST_DATA as usize];
        let data = data.as_bytes();
        bytes[..HEAD].copy_from_slice(&bits.to_ne_bytes());
        bytes[HEAD..][..data.len()].copy_from_slice(data);
        Self { bytes, len: HEAD + data.len() }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<D: Plain, V: Plain> TrieHandle<D, V> {
    /// Returns the value of the longest prefix of `data`.
    pub fn get(&self, data: &D) -> Option<V> {
        read(&self.map, Key::new(size_of::<D>() as u32 * 8, data).bytes(), 0).ok()
    }

    /// Returns the value of the longest prefix of `data` that is not longer than this one.
    pub fn get_within(&self, prefix: &Prefix<D>) -> Option<V> {
        read(&self.map, Key::new(prefix.bits, &prefix.data).bytes(), 0).ok()
    }

    /// Sets the value of this very prefix.
    ///
    /// # Errors
    ///
    /// [`OpError`]; [`OpError::Prefix`] if more bits count than there are.
    pub fn set(&self, prefix: &Prefix<D>, value: &V, update: Update) -> Result<(), OpError> {
        self.map.update(Key::new(prefix.bits, &prefix.data).bytes(), value.as_bytes(), update)
    }

    /// Removes this very prefix.
    ///
    /// # Errors
    ///
    /// [`OpError::NotFound`]; [`OpError::Prefix`] if more bits count than there are.
    pub fn remove(&self, prefix: &Prefix<D>) -> Result<(), OpError> {
        self.map.remove(Key::new(prefix.bits, &prefix.data).bytes())
    }

    /// Returns the prefixes that exist, with zeros for bits that do not count. Those that come and go meanwhile may be
    /// among them or not.
    pub fn prefixes(&self) -> Vec<Prefix<D>> {
        let prefix = |key: &Vec<u8>| {
            let (head, data) = key.split_first_chunk::<HEAD>()?;
            Some(Prefix { bits: u32::from_ne_bytes(*head), data: D::read_from_bytes(data).ok()? })
        };
        self.map.keys().iter().filter_map(prefix).collect()
    }
}
