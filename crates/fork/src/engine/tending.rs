//! Between forks: whether, how much and where hot memory is put into huge pages, so that the next fork is short.
//!
//! Rounds repair by cost: a repair is bought when forks have lost as much as it takes. But who waits for the program
//! waits for its forks, and not for what it does when it has nothing else to do. So with a freeze in slices there is
//! more: if a fork takes longer than a slice may, slices go on after it, at the program's waits, for a twentieth of the
//! time that lies between two forks. As long as they find something to do, they come after the next fork as well: what
//! a save has split is whole again before the next one.
//!
//! Relaxed everywhere: each figure is read for itself, and nothing is published with it. Written by who holds the lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::nanos;
use crate::options::Pause;

/// Of how much time between forks slices get one part.
const SHARE: u64 = 20;
/// What a piece is expected to take at first, in nanoseconds.
const CAUTIOUS: u64 = 1_000_000;

/// The figures. Zeroed memory is a valid one.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    /// Nanoseconds that are left until the next fork; 0 for nothing to do.
    left: AtomicU64,
    /// Pieces that were made or mended since the last fork.
    worked: AtomicU64,
    /// Where this pass over the memory goes on.
    at: AtomicUsize,
    /// When the last fork was, on the clock of [`Instant`](crate::clock::Instant).
    forked: AtomicU64,
    /// What a piece takes.
    piece: AtomicU64,
    /// Mappings that may be used up in this pass.
    mappings: AtomicUsize,
}

/// What a slice has led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tended {
    /// It has come to here, and there is more.
    More {
        /// Where to go on.
        at: usize,
    },
    /// A child still shows what is to be worked on.
    Later {
        /// Where to go on.
        at: usize,
    },
    /// It has come to the end.
    Done,
}

impl Tending {
    /// There was a fork at `now`, which took `excess` more than a clean one.
    pub(crate) fn forked(&self, excess: u64, pause: Pause, now: u64) {
        let since = now.saturating_sub(self.forked.swap(now, Ordering::Relaxed));
        let has_worked = self.worked.swap(0, Ordering::Relaxed) > 0;
        let is_long = match pause {
            // Whoever freezes at once counts pauses for nothing.
            Pause::AtOnce => None,
            Pause::Within(budget) => Some(excess > nanos(budget)),
        };
        // After the first fork nobody knows when the next one is.
        let is_known = since < now;
        let is_wanted = is_known && is_long.is_some_and(|is_long| is_long || has_worked);
        self.left.store(if is_wanted { since / SHARE } else { 0 }, Ordering::Relaxed);
        self.at.store(0, Ordering::Relaxed);
    }

    /// Whether there is something to do.
    pub(crate) fn is_wanted(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Nothing is done until the next fork.
    pub(crate) fn give_up(&self) {
        // Written only if it differs: in a child the page would be copied.
        if self.left.load(Ordering::Relaxed) != 0 {
            self.left.store(0, Ordering::Relaxed);
        }
    }

    /// Where to go on.
    pub(crate) fn at(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// Mappings that may still be used up.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings.load(Ordering::Relaxed)
    }

    /// So many mappings may be used up from now on.
    pub(crate) fn set_mappings(&self, mappings: usize) {
        self.mappings.store(mappings, Ordering::Relaxed);
    }

    /// Whether a piece fits into what is left of `budget` after `elapsed` nanoseconds, in which `worked` pieces were
    /// done. One is done in any case, or there would be no end.
    pub(super) fn fits(&self, worked: usize, elapsed: u64, budget: Duration) -> bool {
        let piece = match self.piece.load(Ordering::Relaxed) {
            0 => CAUTIOUS,
            known => known,
        };
        worked == 0 || elapsed.saturating_add(piece) <= nanos(budget)
    }

    /// A piece took so many nanoseconds. Slower is believed at once, and quicker bit by bit.
    pub(super) fn took_piece(&self, taken: u64) {
        let known = self.piece.load(Ordering::Relaxed);
        self.piece.store(if taken > known { taken } else { (known * 7 + taken) / 8 }, Ordering::Relaxed);
    }

    /// A slice took so many nanoseconds, and did so many pieces.
    pub(crate) fn took(&self, taken: u64, worked: usize, tended: Tended) {
        self.worked.fetch_add(worked as u64, Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed).saturating_sub(taken);
        let (left, at) = match tended {
            Tended::More { at } | Tended::Later { at } => (left, at),
            Tended::Done => (0, 0),
        };
        self.left.store(left, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Pause = Pause::Within(Duration::from_millis(2));
    const SECOND: u64 = 1_000_000_000;
    const LONG: u64 = 3_000_000;

    #[test]
    fn what_makes_forks_long_is_worked_on_for_a_twentieth_of_the_time_between_them() {
        let tending = Tending::default();
        tending.forked(LONG, PAUSE, 10 * SECOND);
        assert!(!tending.is_wanted(), "the first fork");
        tending.forked(LONG, PAUSE, 12 * SECOND);
        assert!(tending.is_wanted());
        // Slices of 2 ms for a twentieth of two seconds.
        for slice in 0..50 {
            assert!(tending.is_wanted(), "slice {slice}");
            tending.took(2_000_000, 3, Tended::More { at: slice });
            assert_eq!(tending.at(), slice);
        }
        assert!(!tending.is_wanted());
        // A short fork, but there was work before it: what is split again by each child is not left for every other.
        tending.forked(0, PAUSE, 14 * SECOND);
        assert_eq!((tending.is_wanted(), tending.at()), (true, 0));
        tending.took(100_000, 0, Tended::Done);
        assert!(!tending.is_wanted());
        tending.forked(0, PAUSE, 16 * SECOND);
        assert!(!tending.is_wanted(), "nothing was found to do");
        tending.forked(LONG, Pause::AtOnce, 18 * SECOND);
        assert!(!tending.is_wanted());
    }

    #[test]
    fn a_slice_does_one_piece_and_no_more_than_fit() {
        let tending = Tending::default();
        let budget = Duration::from_millis(2);
        assert!(tending.fits(0, SECOND, Duration::ZERO), "one at least");
        assert!(tending.fits(1, 1_000_000, budget) && !tending.fits(1, 1_000_001, budget), "cautious");
        tending.took_piece(5_000_000);
        assert!(!tending.fits(1, 0, budget), "a slow machine is believed at once");
        (0..60).for_each(|_| tending.took_piece(300_000));
        assert!(tending.fits(4, 1_600_000, budget));
    }
}
