//! Memory that programs reach: atomic words, into and out of which the host copies bytes.
//!
//! Words are read and written relaxed: what leads to a value publishes it (a bucket's version, a ring's position); in
//! arrays nothing does, since anybody may write at any time.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use core::ops::Range;

use super::lock::{self, Lock};
use super::value::{Out, PIECE, Value};
use super::{Definition, MOST_BYTES, MapError};

/// Bytes of a word.
pub(crate) const WORD: usize = 8;

/// Makes `count` words of zeros for the map of `definition`.
pub(super) fn words(definition: &Definition, count: u64) -> Result<Box<[AtomicU64]>, MapError> {
    let bytes = count.saturating_mul(WORD as u64);
    let name = || definition.name.clone();
    if bytes > MOST_BYTES {
        return Err(MapError::Large { name: name(), bytes });
    }
    let mut words = Vec::new();
    let count = usize::try_from(count).map_err(|_| MapError::Large { name: name(), bytes })?;
    words.try_reserve_exact(count).map_err(|_| MapError::Memory { name: name(), bytes })?;
    words.resize_with(count, || AtomicU64::new(0));
    Ok(words.into_boxed_slice())
}

/// Values of one length, each of which begins with a word.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Anybody reads and writes, word by word: values of several words may be seen half-written, as in Linux.
    words: Box<[AtomicU64]>,
    /// Words of a value.
    stride: usize,
    /// Bytes of a value.
    len: usize,
    /// The offset of a lock in each value. Its 4 bytes are never written here.
    lock: Option<u32>,
}

/// Returns the word of `bytes` with this number; missing bytes are zero.
fn word(bytes: &[u8], index: usize) -> u64 {
    let rest = bytes.get(index * WORD..).unwrap_or_default();
    let mut word = [0; WORD];
    let len = rest.len().min(WORD);
    word[..len].copy_from_slice(&rest[..len]);
    u64::from_ne_bytes(word)
}

impl Cells {
    /// Returns the bytes that `count` values of `len` bytes take.
    pub(super) fn bytes(count: u64, len: u32) -> u64 {
        count.saturating_mul(u64::from(len).next_multiple_of(WORD as u64))
    }

    /// Makes `count` values of `len` bytes.
    pub(super) fn new(definition: &Definition, count: u64, len: u32) -> Result<Self, MapError> {
        let stride = (len as usize).div_ceil(WORD);
        Ok(Self {
            words: words(definition, count.saturating_mul(stride as u64))?,
            stride,
            len: len as usize,
            lock: None,
        })
    }

    /// Notes that each value has a lock at this offset, if it has one.
    pub(super) fn with_lock(self, lock: Option<u32>) -> Self {
        Self { lock, ..self }
    }

