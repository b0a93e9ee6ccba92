//! Tending, between forks: whether, how much and where to put hot memory into huge pages, or to freeze it again, so
//! that the next fork is short.
//!
//! Rounds repair by cost: forks pay for a repair by what they lose. But whoever waits for the program waits for its
//! forks, not for what it does when it is idle. So a freeze in slices does more: if a fork takes longer than a slice
//! may, slices follow at the program's waits, for a twentieth of the time between two forks. As long as they find
//! something to do, they come after the next fork as well: what a save has split is whole again before the next one.
//!
//! A repair that is due makes way for slices: a fork takes a slice in its place, until a pass over the memory finds
//! little to do compared with the debt, or finds a child in the way. Then what is new is planned, and only what slices
//! cannot do is left to a round.
//!
//! Relaxed everywhere: each figure is read on its own, and publishes nothing. [`Tending`] says who may write to which.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use palimpsest_sys::pages::pagemap::ScanWay;

use super::sight::Sight;
use crate::clock::nanos;
use crate::options::Pause;

/// Slices get one of this many parts of the time between forks.
const SHARE: u64 = 20;
/// Most pieces for one call.
const MOST_AT_ONCE: usize = 16;
/// Most pieces for one errand of a deputy. If the program forks meanwhile, the deputy copies the rest of them beside
/// the child, which takes memory that a plain fork does not. Fewer, if they take it long: it holds the lock of all
/// mappings while it copies one, and takes it again before a thread that waits for it is awake. So a fork, or any other
/// change of mappings, waits for a whole errand.
const MOST: usize = 8;
/// How many times its budget a slice may take in wall-clock time before it asks for another piece.
const MOST_ON_THE_WALL: u32 = 4;
/// Slices have done little in a pass if their work is worth at most one part in this many of the debt.
const LITTLE: u64 = 8;
/// Forks that follow each other within so many nanoseconds may be booked together.
const SHORTLY: u64 = 100_000_000;
/// What a piece is first expected to take, in nanoseconds.
const CAUTIOUS: u64 = 1_000_000;

/// The figures. Zeroed memory is a valid one.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `forked` | a fork or the end of a freeze, under the lock of [`Shared`](super::registry::Shared) | the next fork |
/// | `piece`, `waits`, `mappings`, `errand`, `forks_at_errand` | a slice or a round, under the lock | the same |
/// | `forks` | a fork, before and behind it; whoever first leaves huge pages of which the kernel does not tell | slices and rounds |
/// | `unbooked`, `beside` | whoever takes a deputy's answer | the next slice that sends deputies |
/// | `left`, `spent`, `worked`, `worked_in_pass`, `is_old`, `at` | a fork under the lock; any thread after a slice; a child in its own copy | threads that fork or are about to wait, and slices |
///
/// Fields that are written without the lock are hints: they tell whether and where to look next, and what is found
/// there is checked under the lock. If two threads write at once, one value is lost, and a piece waits for the next
/// fork.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    /// Nanoseconds left until the next fork; 0 if there is nothing to do.
    left: AtomicU64,
    /// Pieces made or mended since the last fork; and in this pass.
    worked: AtomicU64,
    worked_in_pass: AtomicU64,
    /// 1 if this pass began before the last fork.
    is_old: AtomicUsize,
    /// 1 if slices can do no more, so that a due repair, or a plan in its place, is made.
    spent: AtomicUsize,
    /// 1 if this pass found what a child still maps.
    waits: AtomicUsize,
    /// Where this pass goes on.
    at: AtomicUsize,
    /// When the last fork was, on the clock of [`WallMoment`](crate::clock::WallMoment).
    forked: AtomicU64,
    /// What a piece takes.
    piece: AtomicU64,
    /// What a piece takes a deputy.
    beside: AtomicU64,
    /// Mappings that this pass may add.
    mappings: AtomicUsize,
    /// Split pieces that the last deputy was sent for; and `forks` at that time.
    errand: AtomicUsize,
    forks_at_errand: AtomicU64,
    /// A number that grows with each fork; 0 as long as nobody needs it.
    forks: AtomicU64,
    /// Deputies in a row that were not at work in time.
    late: AtomicUsize,
    /// Processor time of deputies that no slice has accounted for.
    unbooked: AtomicU64,
}

