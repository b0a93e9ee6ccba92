//! Bloom filters.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use super::cells::{Hashing, WORD, seed, words};
use super::value::Value;
use super::{Definition, MapError};

/// Functions, if their number is not given (Linux: `kernel/bpf/bloom_filter.c`).
const FUNCTIONS: u32 = 5;
/// Most functions.
const MOST_FUNCTIONS: u32 = 15;

/// A bloom filter.
#[derive(Debug)]
pub(super) struct Bloom {
    /// Anybody sets bits and reads them, without a lock; none is cleared.
    bits: Box<[AtomicU64]>,
    functions: u32,
    seed: u64,
}

/// How many functions a filter has.
fn functions(definition: &Definition) -> u32 {
    match definition.functions {
        0 => FUNCTIONS,
        functions => functions.min(MOST_FUNCTIONS),
    }
}

impl Bloom {
    pub(super) fn new(definition: &Definition) -> Result<Self, MapError> {
        let functions = functions(definition);
        Ok(Self { bits: words(definition, Self::bytes(definition) / WORD as u64)?, functions, seed: seed() })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        // False hits are rarest when half of the bits are set: entries times functions, divided by ln 2.
        let bits = u64::from(definition.max_entries) * u64::from(functions(definition)) * 7 / 5;
        bits.next_power_of_two().max(64) / 8
    }

    fn places(&self, value: Value<'_>) -> impl Iterator<Item = (&AtomicU64, u64)> + use<'_> {
        let mask = self.bits.len() as u64 * 64 - 1;
        // Two functions make any number of functions (Kirsch and Mitzenmacher, "Less Hashing, Same Performance").
        let mut two = [Hashing::new(self.seed), Hashing::new(!self.seed)];
        value.each_piece(|_, bytes| two.iter_mut().for_each(|hashing| hashing.add(bytes)));
        let [first, step] = two.map(|hashing| hashing.end(value.len()));
        let step = step | 1;
        (0..u64::from(self.functions)).map(move |number| {
            let place = first.wrapping_add(number.wrapping_mul(step)) & mask;
            (&self.bits[(place / 64) as usize], 1 << (place % 64))
        })
    }

    pub(super) fn push(&self, value: Value<'_>) {
        self.places(value).for_each(|(word, bit)| {
            word.fetch_or(bit, Ordering::Relaxed);
        });
    }

    pub(super) fn may_have(&self, value: Value<'_>) -> bool {
        self.places(value).all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}
