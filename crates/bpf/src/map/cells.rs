//! Memory that programs reach: atomic words, into and out of which the host copies bytes.
//!
//! Words are read and written relaxed: what leads to a value publishes it (a bucket's version, a ring's position); in
//! arrays nothing does, since anybody may write at any time.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::lock::{self, Lock};
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

    /// Bytes of a value.
    pub(super) const fn len(&self) -> usize {
        self.len
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

    /// Copies a value in, without its lock; missing bytes are zero.
    pub(super) fn write(&self, index: usize, value: &[u8]) {
        let value = &value[..value.len().min(self.len)];
        let locked = self.lock.map(|offset| (offset as usize / WORD, lock::bits(offset)));
        for (number, cell) in self.of(index).iter().enumerate() {
            let word = word(value, number);
            match locked.filter(|(at, _)| *at == number) {
                None => cell.store(word, Ordering::Relaxed),
                Some((_, bits)) => {
                    let _ =
                        cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & bits | word & !bits));
                }
            }
        }
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

/// Returns a number by which to spread bytes.
pub(super) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    /// The golden ratio, as a fraction of 2^64.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |left: u64, right: u64| {
        let product = u128::from(left) * u128::from(right);
        product as u64 ^ (product >> 64) as u64
    };
    let count = bytes.len().div_ceil(WORD);
    let mixed = (0..count).fold(seed ^ GOLDEN, |hash, index| fold(hash ^ word(bytes, index), GOLDEN | 1) ^ seed);
    fold(mixed ^ bytes.len() as u64, GOLDEN)
}

/// Returns a number that nobody outside knows, so that nobody can choose keys that collide.
#[cfg(feature = "std")]
pub(super) fn seed() -> u64 {
    use core::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// Without an operating system there are no random numbers: keys that collide can be chosen.
#[cfg(not(feature = "std"))]
pub(super) const fn seed() -> u64 {
    0x243f_6a88_85a3_08d3
}

/// Waits a little for another thread to finish.
pub(super) fn pause(round: u32) {
    if round < 64 {
        return core::hint::spin_loop();
    }
    #[cfg(feature = "std")]
    std::thread::yield_now();
    #[cfg(not(feature = "std"))]
    core::hint::spin_loop();
}
