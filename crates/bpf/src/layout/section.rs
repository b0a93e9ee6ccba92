//! Writes a section `.BTF`: texts, and types as the words of which their records consist (Linux,
//! `Documentation/bpf/btf.rst`).

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Kinds of records. The numbers are those of BTF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Integer = 1,
    Pointer = 2,
    Array = 3,
    Struct = 4,
    #[cfg(feature = "dwarf")]
    Union = 5,
    #[cfg(feature = "dwarf")]
    Enum = 6,
    #[cfg(feature = "dwarf")]
    Declared = 7,
    #[cfg(feature = "dwarf")]
    Name = 8,
    #[cfg(feature = "dwarf")]
    Float = 16,
    #[cfg(feature = "dwarf")]
    Enum64 = 19,
}

impl Kind {
    /// Returns the second word of a record of this kind with so many parts, 65 535 at most.
    pub(crate) const fn with(self, parts: u32) -> u32 {
        (self as u32) << 24 | parts
    }

    /// Returns the same for a record with bit fields, or with numbers that may be negative.
    #[cfg(feature = "dwarf")]
    pub(crate) const fn flagged(self, parts: u32) -> u32 {
        1 << 31 | self.with(parts)
    }
}

/// A section that is being written.
#[derive(Debug)]
pub(crate) struct Section {
    words: Vec<u32>,
    types: u32,
    texts: Vec<u8>,
    known: BTreeMap<String, u32>,
}

impl Section {
    pub(crate) fn new() -> Self {
        // The text at 0 is the empty one.
        Self { words: Vec::new(), types: 0, texts: Vec::from([0]), known: BTreeMap::new() }
    }

    /// Returns where this text is, which is written once.
    pub(crate) fn text(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(place) = self.known.get(text) {
            return *place;
        }
        let place = self.texts.len() as u32;
        self.texts.extend(text.bytes().chain([0]));
        self.known.insert(text.to_string(), place);
        place
    }

    /// Adds a type. Returns its number.
    pub(crate) fn add(&mut self, record: &[u32]) -> u32 {
        self.words.extend(record);
        self.types += 1;
        self.types
    }

    /// Returns how long its records and texts are.
    #[cfg(feature = "dwarf")]
    pub(crate) fn len(&self) -> usize {
        self.words.len() * 4 + self.texts.len()
    }

    /// Returns the whole section, little-endian.
    pub(crate) fn bytes(self) -> Vec<u8> {
        /// Magic number, version, no flags; and the header's own length.
        const HEADER: [u32; 2] = [0x0001_eb9f, 24];
        let len = self.words.len() as u32 * 4;
        let parts = [0, len, len, self.texts.len() as u32];
        let words = HEADER.into_iter().chain(parts).chain(self.words).flat_map(u32::to_le_bytes);
        words.chain(self.texts).collect()
    }
}
