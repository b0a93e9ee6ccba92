//! What copying takes, and what forks take for page tables: first as measured elsewhere, then as measured here.
//!
//! | of a fork and its child's exit | nanoseconds |
//! |---|---|
//! | an entry of a page table | 66 (17 µs for each MiB of base pages) |
//! | a huge page: its entry, and the page table set aside for it | 1 056 |
//! | an extent: its mapping | 650 |
//! | having frozen anything: the account, and the tables, one page of which the child copies | 20 000 |
//!
//! Reads no clock. Times are in nanoseconds.

use std::time::Duration;

use super::piece::PIECE;
use crate::worth::Worth;

/// An entry of a page table.
const ENTRY: u64 = 66;
/// How many entries a huge page counts for.
const HUGE: u64 = 16;
/// An extent.
const EXTENT: u64 = 650;
/// Having frozen anything.
const FIXED: u64 = 20_000;
/// What copying a MiB takes if no freeze was big enough to tell: a cautious guess.
const CAUTIOUS: u64 = 1_000_000;
/// Gathering a piece takes this part of what freezing it takes, before any gathering was big enough to tell.
const GATHERING: u64 = 3;
/// A freeze of this many MiB or more tells what copying takes.
const TELLING: usize = 16;
/// If a freeze was expected to save this much, what it did save tells what an entry takes.
const TELLING_GAIN: u64 = 100_000;
/// Memory of this many bytes or more is big, or very big.
const BIG: usize = 1 << 30;
const VERY_BIG: usize = 4 << 30;

/// Returns into how many extents this much memory is cut. 8 mappings alone make a fork 5 to 9 % longer, 4 of them 4 to
/// 5 %, 2 of them 2 to 4 %, and 32 a quarter. With few, more is copied when a half-used one is given up: with 2, a
/// repair of 2 GiB in one go took 4.7 s instead of 1.2 to 2.3 (docs/records/2026-11-24-bounds); and the first fork
/// after a write copies the page table entries of a whole one.
pub(super) const fn extents_of(populated: usize) -> usize {
    match populated {
        0..BIG => 16,
        BIG..VERY_BIG => 8,
        VERY_BIG.. => 4,
    }
}

/// Populated memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Memory {
    /// Bytes.
    pub(crate) bytes: usize,
    /// The part of them in huge pages.
    pub(crate) huge: usize,
    /// Extents that it fills, or would fill.
    pub(crate) extents: usize,
}

impl Memory {
    /// Makes the memory of `bytes` that are to be frozen, as a part of `all`.
    pub(super) fn to_freeze(bytes: usize, huge: usize, all: usize) -> Self {
        let share = (bytes / all.div_ceil(extents_of(all)).max(1)).min(bytes / PIECE);
        Self { bytes, huge: huge.min(bytes), extents: 1 + share }
    }
}

/// The prices of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prices {
    /// Copying a MiB; `None` before that was seen.
    per_mib: Option<u64>,
    /// Gathering a piece; `None` before that was seen.
    gathering: Option<u64>,
    /// An entry.
    entry: u64,
    page: usize,
}

impl Prices {
    pub(super) const fn new(page: usize) -> Self {
        Self { per_mib: None, gathering: None, entry: ENTRY, page }
    }

    /// Returns the price of copying this many bytes.
    pub(super) fn copying(&self, bytes: usize) -> u64 {
        (bytes as u64 >> 10).saturating_mul(self.per_mib.unwrap_or(CAUTIOUS) >> 10)
    }

    /// Returns what a huge page costs each fork.
    pub(super) const fn rent(&self) -> u64 {
        HUGE * self.entry
    }

    /// Returns after how many forks a huge page has cost as much as freezing it does.
    pub(super) fn huge_rest(&self) -> u64 {
        self.copying(PIECE) / self.rent().max(1) + 1
    }

    /// Whether putting a piece of base pages into a huge page pays within `forks` forks, and freezing a huge page does
    /// not.
    pub(super) fn is_better_huge(&self, forks: u32) -> bool {
        let forks = u64::from(forks);
        let pays = |price: u64, saved: u64| price <= saved.saturating_mul(forks);
        let gathering = self.gathering.unwrap_or(self.first_guess());
        pays(gathering, self.saved_by_huge()) && !pays(self.copying(PIECE), self.rent())
    }

    /// Returns what gathering a piece takes, before any gathering was big enough to tell.
    fn first_guess(&self) -> u64 {
        self.copying(PIECE) / GATHERING
    }

    /// Notes that nothing is gathered at these prices. Without gathering none is learned, and the machine may have been
    /// busy: so a price above the first guess moves half-way there, and after some plans there is another trial.
    pub(super) fn gathers_nothing(&mut self) {
        let guess = self.first_guess();
        self.gathering = self.gathering.map(|learned| learned.min(u64::midpoint(learned, guess)));
    }