/// How often the time is doubled for which slices are put off, if deputies are not at work in time.
const MOST_LATE: usize = 6;

/// Within less no deputy is at work.
const LEAST_PATIENCE: Duration = Duration::from_micros(500);

/// How a slice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tended {
    /// It came to here, and there is more.
    More {
        /// Where to go on.
        at: usize,
    },
    /// A child still maps what needs work.
    Later {
        /// Where to go on.
        at: usize,
    },
    /// It came to the end.
    Done,
}

/// Whether a slice that has done something ends now, after `elapsed` nanoseconds of wall-clock time: a call may sleep
/// until each CPU has done its part.
pub(super) fn is_late(elapsed: u64, budget: Duration) -> bool {
    elapsed > nanos(budget).saturating_mul(u64::from(MOST_ON_THE_WALL))
}

impl Tending {
    /// Begins to count time, since a freeze ended at `now`.
    pub(crate) fn begin(&self, now: u64) {
        self.forked.store(now, Ordering::Relaxed);
    }

    /// Notes a fork at `now` that took `excess` more than a clean one. `huge` is how many huge pages we made.
    pub(crate) fn forked(&self, excess: u64, huge: usize, pause: Pause, now: u64) {
        let since = now.saturating_sub(self.forked.swap(now, Ordering::Relaxed));
        let has_worked = self.worked.swap(0, Ordering::Relaxed) > 0;
        let is_long = match pause {
            // Whoever freezes in one go does not mind pauses.
            Pause::AtOnce => None,
            // The child may split huge pages. Looking costs little if there is time for more than a slice.
            Pause::Within(budget) => Some(excess > nanos(budget) || huge > 0 && since / SHARE > nanos(budget)),
        };
        // After the first fork nobody knows when the next one is, unless a freeze in slices ended some time before.
        let is_known = since < now;
        let is_wanted = is_known && is_long.is_some_and(|is_long| is_long || has_worked);
        self.left.store(if is_wanted { since / SHARE } else { 0 }, Ordering::Relaxed);
        // A pass goes on where it was, or a big memory would never be seen to its end; another pass looks at what is
        // behind it.
        self.is_old.store(usize::from(self.at() != 0), Ordering::Relaxed);
    }

    /// Returns how long before `now` the last fork was of which the ledger has learned, in nanoseconds.
    pub(crate) fn since_fork(&self, now: u64) -> u64 {
        now.saturating_sub(self.forked.load(Ordering::Relaxed))
    }

    /// Whether the ledger has learned of a fork shortly before `now`.
    pub(crate) fn has_just_forked(&self, now: u64) -> bool {
        self.since_fork(now) < SHORTLY
    }

