//! The table of the sites that trap now, for handlers: read without locks, never freed.
//!
//! # Layout
//!
//! Words of 64 bits that the machine provides (perhaps memory shared by several processes):
//!
//! | words | what |
//! |---|---|
//! | 0 | *stamp*: odd while a table is published; changes with every publication and withdrawal |
//! | 1 | number of entries |
//! | 4.. | entries of four words, sorted by the first: address, target, otherwise, condition |
//!
//! # States
//!
//! ```text
//!   withdrawn (stamp even) ── publish ──► published (stamp odd) ── withdraw ──► withdrawn
//! ```
//!
//! Entries are written only while withdrawn, by the one batch that is under way. A published table never changes.
//!
//! # Why there is nothing to free
//!
//! A handler may be stopped anywhere for any time (by the scheduler, by a debugger), so a batch must neither wait for
//! it nor free or rewrite what it reads *as valid*. Reference counts would make the batch wait or leak. Here the words
//! stay in place, and a handler trusts an entry only if the stamp is still that of the publication under which it
//! searched. An overtaken handler searches again; each time that happens a batch has made progress.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};

use core::sync::atomic::Ordering;

use super::site::Action;

const STAMP: usize = 0;
const COUNT: usize = 1;
const FIRST_ENTRY: usize = 4;
const ENTRY: usize = 4;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Table<'m> {
    words: &'m [AtomicU64],
}

impl<'m> Table<'m> {
    /// Creates a table in `words`, which are zero, or already a table.
    pub fn new(words: &'m [AtomicU64]) -> Self {
        assert!(words.len() >= FIRST_ENTRY, "no room for a table's head");
        Self { words }
    }

    /// Returns how many words `sites` sites need.
    pub const fn words_for(sites: usize) -> usize {
        FIRST_ENTRY + sites * ENTRY
    }

    /// Returns how many sites fit.
    pub fn capacity(&self) -> usize {
        (self.words.len() - FIRST_ENTRY) / ENTRY
    }

    /// Publishes entries, sorted by address, at most [`capacity`](Self::capacity). Called with the table withdrawn, by
    /// one thread at a time.
    pub fn publish(&self, entries: impl Iterator<Item = (usize, Action)>) {
        // Relaxed: only batches change it, and they exclude each other.
        let stamp = self.words[STAMP].load(Ordering::Relaxed);
        debug_assert!(stamp.is_multiple_of(2), "published twice");
        // Partner: the fence in `find`. Forbids that a handler reads an entry of this publication and afterwards still
        // the stamp of the last one.
        fence(Ordering::Release);
        let mut count = 0;
        for ((address, action), entry) in entries.zip(self.words[FIRST_ENTRY..].chunks_exact(ENTRY)) {
            let values = [address, action.target, action.otherwise, usize::from(action.condition)];
            for (word, value) in entry.iter().zip(values) {
                // Relaxed, here and below: ordered by the stamp.
                word.store(value as u64, Ordering::Relaxed);
            }
            count += 1;
        }
        self.words[COUNT].store(count, Ordering::Relaxed);
        // SeqCst, partner: the loads in `find` and `stamp`. Forbids a handler that sees the stamp but older entries,
        // and one that sees the trap (stored after this) but not the stamp.
        self.words[STAMP].store(stamp + 1, Ordering::SeqCst);
    }

    /// Withdraws the entries.
    pub fn withdraw(&self) {
        let stamp = self.words[STAMP].load(Ordering::Relaxed);
        debug_assert!(!stamp.is_multiple_of(2), "not published");
        // SeqCst, partner: the loads in `find` and `stamp`. Forbids that a handler finds the table withdrawn and
        // afterwards, in the code, the trap that this batch removed earlier.
        self.words[STAMP].store(stamp + 1, Ordering::SeqCst);
    }

    /// Returns the stamp, which changes with every publication and withdrawal.
    pub fn stamp(&self) -> u64 {
        // SeqCst, partner: the stores in `publish` and `withdraw`.
        self.words[STAMP].load(Ordering::SeqCst)
    }

    /// Returns what to do at `address`, if it is a site of the batch under way.
    pub fn find(&self, address: usize) -> Option<Action> {
        loop {
            let stamp = self.stamp();
            if stamp.is_multiple_of(2) {
                return None;
            }
            let found = self.look_up(address);
            // Partner: the fence in `publish`. Forbids that the entry read belongs to a later publication than the
            // stamp below.
            fence(Ordering::Acquire);
            // Relaxed: ordered by the fence.
            if self.words[STAMP].load(Ordering::Relaxed) == stamp {
                return found;
            }
        }
    }