    /// Returns what a huge page saves each fork, compared with base pages.
    pub(super) fn saved_by_huge(&self) -> u64 {
        ((PIECE / self.page) as u64).saturating_sub(HUGE).saturating_mul(self.entry)
    }

    /// Returns what freezing this is expected to be worth.
    pub(crate) fn worth(&self, memory: Memory) -> Worth {
        let Memory { bytes, huge, extents } = memory;
        let entries = ((bytes - huge) / self.page) as u64 + (huge / PIECE) as u64 * HUGE;
        let (gross, own) = (entries.saturating_mul(self.entry), (extents as u64).saturating_mul(EXTENT));
        Worth {
            once: Duration::from_nanos(self.copying(bytes)),
            per_fork: Duration::from_nanos(gross.saturating_sub(own)),
        }
    }

    /// Returns the same for the first memory that is frozen.
    pub(super) const fn of_first(worth: Worth) -> Worth {
        worth.at_a_cost_of(Duration::from_nanos(FIXED))
    }

    /// Notes a freeze that copied this many bytes in `taken`.
    pub(super) fn froze(&mut self, bytes: usize, taken: u64) {
        if bytes >> 20 >= TELLING {
            self.per_mib = Some(taken / (bytes >> 20) as u64);
        }
    }

    /// Notes that this many bytes were gathered in `taken`.
    pub(super) fn gathered(&mut self, bytes: usize, taken: u64) {
        if bytes >> 20 >= TELLING {
            self.gathering = Some(taken / (bytes / PIECE) as u64);
        }
    }

    /// Notes a freeze that was expected to save `expected` for each fork and saved `gained`. A machine may be four
    /// times slower or quicker than the one of the table, or busy with something else.
    pub(super) fn gained(&mut self, expected: u64, gained: u64) {
        if expected >= TELLING_GAIN {
            let right = u128::from(self.entry) * u128::from(gained) / u128::from(expected);
            self.entry = u64::try_from(right).unwrap_or(u64::MAX).clamp(ENTRY / 4, ENTRY * 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Returns after how many forks freezing pays, at the prices that a process starts with.
    fn pays_after(bytes: usize, huge: usize) -> Option<u64> {
        Prices::of_first(Prices::new(4096).worth(Memory::to_freeze(bytes, huge, bytes))).pays_after()
    }

    #[test]
    fn base_pages_pay_within_a_hundred_forks_and_huge_pages_and_small_heaps_do_not() {
        let redis = pays_after(640 * MIB, 0).expect("it pays");
        assert!((40..80).contains(&redis), "{redis}");
        let numpy = pays_after(512 * MIB, 512 * MIB).expect("it pays some day");
        assert!((1000..5000).contains(&numpy), "{numpy}");
        assert_eq!(pays_after(664 << 10, 0), None, "PostgreSQL");
        assert!(pays_after(2 * MIB, 0).is_some_and(|forks| forks > 100));
        assert!(pays_after(8 * MIB, 0).is_some_and(|forks| forks < 100));
    }

    #[test]
    fn prices_are_learned_from_freezes_that_were_big_enough_to_tell() {
        let memory = Memory::to_freeze(512 * MIB, 0, 512 * MIB);
        let mut prices = Prices::new(4096);
        let before = prices.worth(memory);
        prices.froze(4 * MIB, 1);
        prices.gained(TELLING_GAIN - 1, 1);
        prices.gathered(4 * MIB, u64::MAX);
        assert_eq!(prices.worth(memory), before, "too little");
        assert!(prices.is_better_huge(100));
        // 40 ms a piece, of which a fork is spared 33 µs.
        prices.gathered(512 * MIB, 256 * 40_000_000);
        assert!(!prices.is_better_huge(100));
        prices.gathered(512 * MIB, 256 * 400_000);
        assert!(prices.is_better_huge(100));
        prices.gathers_nothing();
        assert_eq!(prices.gathering, Some(400_000), "it is below the first guess");
        prices.froze(512 * MIB, 256_000_000);
        assert_eq!(prices.copying(512 * MIB) / 1_000_000, 255);
        let expected = u64::try_from(before.per_fork.as_nanos()).expect("small");
        prices.gained(expected, expected / 2);
        let halved = prices.worth(memory).per_fork;
        assert!(halved > before.per_fork / 3 && halved < before.per_fork * 2 / 3, "{halved:?} of {before:?}");
        for (gained, least, most) in [(0, 5, 3), (u64::MAX, 3, 5)] {
            let mut prices = Prices::new(4096);
            prices.gained(expected, gained);
            let learned = prices.worth(memory).per_fork;
            assert!(learned * least > before.per_fork && learned < before.per_fork * most, "{learned:?}");
        }
    }
}