    /// Returns the lock of a value.
    pub(super) fn lock_of(&self, index: usize) -> Option<Lock<'_>> {
        let offset = self.lock?;
        Some(Lock::new(&self.of(index)[offset as usize / WORD], offset))
    }

    /// All words.
    pub(super) const fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Bytes from one value to the next.
    pub(super) const fn stride(&self) -> usize {
        self.stride * WORD
    }

    /// How many values there are.
    pub(super) fn count(&self) -> usize {
        self.words.len() / self.stride
    }

    fn of(&self, index: usize) -> &[AtomicU64] {
        &self.words[index * self.stride..][..self.stride]
    }

    /// Where a value lies.
    pub(super) fn address(&self, index: usize) -> u64 {
        address(self.of(index))
    }

    /// The index of the value whose byte `offset` lies at this address.
    pub(super) fn index_of(&self, address: u64, offset: u32) -> Option<usize> {
        let first = self::address(&self.words);
        let distance = address.checked_sub(first)?.checked_sub(offset.into())? as usize;
        let index = distance / self.stride();
        (distance.is_multiple_of(self.stride()) && index < self.count()).then_some(index)
    }

    /// Copies a value out.
    pub(super) fn read(&self, index: usize, value: &mut [u8]) {
        for (chunk, word) in value[..self.len].chunks_mut(WORD).zip(self.of(index)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..chunk.len()]);
        }
    }

    /// Copies a value out, piece by piece.
    pub(super) fn read_to(&self, index: usize, out: &mut Out<'_>) {
        let mut piece = [0; PIECE];
        for (number, words) in self.of(index).chunks(PIECE / WORD).enumerate() {
            let at = number * PIECE;
            for (bytes, word) in piece.chunks_exact_mut(WORD).zip(words) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            out(at, &piece[..PIECE.min(self.len - at)]);
        }
    }

    /// Copies a value in, without its lock; missing bytes are zero.
    pub(super) fn write(&self, index: usize, value: Value<'_>) {
        self.write_without(index, value, 0..0);
    }

    /// Copies a value in, without its lock and without these bytes of it, which are whole words; missing bytes are
    /// zero.
    pub(super) fn write_without(&self, index: usize, value: Value<'_>, kept: Range<usize>) {
        let locked = self.lock.map(|offset| (offset as usize / WORD, lock::bits(offset)));
        let kept = kept.start / WORD..kept.end / WORD;
        let cells = self.of(index);
        let store = |number: usize, word: u64| match locked.filter(|(at, _)| *at == number) {
            _ if kept.contains(&number) => {}
            None => cells[number].store(word, Ordering::Relaxed),
            Some((_, bits)) => {
                let change = |old| Some(old & bits | word & !bits);
                let _ = cells[number].fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
            }
        };
        value.each_piece(|at, bytes| {
            let first = at / WORD;
            (0..bytes.len().div_ceil(WORD)).for_each(|number| store(first + number, word(bytes, number)));
        });
        (value.len().div_ceil(WORD)..cells.len()).for_each(|number| store(number, 0));
    }

    /// Returns what [`hash`] returns for a value's bytes.
    pub(super) fn hash(&self, index: usize, seed: u64) -> u64 {
        let mut hashing = Hashing::new(seed);
        self.of(index).iter().for_each(|cell| hashing.add_word(cell.load(Ordering::Relaxed)));
        hashing.end(self.len)
    }

    /// Whether a value has these bytes.
    pub(super) fn is(&self, index: usize, value: &[u8]) -> bool {
        let value = &value[..self.len];
        self.of(index).iter().enumerate().all(|(number, cell)| cell.load(Ordering::Relaxed) == word(value, number))
    }
}

/// Returns the address of words, for programs: whoever makes a pointer of the number again may use it for these words.
pub(crate) fn address(words: &[AtomicU64]) -> u64 {
    words.as_ptr().expose_provenance() as u64
}

/// A number by which to spread bytes, while they come word by word.
#[derive(Clone, Copy)]
pub(super) struct Hashing {
    seed: u64,
    mixed: u64,
}

/// The golden ratio, as a fraction of 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const fn fold(left: u64, right: u64) -> u64 {
    let product = left as u128 * right as u128;
    product as u64 ^ (product >> 64) as u64
}

impl Hashing {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, mixed: seed ^ GOLDEN }
    }

    /// Adds bytes; all but the last ones are whole words.
    #[inline]
    pub(super) fn add(&mut self, bytes: &[u8]) {
        (0..bytes.len().div_ceil(WORD)).for_each(|index| self.add_word(word(bytes, index)));
    }

    const fn add_word(&mut self, word: u64) {
        self.mixed = fold(self.mixed ^ word, GOLDEN | 1) ^ self.seed;
    }

    /// Returns the number for what was added: `len` bytes.
    pub(super) const fn end(self, len: usize) -> u64 {
        fold(self.mixed ^ len as u64, GOLDEN)
    }
}

/// Returns a number by which to spread bytes.
#[inline]
pub(super) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut hashing = Hashing::new(seed);
    hashing.add(bytes);
    hashing.end(bytes.len())
}

/// Returns a number that nobody outside knows, so that nobody can choose keys that collide.
#[cfg(feature = "std")]
pub(super) fn seed() -> u64 {
    crate::random::number()
}

/// Without an operating system there are no random numbers: keys that collide can be chosen.
#[cfg(not(feature = "std"))]
pub(super) const fn seed() -> u64 {
    0x243f_6a88_85a3_08d3
}