    /// Returns whether `address` was a site of the last batch published here, withdrawn or not. Only a guess if a batch
    /// begins at the same time.
    pub fn knew(&self, address: usize) -> bool {
        self.look_up(address).is_some()
    }

    fn look_up(&self, address: usize) -> Option<Action> {
        // Relaxed, here and below: the caller verifies the stamp. Values of a later publication may be mixed in, which
        // is harmless: they are numbers, and the count is bounded.
        let word = |index: usize| self.words[index].load(Ordering::Relaxed) as usize;
        let at = |entry: usize, field: usize| word(FIRST_ENTRY + entry * ENTRY + field);
        let count = word(COUNT).min(self.capacity());
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match at(middle, 0).cmp(&address) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => {
                    return Some(Action {
                        target: at(middle, 1),
                        otherwise: at(middle, 2),
                        condition: at(middle, 3) as u8,
                    });
                }
            }
        }
        None
    }
}

/// What a handler does about a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Continue as the action says.
    Act(Action),
    /// Run the instruction again: the trap is gone.
    Retry,
    /// The trap is not ours.
    Foreign,
}

/// Decides about a trap at `address`. `tables` are those that may know it, in any order; `is_trap` reads the code at
/// `address`.
///
/// A site's trap is in memory only while a table that names it is published. So if the trap is in memory, and no stamp
/// has changed since before the tables were searched, it is foreign.
pub fn judge<'m>(
    address: usize,
    tables: impl Iterator<Item = Table<'m>> + Clone,
    is_trap: impl Fn(usize) -> bool,
) -> Verdict {
    // Sums of growing numbers are equal only if all the numbers are. Wrapping around takes 2^63 batches.
    let stamps = || tables.clone().fold(0_u64, |sum, table| sum.wrapping_add(table.stamp()));
    loop {
        let before = stamps();
        if let Some(action) = tables.clone().find_map(|table| table.find(address)) {
            return Verdict::Act(action);
        }
        if !is_trap(address) {
            return Verdict::Retry;
        }
        if stamps() == before {
            return Verdict::Foreign;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(sites: usize) -> Vec<AtomicU64> {
        (0..Table::words_for(sites)).map(|_| AtomicU64::new(0)).collect()
    }

    fn action(target: usize) -> Action {
        Action { target, otherwise: target + 1, condition: 3 }
    }

    #[test]
    fn every_site_is_found_and_nothing_else() {
        for count in [0, 1, 2, 3, 100] {
            let words = words(count);
            let table = Table::new(&words);
            assert_eq!(table.capacity(), count);
            assert_eq!(table.find(10), None);
            table.publish((0..count).map(|index| (10 + 2 * index, action(index))));
            for index in 0..count {
                assert_eq!(table.find(10 + 2 * index), Some(action(index)));
                assert_eq!(table.find(11 + 2 * index), None);
            }
            assert_eq!(table.find(9), None);
            table.withdraw();
            assert_eq!(table.find(10), None);
        }
    }

    #[test]
    fn a_trap_that_is_gone_is_retried_and_a_foreign_one_is_not_ours() {
        let (private, shared) = (words(1), words(1));
        let tables = [Table::new(&private), Table::new(&shared)];
        let judge = |address, trap: bool| judge(address, tables.into_iter(), |_| trap);
        assert_eq!(judge(8, true), Verdict::Foreign);
        assert_eq!(judge(8, false), Verdict::Retry);
        tables[1].publish([(8, action(1))].into_iter());
        assert_eq!(judge(8, true), Verdict::Act(action(1)));
        assert_eq!(judge(9, true), Verdict::Foreign);
    }

    /// A batch that begins between the search and the look at the code must be noticed.
    #[test]
    fn a_batch_that_begins_meanwhile_is_seen() {
        let words = words(1);
        let table = Table::new(&words);
        let begun = std::cell::Cell::new(false);
        let is_trap = |_| {
            if !begun.replace(true) {
                table.publish([(8, action(1))].into_iter());
            }
            true
        };
        assert_eq!(judge(8, [table].into_iter(), is_trap), Verdict::Act(action(1)));
    }
}