    /// Whether there is something to do.
    pub(crate) fn is_wanted(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Does nothing more until the next fork, which makes a due repair.
    #[inline]
    pub(crate) fn give_up(&self) {
        // Written only if it differs: in a child the page would be copied.
        if self.left.load(Ordering::Relaxed) != 0 {
            self.left.store(0, Ordering::Relaxed);
            self.spent.store(1, Ordering::Relaxed);
        }
    }

    /// Lets a slice take the place of a due repair, at a fork, if it may; returns whether. If not, the next due repair
    /// may make way again.
    pub(crate) fn make_way(&self, pause: Pause) -> bool {
        let Pause::Within(budget) = pause else { return false };
        if self.spent.swap(0, Ordering::Relaxed) != 0 {
            return false;
        }
        self.left.fetch_max(nanos(budget).max(1), Ordering::Relaxed);
        true
    }

    /// Returns where to go on.
    pub(crate) fn at(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// Notes that this pass found what a child still maps.
    pub(super) fn note_child(&self) {
        self.waits.store(1, Ordering::Relaxed);
    }

    /// Returns what the end of a pass comes to.
    pub(super) fn end_of_pass(&self) -> Tended {
        if self.waits.swap(0, Ordering::Relaxed) != 0 { Tended::Later { at: 0 } } else { Tended::Done }
    }

    /// Returns how somebody who looks in this way learns which pieces are huge.
    pub(super) fn sight(&self, way: ScanWay) -> Sight {
        match way {
            ScanWay::Ioctl => Sight::Told,
            ScanWay::Entries => Sight::Remembered { forks: self.forks.load(Ordering::Relaxed) },
        }
    }

    /// Begins to count forks, since there are huge pages of which the kernel does not tell.
    pub(super) fn count_forks(&self) {
        self.forks.fetch_max(1, Ordering::Relaxed);
    }

    /// Whether forks are counted.
    pub(super) fn counts_forks(&self) -> bool {
        self.forks.load(Ordering::Relaxed) != 0
    }

    /// Notes that a fork is about to be made, or was: what is huge now may be split soon.
    #[inline]
    pub(crate) fn note_fork(&self) {
        // Written only where it is read.
        if self.counts_forks() {
            self.forks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that a deputy may be sent while there were so many forks. Returns how many there were when the last one
    /// was.
    pub(super) fn begin_errand(&self, forks: u64) -> u64 {
        self.forks_at_errand.swap(forks, Ordering::Relaxed)
    }

    /// Notes that a deputy was sent for `split` pieces that are split, for which the thread has slept: `waited`
    /// nanoseconds. That counts as work, but pays nothing yet.
    pub(super) fn sent(&self, split: usize, waited: u64) {
        self.worked.fetch_add(1, Ordering::Relaxed);
        self.late.store(0, Ordering::Relaxed);
        self.waited(split, waited);
    }

    /// Returns for how long to wait until a deputy is at work, where a slice may take `budget`, and has taken `elapsed`
    /// nanoseconds: what is left of it; after a deputy that was not in time twice as long, as far as a slice may take
    /// that. At least half a millisecond: in less, none is at work.
    pub(super) fn patience(&self, elapsed: u64, budget: Duration) -> Duration {
        let left = |budget: Duration| budget.saturating_sub(Duration::from_nanos(elapsed)).max(LEAST_PATIENCE);
        let doubled = left(budget).saturating_mul(1 << self.late.load(Ordering::Relaxed).min(MOST_LATE));
        doubled.min(left(budget.saturating_mul(MOST_ON_THE_WALL)))
    }

    /// Notes that a deputy was not at work in time. Returns for how long that counts: twice as long each time.
    pub(super) fn sent_in_vain(&self, split: usize, waited: u64) -> u64 {
        let before = self.late.fetch_add(1, Ordering::Relaxed);
        self.waited(split, waited);
        waited.saturating_mul(1 << before.min(MOST_LATE))
    }

    fn waited(&self, split: usize, waited: u64) {
        self.errand.store(split, Ordering::Relaxed);
        // Nobody else writes it meanwhile: the caller takes a slice.
        self.left.store(self.left.load(Ordering::Relaxed).saturating_sub(waited), Ordering::Relaxed);
    }

    /// Notes that a deputy has taken so many nanoseconds.
    pub(super) fn note_unbooked(&self, nanos: u64) {
        self.unbooked.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns what deputies have taken since the last call.
    pub(super) fn take_unbooked(&self) -> u64 {
        self.unbooked.swap(0, Ordering::Relaxed)
    }

    /// Forgets what deputies of this process's parent have taken. Written only where it differs: in a child the page
    /// would be copied.
    pub(super) fn forget_unbooked(&self) {
        if self.unbooked.load(Ordering::Relaxed) != 0 {
            self.unbooked.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the last deputy was not at work in time.
    pub(super) fn was_late(&self) -> bool {
        self.late.load(Ordering::Relaxed) > 0
    }

    /// Returns how many split pieces the last deputy was sent for.
    pub(super) fn errand(&self) -> usize {
        self.errand.load(Ordering::Relaxed)
    }

    /// Returns how many mappings may still be added.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings.load(Ordering::Relaxed)
    }

    /// Sets how many mappings may be added from now on.
    pub(crate) fn set_mappings(&self, mappings: usize) {
        self.mappings.store(mappings, Ordering::Relaxed);
    }

    /// Whether a piece fits into what is left of `budget` after `elapsed` nanoseconds and `worked` pieces. One is
    /// always done, or there would be no end.
    pub(super) fn fits(&self, worked: usize, elapsed: u64, budget: Duration) -> bool {
        worked == 0 || elapsed.saturating_add(self.price()) <= nanos(budget)
    }

    fn price(&self) -> u64 {
        match self.piece.load(Ordering::Relaxed) {
            0 => CAUTIOUS,
            known => known,
        }
    }

    /// Returns how many pieces fit into one call, at least one: by their price, what is left of the slice.
    pub(super) fn room(&self, elapsed: u64, budget: Duration) -> usize {
        let left = nanos(budget).saturating_sub(elapsed);
        usize::try_from(left / self.price().max(1)).unwrap_or(usize::MAX).clamp(1, MOST_AT_ONCE)
    }

    /// Returns how many pieces a deputy is sent for, at least one: as many as take it what a slice may, twice.
    pub(super) fn room_of_errand(&self, budget: Duration) -> usize {
        let price = match self.beside.load(Ordering::Relaxed) {
            0 => CAUTIOUS,
            known => known,
        };
        usize::try_from(nanos(budget).saturating_mul(2) / price).unwrap_or(MOST).clamp(1, MOST)
    }

    /// Notes that a piece took `taken` CPU nanoseconds.
    pub(super) fn took_piece(&self, taken: u64) {
        learn(&self.piece, taken);
    }

    /// Notes that a deputy took `taken` CPU nanoseconds for these pieces; 0 tells nothing: somebody else has waited for
    /// it.
    pub(super) fn took_errand(&self, taken: u64, pieces: usize) {
        if taken > 0 {
            learn(&self.beside, taken / pieces.max(1) as u64);
        }
    }

    /// Notes that a slice took `taken` CPU nanoseconds and did `worked` pieces. `owed` is the debt that would buy a
    /// repair.
    pub(crate) fn took(&self, (taken, owed): (u64, u64), worked: usize, tended: Tended) {
        self.worked.fetch_add(worked as u64, Ordering::Relaxed);
        let in_pass = self.worked_in_pass.fetch_add(worked as u64, Ordering::Relaxed) + worked as u64;
        let left = self.left.load(Ordering::Relaxed).saturating_sub(taken);
        // A program that keeps splitting a few pieces must not keep a repair away for ever.
        let is_little = |pieces: u64| pieces.saturating_mul(self.price()) <= owed / LITTLE;
        let (is_spent, left, at) = match tended {
            Tended::More { at } => (false, left, at),
            Tended::Later { at } => (is_little(worked as u64), left, at),
            Tended::Done => {
                self.worked_in_pass.store(0, Ordering::Relaxed);
                let is_old = self.is_old.swap(0, Ordering::Relaxed) != 0;
                (is_little(in_pass), if is_old { left } else { 0 }, 0)
            }
        };
        self.spent.store(usize::from(is_spent), Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
    }

    /// Does the same where only the time tells whether these pieces were split. Slices go on for them, but keep no
    /// repair or new plan away: on a slow machine it would be for ever.
    pub(crate) fn took_perhaps(&self, taken_and_owed: (u64, u64), worked: usize, tended: Tended) {
        self.worked.fetch_add(worked as u64, Ordering::Relaxed);
        self.took(taken_and_owed, 0, tended);
    }
}

/// Slower is believed at once, quicker bit by bit.
fn learn(price: &AtomicU64, taken: u64) {
    let known = price.load(Ordering::Relaxed);
    price.store(if taken > known { taken } else { (known * 7 + taken) / 8 }, Ordering::Relaxed);
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
        tending.forked(LONG, 0, PAUSE, 10 * SECOND);
        assert!(!tending.is_wanted(), "the first fork");
        tending.forked(LONG, 0, PAUSE, 12 * SECOND);
        assert!(tending.is_wanted());
        // Slices of 2 ms for a twentieth of two seconds.
        for slice in 0..50 {
            assert!(tending.is_wanted(), "slice {slice}");
            tending.took((2_000_000, 0), 3, Tended::More { at: slice });
            assert_eq!(tending.at(), slice);
        }
        assert!(!tending.is_wanted());
        // A short fork, but there was work before it: not every other fork may find what each child splits again.
        tending.forked(0, 0, PAUSE, 14 * SECOND);
        assert_eq!((tending.is_wanted(), tending.at()), (true, 49), "it goes on where it was");
        tending.took((100_000, 0), 0, Tended::Done);
        assert_eq!((tending.is_wanted(), tending.at()), (true, 0), "and looks at what is behind");
        tending.took((100_000, 0), 0, Tended::Done);
        assert!(!tending.is_wanted());
        tending.forked(0, 0, PAUSE, 16 * SECOND);
        assert!(!tending.is_wanted(), "nothing was found to do");
        tending.forked(0, 1, PAUSE, 17 * SECOND);
        assert!(tending.is_wanted(), "the child may split huge pages");
        tending.forked(0, 1, PAUSE, 17 * SECOND + SECOND / 50);
        assert!(!tending.is_wanted(), "there is no time for a slice between such forks");
        tending.forked(LONG, 1, Pause::AtOnce, 18 * SECOND);
        assert!(!tending.is_wanted());
    }

    /// Fails on: a pass while a child lives, after which what it has split is never mended.
    #[test]
    fn a_pass_that_has_found_a_child_is_not_the_last() {
        let tending = Tending::default();
        (1..3).for_each(|second| tending.forked(LONG, 0, PAUSE, second * SECOND));
        tending.note_child();
        let end = tending.end_of_pass();
        assert_eq!(end, Tended::Later { at: 0 });
        tending.took((1000, 0), 0, end);
        assert!(tending.is_wanted());
        let first = Tending::default();
        first.begin(SECOND);
        first.forked(0, 1, PAUSE, 2 * SECOND);
        assert!(first.is_wanted(), "the first fork since a freeze may split huge pages, too");
        assert_eq!(tending.end_of_pass(), Tended::Done);
        tending.took((1000, 0), 0, Tended::Done);
        assert!(!tending.is_wanted());
    }

    /// Fails on: a repair that never comes; a repair that comes at once.
    #[test]
    fn a_repair_that_is_due_makes_way_as_long_as_slices_find_something_to_do() {
        let tending = Tending::default();
        assert!(!tending.make_way(Pause::AtOnce));
        for tended in [Tended::More { at: 7 }, Tended::More { at: 9 }, Tended::Later { at: 3 }, Tended::Done] {
            assert!(tending.make_way(PAUSE) && tending.is_wanted(), "{tended:?}");
            tending.took((2_000_000, 0), 1, tended);
        }
        for (worked, tended) in [(0, Tended::Later { at: 3 }), (0, Tended::Done)] {
            tending.forked(0, 0, PAUSE, SECOND);
            assert!(tending.make_way(PAUSE));
            tending.took((1000, 0), worked, tended);
            assert!(!tending.make_way(PAUSE), "{tended:?}");
        }
        assert!(tending.make_way(PAUSE), "anew after the repair");
        // A slice was refused.
        tending.give_up();
        assert!(!tending.make_way(PAUSE));
    }

    /// Fails on: a debt that grows for ever because the program splits one huge page in each pass.
    #[test]
    fn a_repair_makes_no_way_for_slices_that_do_little_beside_what_is_owed() {
        let tending = Tending::default();
        for (pieces, owed, makes_way) in [(1, 100 * CAUTIOUS, false), (20, 100 * CAUTIOUS, true), (1, 0, true)] {
            for tended in [Tended::Done, Tended::Later { at: 0 }] {
                assert!(tending.make_way(PAUSE));
                tending.took((CAUTIOUS, owed), pieces, tended);
                assert_eq!(tending.make_way(PAUSE), makes_way, "{pieces} pieces, {owed} owed, {tended:?}");
            }
        }
    }

    /// Fails on: a due repair that waits for slices which ask for whole pieces for ever; slices that end although they
    /// mend.
    #[test]
    fn what_was_perhaps_mended_keeps_no_repair_away() {
        let tending = Tending::default();
        (1..3).for_each(|second| tending.forked(LONG, 0, PAUSE, second * SECOND));
        for tended in [Tended::Done, Tended::Later { at: 0 }] {
            assert!(tending.make_way(PAUSE));
            tending.took_perhaps((CAUTIOUS, 0), 9, tended);
            assert!(!tending.make_way(PAUSE), "{tended:?}");
        }
        tending.forked(0, 0, PAUSE, 3 * SECOND);
        assert!(tending.is_wanted());
    }

    /// Fails on: waits that cost nothing; a busy machine on which each slice waits in vain.
    #[test]
    fn who_waits_for_deputies_in_vain_waits_longer_and_less_and_less_often() {
        let tending = Tending::default();
        (1..3).for_each(|second| tending.forked(LONG, 0, PAUSE, second * SECOND));
        assert!(!tending.was_late());
        let patience_after =
            |elapsed| [100, 2000].map(|micros| tending.patience(elapsed, Duration::from_micros(micros)).as_micros());
        let patience = || patience_after(0);
        assert_eq!(patience(), [500, 2000], "no longer than a slice may take");
        assert_eq!(patience_after(300_000), [500, 1700], "what it has taken counts");
        assert_eq!(patience_after(1_900_000), [500, 500], "less would be in vain");
        assert_eq!([0; 3].map(|split| tending.sent_in_vain(split, 1000)), [1000, 2000, 4000]);
        assert!(tending.was_late());
        assert_eq!(patience(), [500, 8000]);
        assert_eq!(patience_after(1_900_000), [500, 4000]);
        let most = (0..100).map(|_| tending.sent_in_vain(0, 1000)).max();
        assert_eq!(most, Some(1000 << MOST_LATE));
        assert_eq!(patience(), [500, 8000], "a program stands still for no longer");
        assert_eq!(patience_after(1_900_000), [500, 6100]);
        tending.sent(7, 1000);
        assert_eq!((tending.was_late(), tending.errand(), tending.is_wanted()), (false, 7, true));
        assert_eq!(patience(), [500, 2000]);
        assert_eq!(tending.sent_in_vain(0, SECOND), SECOND);
        assert!(!tending.is_wanted(), "it has waited for longer than slices have");
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
        assert_eq!((tending.room(0, budget), tending.room(0, Duration::ZERO)), (6, 1));
        assert_eq!(tending.room(9_000_000, budget), 1);
    }

    /// Fails on: a deputy that holds the lock of all mappings for as long as eight pieces take on a slow machine.
    #[test]
    fn a_deputy_is_sent_for_as_many_pieces_as_take_it_two_slices() {
        let tending = Tending::default();
        let budget = Duration::from_millis(2);
        let room = |budget| tending.room_of_errand(budget);
        assert_eq!(room(budget), 4, "cautious");
        let took = |taken: u64, pieces: usize| tending.took_errand(taken, pieces);
        took(2 * 3_500_000, 2);
        assert_eq!((room(budget), room(Duration::ZERO)), (1, 1));
        (0..60).for_each(|_| took(0, 4));
        assert_eq!(room(budget), 1, "nobody knows what it took");
        (0..60).for_each(|_| took(4 * 300_000, 4));
        assert_eq!(room(budget), MOST);
        assert_eq!(tending.room(0, budget), 2, "the thread's own pieces are another matter");
    }
}
