//! How far a freeze in slices has come: figures that anybody may read at any time.
//!
//! Relaxed everywhere: each is read on its own, and publishes nothing. [`Gauges`] says who may write to which.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::{WallMoment, nanos};
use crate::options::Pause;

/// A program that is not idle keeps all but one of this many parts of its time: slices take at most a fifth.
const SHARE: u64 = 5;

/// What looking at the process before a slice may take, in CPU nanoseconds, however short the pause.
const SHORT_LOOK: u64 = 1_000_000;

/// After this many long looks in a row, others are expected to be long, too.
const LONG_LOOKS: usize = 4;

/// For how long nobody looks at a wait after so many; twice as long after each further one, up to more than an hour.
const REST: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: usize = 12;

/// Whether a look takes longer than a pause may.
pub(crate) fn is_long(taken: u64, pause: Pause) -> bool {
    match pause {
        Pause::AtOnce => false,
        Pause::Within(budget) => taken > nanos(budget).max(SHORT_LOOK),
    }
}

/// How far a freeze in slices has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Progress {
    /// Whether anything is left to do.
    pub stage: Stage,
    /// Bytes that were populated when the freeze was planned, and will be frozen.
    pub planned_bytes: usize,
    /// Bytes frozen so far.
    pub frozen_bytes: usize,
    /// Bytes put into huge pages so far instead, since that pays sooner ([`Pages::Gather`](crate::Pages::Gather)).
    pub gathered_bytes: usize,
    /// Slices so far.
    pub slices: u64,
    /// The longest slice: how long the process was held up at most.
    pub longest: Duration,
    /// All slices together.
    pub taken: Duration,
    /// Processor time of [deputies](crate::Errands::Deputy), while the process went on.
    pub beside: Duration,
    /// The time of planning, before the first slice: the mappings are listed, for which the kernel looks at each page
    /// once.
    pub looked: Duration,
}

/// Whether anything is left to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Stage {
    /// There was no freeze in slices.
    #[default]
    None,
    /// It is under way.
    UnderWay,
    /// It is done.
    Done,
    /// It ended early; what is frozen is right all the same.
    Ended,
}

/// How a program has waited between two forks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waited {
    /// It has not, as far as this library is told.
    Not,
    /// It has, but there was no slice then that asked for huge pages or found all to be well.
    Asked,
    /// It has, and there was such a slice; or nothing is known yet.
    Gathered,
}

/// The figures. Zeroed memory is a valid one.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `stage`, `planned`, `frozen`, `gathered`, `slices`, `longest`, `taken`, `beside`, `looked` | the holder of the lock of [`Shared`](super::registry::Shared) | anybody |
/// | `not_before` | any thread after a slice; zeroed under the lock | threads that are about to wait |
/// | `waited` | any thread that is about to wait, or has taken a slice; cleared by the next fork | that fork |
/// | `long_looks`, `looks_again` | any thread that has looked; forks, under the lock | threads about to wait |
///
/// Fields that are written without the lock are hints: if two threads write at once, one value is lost, and a slice
/// comes sooner or later.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    stage: AtomicUsize,
    planned: AtomicUsize,
    frozen: AtomicUsize,
    gathered: AtomicUsize,
    slices: AtomicU64,
    longest: AtomicU64,
    taken: AtomicU64,
    beside: AtomicU64,
    looked: AtomicU64,
    /// The earliest time of the next slice at a wait, on the clock of [`WallMoment`](crate::clock::WallMoment), in
    /// nanoseconds.
    not_before: AtomicU64,
    /// How the program has waited since the last fork, as a [`Waited`].
    waited: AtomicUsize,
    /// How many looks before a slice in a row took longer than a pause may: each looks at every descriptor.
    long_looks: AtomicUsize,
    /// The earliest time of the next look at a wait, on the same clock; 0 if looks are short.
    looks_again: AtomicU64,
}

