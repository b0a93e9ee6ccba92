//! How far a freeze in slices has come: figures that anybody may read at any time.
//!
//! Relaxed everywhere: each is read for itself, and nothing is published with it. Written by who holds the lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::{Instant, nanos};
use crate::options::Pause;

/// Of how many slices' time a program that is not idle gets all but one: a fifth of its time is the freeze's at most.
const SHARE: u64 = 5;

/// What looking at the process may take before a slice, in nanoseconds of CPU time, however short the pause is to be.
const SHORT_LOOK: u64 = 1_000_000;

/// How far a freeze in slices has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Progress {
    /// Whether anything is left to do.
    pub stage: Stage,
    /// Bytes that were populated when the freeze was planned, and are to be frozen.
    pub planned_bytes: usize,
    /// Bytes that are frozen by now.
    pub frozen_bytes: usize,
    /// Bytes that are in huge pages by now instead, since that pays sooner ([`Pays::Within`](crate::Pays::Within)).
    pub gathered_bytes: usize,
    /// Slices until now.
    pub slices: u64,
    /// The longest slice: how long the process was held up at most.
    pub longest: Duration,
    /// All slices together.
    pub taken: Duration,
    /// What the plan has taken, before the first slice: the mappings are listed, for which the kernel looks at each
    /// page once.
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

/// The figures. Zeroed memory is a valid one.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    stage: AtomicUsize,
    planned: AtomicUsize,
    frozen: AtomicUsize,
    gathered: AtomicUsize,
    slices: AtomicU64,
    longest: AtomicU64,
    taken: AtomicU64,
    looked: AtomicU64,
    /// On the clock of [`Instant`](crate::clock::Instant), in nanoseconds: no slice at waits before.
    not_before: AtomicU64,
    /// 1 if the look before a slice takes longer than a pause may: it looks at every descriptor.
    has_long_looks: AtomicUsize,
}

impl Figures {
    /// A freeze of so many bytes begins, after a look of so many nanoseconds.
    pub(crate) fn begin(&self, planned: usize, looked: u64) {
        self.frozen.store(0, Ordering::Relaxed);
        self.gathered(0);
        for figure in [&self.slices, &self.longest, &self.taken, &self.not_before] {
            figure.store(0, Ordering::Relaxed);
        }
        self.planned.store(planned, Ordering::Relaxed);
        self.looked.store(looked, Ordering::Relaxed);
        self.set(Stage::UnderWay);
    }

    /// A slice took so many nanoseconds; so many bytes are frozen by now.
    pub(crate) fn took(&self, nanos: u64, frozen: usize) {
        self.slices.fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
        self.taken.fetch_add(nanos, Ordering::Relaxed);
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    /// So many bytes are in huge pages by now.
    pub(crate) fn gathered(&self, bytes: usize) {
        self.gathered.store(bytes, Ordering::Relaxed);
    }

    /// What took `taken` was in somebody's way: the process is to be left alone for some time.
    pub(crate) fn put_off(&self, taken: Duration) {
        let rest = nanos(taken).saturating_mul(SHARE - 1);
        self.not_before.store(Instant::now().nanos().saturating_add(rest), Ordering::Relaxed);
    }

    /// The look before a slice took so many nanoseconds of CPU time.
    pub(crate) fn checked(&self, taken: u64, pause: Pause) {
        let is_long = match pause {
            Pause::AtOnce => false,
            Pause::Within(budget) => taken > nanos(budget).max(SHORT_LOOK),
        };
        self.has_long_looks.store(usize::from(is_long), Ordering::Relaxed);
    }

    /// Whether slices are taken at forks only, since they would hold up who is about to wait for too long.
    pub(crate) fn is_for_forks(&self) -> bool {
        self.has_long_looks.load(Ordering::Relaxed) != 0
    }

    /// Until when it is to be left alone; 0 if it need not.
    pub(crate) fn rests_until(&self) -> u64 {
        self.not_before.load(Ordering::Relaxed)
    }

    /// It has come to this.
    pub(crate) fn set(&self, stage: Stage) {
        self.stage.store(stage as usize, Ordering::Relaxed);
    }

    /// Whether something is left to do.
    pub(crate) fn is_under_way(&self) -> bool {
        self.stage.load(Ordering::Relaxed) == Stage::UnderWay as usize
    }

    /// Ends one that is under way.
    pub(crate) fn give_up(&self) {
        if self.is_under_way() {
            self.set(Stage::Ended);
        }
    }

    /// All of them.
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
            looked: time(&self.looked),
        }
    }
}
