//! Where batches of this process have ever trapped. A thread may come to the handler long after its batch: then others
//! have been in the tables, which name the sites of their last batches only.
//!
//! A filter of a fixed size, since handlers look at it and threads change it: it may say so of other addresses (of a
//! sixth of them after a quarter of a million sites), and never denies it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the filter: 128 KiB, of which a process touches what it needs.
const WORDS: usize = 1 << 14;

/// Bits of the number of a bit.
const BITS: u32 = (WORDS * 64).ilog2();

/// The filter. Relaxed everywhere: an address is added before the table that names it is published, and looked for
/// after the handler has read the tables' stamps.
pub(super) struct Trapped([AtomicU64; WORDS]);

/// The process's own; a child has what was in it at the fork.
pub(super) static TRAPPED: Trapped = Trapped::new();

impl Trapped {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Adds an address.
    pub(super) fn add(&self, address: usize) {
        for (word, bit) in self.bits(address) {
            // Written only if it must be: a page that is written to is copied after a fork.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Whether an address may have been added.
    pub(super) fn may_hold(&self, address: usize) -> bool {
        self.bits(address).all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn bits(&self, address: usize) -> impl Iterator<Item = (&AtomicU64, u64)> {
        // Fibonacci hashing: the upper bits of the product depend on all bits of the address.
        let hash = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        [hash >> (64 - BITS), hash >> (64 - 2 * BITS)].into_iter().map(|number| {
            let number = number as usize % (WORDS * 64);
            (&self.0[number / 64], 1 << (number % 64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a filter that forgets, or that says yes to everything.
    #[test]
    fn what_was_added_is_held_and_most_of_the_rest_is_not() {
        static FILTER: Trapped = Trapped::new();
        let sites = || (0..20_000_usize).map(|index| 0x7F00_1234_0000 + index * 7);
        assert!(!sites().any(|site| FILTER.may_hold(site)));
        sites().for_each(|site| FILTER.add(site));
        assert!(sites().all(|site| FILTER.may_hold(site)));
        let others = (0..20_000_usize).filter(|index| FILTER.may_hold(0x5500_0000_0000 + index * 5)).count();
        assert!(others < 200, "{others} of 20 000");
    }
}