impl Gauges {
    /// Begins a freeze of `planned` bytes, after a look of `looked` nanoseconds.
    pub(crate) fn begin(&self, planned: usize, looked: u64) {
        self.frozen.store(0, Ordering::Relaxed);
        self.gathered(0);
        // Before its first fork, nothing is known of how the program waits.
        self.gathered_in_wait();
        for figure in [&self.slices, &self.longest, &self.taken, &self.beside, &self.not_before] {
            figure.store(0, Ordering::Relaxed);
        }
        self.planned.store(planned, Ordering::Relaxed);
        self.looked.store(looked, Ordering::Relaxed);
        self.set(Stage::UnderWay);
    }

    /// Adds a slice of `nanos`, after which `frozen` bytes are frozen.
    pub(crate) fn took(&self, nanos: u64, frozen: usize) {
        self.slices.fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
        self.taken.fetch_add(nanos, Ordering::Relaxed);
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Notes that `bytes` are planned now, after a look of `looked` nanoseconds.
    pub(crate) fn planned(&self, bytes: usize, looked: u64) {
        self.planned.store(bytes, Ordering::Relaxed);
        self.looked.store(looked, Ordering::Relaxed);
    }

    /// Notes that `bytes` are in huge pages now.
    pub(crate) fn gathered(&self, bytes: usize) {
        self.gathered.store(bytes, Ordering::Relaxed);
    }

    /// Notes that deputies have taken `nanos` so far.
    pub(crate) fn beside(&self, nanos: u64) {
        self.beside.store(nanos, Ordering::Relaxed);
    }

    /// Notes that something that took `taken` kept somebody waiting: leaves the process alone for some time, and for
    /// the rest of a longer time that was noted before.
    pub(crate) fn put_off(&self, taken: Duration) {
        let rest = nanos(taken).saturating_mul(SHARE - 1);
        self.not_before.fetch_max(WallMoment::now().nanos().saturating_add(rest), Ordering::Relaxed);
    }

    /// Notes that the program is about to wait, and could have a slice.
    pub(crate) fn asked_in_wait(&self) {
        // Written only if it differs, since every wait comes here.
        if self.waited.load(Ordering::Relaxed) == Waited::Not as usize {
            self.waited.store(Waited::Asked as usize, Ordering::Relaxed);
        }
    }

    /// Notes that a slice at a wait has asked for huge pages, or found all to be well.
    pub(crate) fn gathered_in_wait(&self) {
        self.waited.store(Waited::Gathered as usize, Ordering::Relaxed);
    }

    /// Called at a fork: takes how the program has waited since the last one.
    pub(crate) fn take_waited(&self) -> Waited {
        let waited = self.waited.swap(Waited::Not as usize, Ordering::Relaxed);
        let all = [Waited::Asked, Waited::Gathered];
        all.into_iter().find(|known| *known as usize == waited).unwrap_or(Waited::Not)
    }

    /// Notes that the look before a plan took `taken` CPU nanoseconds.
    pub(crate) fn checked_first(&self, taken: u64, pause: Pause) {
        self.looked_long(if is_long(taken, pause) { LONG_LOOKS } else { 0 });
    }

    /// Notes that the look before a slice took `taken` CPU nanoseconds. One long look may be a busy machine's fault.
    pub(crate) fn checked(&self, taken: u64, pause: Pause) {
        let before = self.long_looks.load(Ordering::Relaxed);
        self.looked_long(if is_long(taken, pause) { (before + 1).min(LONG_LOOKS + MOST_DOUBLINGS) } else { 0 });
    }

    /// Notes how many looks in a row were long.
    fn looked_long(&self, looks: usize) {
        let again = match looks.checked_sub(LONG_LOOKS) {
            Some(more) => WallMoment::now().nanos().saturating_add(nanos(REST) << more),
            None => 0,
        };
        self.long_looks.store(looks, Ordering::Relaxed);
        self.looks_again.store(again, Ordering::Relaxed);
    }

    /// Notes a fork without a slice before it: one look at a wait is tried again.
    pub(crate) fn forked(&self) {
        if self.is_for_forks() {
            self.looks_again.store(0, Ordering::Relaxed);
        }
    }

    /// Whether slices are taken at forks and hardly ever in between, since they would hold up a waiting program for too
    /// long.
    pub(crate) fn is_for_forks(&self) -> bool {
        self.long_looks.load(Ordering::Relaxed) >= LONG_LOOKS
    }

    /// Returns until when to leave the process alone; 0 if there is no need.
    pub(crate) fn rests_until(&self) -> u64 {
        self.not_before.load(Ordering::Relaxed).max(self.looks_again.load(Ordering::Relaxed))
    }

    /// Sets the stage.
    pub(crate) fn set(&self, stage: Stage) {
        self.stage.store(stage as usize, Ordering::Relaxed);
    }

    /// Whether something is left to do.
    pub(crate) fn is_under_way(&self) -> bool {
        self.stage.load(Ordering::Relaxed) == Stage::UnderWay as usize
    }

    /// Ends a freeze that is under way.
    pub(crate) fn give_up(&self) {
        if self.is_under_way() {
            self.set(Stage::Ended);
        }
    }

    /// Returns all figures.
    pub(crate) fn read(&self) -> Progress {
        let time = |figure: &AtomicU64| Duration::from_nanos(figure.load(Ordering::Relaxed));
        let stages = [Stage::None, Stage::UnderWay, Stage::Done, Stage::Ended];
        let stage = self.stage.load(Ordering::Relaxed);
        Progress {
            stage: stages.into_iter().find(|known| *known as usize == stage).unwrap_or_default(),
            planned_bytes: self.planned.load(Ordering::Relaxed),
            frozen_bytes: self.frozen.load(Ordering::Relaxed),
            gathered_bytes: self.gathered.load(Ordering::Relaxed),
            slices: self.slices.load(Ordering::Relaxed),
            longest: time(&self.longest),
            taken: time(&self.taken),
            beside: time(&self.beside),
            looked: time(&self.looked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Pause = Pause::Within(Duration::from_millis(2));

    /// Fails on: no slice at any wait after one look that a busy machine made long, or after many of them.
    #[test]
    fn slices_are_for_forks_where_looks_are_long_again_and_again() {
        let figures = Gauges::default();
        for _ in 0..3 {
            (1..LONG_LOOKS).for_each(|_| figures.checked(9_000_000, PAUSE));
            assert!(!figures.is_for_forks());
            figures.checked(1_000_000, PAUSE);
        }
        (0..LONG_LOOKS).for_each(|_| figures.checked(9_000_000, PAUSE));
        assert!(figures.is_for_forks());
        let rests = |figures: &Gauges| figures.rests_until().saturating_sub(WallMoment::now().nanos());
        let first = rests(&figures);
        assert!(first <= nanos(REST), "{first}");
        figures.forked();
        assert_eq!(figures.rests_until(), 0, "one more trial");
        (0..20).for_each(|_| figures.checked(9_000_000, PAUSE));
        assert!((nanos(REST) << (MOST_DOUBLINGS - 1)..=nanos(REST) << MOST_DOUBLINGS).contains(&rests(&figures)));
        figures.checked(1_000_000, PAUSE);
        assert_eq!((figures.is_for_forks(), figures.rests_until()), (false, 0));
        figures.checked_first(9_000_000, Pause::AtOnce);
        assert!(!figures.is_for_forks());
        figures.checked_first(9_000_000, PAUSE);
        assert!(figures.is_for_forks() && figures.rests_until() > 0, "a plan knows at once");
    }

    /// Fails on: a short rest after a slice in place of the long one beside a child.
    #[test]
    fn a_rest_is_not_shortened() {
        let figures = Gauges::default();
        figures.put_off(Duration::from_secs(3600));
        let until = figures.rests_until();
        figures.put_off(Duration::ZERO);
        assert_eq!(figures.rests_until(), until);
        figures.put_off(Duration::from_secs(7200));
        assert!(figures.rests_until() > until);
    }
}
