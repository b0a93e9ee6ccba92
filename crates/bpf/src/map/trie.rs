//! Values by the longest prefix of a key: a hash map of prefixes, searched for each length that exists.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use super::cells::Cells;
use super::hash::{Eviction, Hash};
use super::value::Value;
use super::{Definition, Element, MapError, OpError, Update};

/// Most bytes of data in a key (`LPM_DATA_SIZE_MAX` of Linux, `kernel/bpf/lpm_trie.c`).
pub(super) const MOST_DATA: u32 = 256;
/// Bytes of a key before its data: how many bits count.
pub(super) const HEAD: usize = 4;

/// A map of prefixes.
#[derive(Debug)]
pub(super) struct Trie {
    hash: Hash,
    /// How many prefixes there are of each length, in bits: at least as many as look-ups can find. Whoever adds or
    /// removes one changes it.
    lengths: Box<[AtomicU32]>,
}

/// A prefix in the form in which it is stored: bits that do not count are zero.
struct Prefix {
    bytes: [u8; HEAD + MOST_DATA as usize],
    len: usize,
}

impl Prefix {
    fn new(key: &[u8], bits: usize) -> Self {
        let mut bytes = [0; HEAD + MOST_DATA as usize];
        bytes[..HEAD].copy_from_slice(&(bits as u32).to_ne_bytes());
        let whole = bits / 8;
        bytes[HEAD..HEAD + whole].copy_from_slice(&key[HEAD..HEAD + whole]);
        if !bits.is_multiple_of(8) {
            bytes[HEAD + whole] = key[HEAD + whole] & !(0xff >> (bits % 8));
        }
        Self { bytes, len: key.len() }
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Trie {
    /// Bytes that it takes.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        let lengths = (definition.key_len as usize - HEAD) * 8 + 1;
        Hash::bytes(definition, 1).saturating_add((lengths * size_of::<AtomicU32>()) as u64)
    }

    pub(super) fn new(definition: &Definition) -> Result<Self, MapError> {
        let bits = (definition.key_len as usize - HEAD) * 8;
        let lengths: Vec<AtomicU32> = (0..=bits).map(|_| AtomicU32::new(0)).collect();
        Ok(Self { hash: Hash::new(definition, 1, Eviction::Never)?, lengths: lengths.into_boxed_slice() })
    }

    pub(super) const fn values(&self) -> &Cells {
        self.hash.values()
    }

    pub(super) const fn keys(&self) -> &Cells {
        self.hash.keys()
    }

    /// Returns how many bits a key says count; `None` for more than it has.
    fn bits(&self, key: &[u8]) -> Option<usize> {
        let head = key.first_chunk::<HEAD>()?;
        let bits = u32::from_ne_bytes(*head) as usize;
        (bits < self.lengths.len()).then_some(bits)
    }

    const fn too_long(&self) -> OpError {
        OpError::Prefix { most: self.lengths.len() - 1 }
    }

    /// Returns what `look` finds for the longest existing prefix.
    fn longest<T>(&self, key: &[u8], mut look: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let bits = self.bits(key)?;
        let is_there = |bits: &usize| self.lengths[*bits].load(Ordering::Relaxed) > 0;
        (0..=bits).rev().filter(is_there).find_map(|bits| look(Prefix::new(key, bits).key()))
    }

    pub(super) fn address(&self, key: &[u8]) -> Option<u64> {
        self.longest(key, |prefix| self.hash.address(prefix, 0))
    }

    pub(super) fn read(&self, key: &[u8], value: &mut [u8]) -> Result<(), OpError> {
        self.longest(key, |prefix| self.hash.read(prefix, 0, value).ok()).ok_or(OpError::NotFound)
    }

    pub(super) fn update(&self, key: &[u8], value: Value<'_>, update: Update) -> Result<(), OpError> {
        let bits = self.bits(key).ok_or(self.too_long())?;
        // Before it exists, so that whoever sees it searches this length.
        self.lengths[bits].fetch_add(1, Ordering::Relaxed);
        let result = self.hash.update(Prefix::new(key, bits).key(), Some(0), value, update, &|_| ());
        if result != Ok(true) {
            self.lengths[bits].fetch_sub(1, Ordering::Relaxed);
        }
        match result {
            // Linux has another number for it here.
            Err(OpError::Full) => Err(OpError::NoSpace),
            result => result.map(|_| ()),
        }
    }

    pub(super) fn remove(&self, key: &[u8]) -> Result<(), OpError> {
        let bits = self.bits(key).ok_or(self.too_long())?;
        self.hash.remove(Prefix::new(key, bits).key(), &|_| ())?;
        self.lengths[bits].fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn element(&self, from: usize) -> Option<Element> {
        self.hash.element(from, 0)
    }
}
