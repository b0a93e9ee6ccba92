//! The source of a trial's numbers.

use std::cell::Cell;

/// What decides which operations a trial does.
#[derive(Clone, Copy, Debug)]
pub enum Source<'b> {
    /// Pseudo-random numbers from [`Case::seed`](super::Case::seed) on.
    Seed,
    /// These bytes, one for each small number, from a fuzzer. When none are left, all numbers are 0.
    Bytes(&'b [u8]),
}

pub(super) enum Chance<'b> {
    /// Xorshift.
    Seed(Cell<u64>),
    Bytes(Cell<&'b [u8]>),
}

impl<'b> Chance<'b> {
    pub(super) fn new(source: Source<'b>, seed: u64) -> Self {
        match source {
            Source::Seed => Self::Seed(Cell::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)),
            Source::Bytes(bytes) => Self::Bytes(Cell::new(bytes)),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes.get().is_empty())
    }

    /// Returns a number below `limit`, which is at most 256 if bytes decide.
    pub(super) fn below(&self, limit: u64) -> u64 {
        match self {
            Self::Seed(state) => {
                let mut x = state.get();
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                state.set(x);
                (x >> 11) % limit
            }
            Self::Bytes(bytes) => {
                let Some((&first, rest)) = bytes.get().split_first() else { return 0 };
                bytes.set(rest);
                u64::from(first) % limit
            }
        }
    }
}
