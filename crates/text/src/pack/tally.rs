//! Counters, per shard and of the whole store.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::contents::Meta;
use super::retired::RetiredStack;

/// The maximum number of shards of a store.
const MOST: usize = 64;

/// How often a shard finds packs locked before it gets a home.
const BEARABLE: usize = 256;

/// What threads of one shard have done.
///
/// | field | who writes | who reads |
/// |---|---|---|
/// | `loads`, `cache_flushes`, `retired_bytes` | threads of the shard, at a load or a drop | `stats`; reclaiming |
/// | `unlooked` | threads of the shard: adds at a drop, zeroes when the sum is looked at | the same |
/// | `contentions` | threads of the shard that find a pack locked; zeroed with the home | threads that make a pack |
/// | `settled` | threads that make the home (under `grow`) or give it back (its slot's lock) | threads of the shard |
/// | `retired` | threads of the shard push; the holder of `reclaiming` takes all | the same |
///
/// A program is counted and retired in the shard that loaded it, which its handle names: so threads of all shards may
/// write here when they drop programs. A forked child writes to none: it has a store of its own (`root`).
#[repr(align(128))]
pub(super) struct Tally {
    pub(super) loads: Counter,
    pub(super) cache_flushes: Counter,
    /// Bytes of chunks that were ever retired.
    pub(super) retired_bytes: Counter,
    /// Bytes retired since the sum over all shards was last looked at.
    pub(super) unlooked: AtomicUsize,
    /// How often a pack was found locked by another thread.
    contentions: AtomicUsize,
    /// Whether the shard has had a home.
    settled: AtomicBool,
    /// Programs that wait to be collected.
    pub(super) retired: RetiredStack<Meta>,
}

impl Tally {
    /// Creates a tally for each shard of a store on this machine.
    pub(super) fn for_this_machine() -> Box<[Self]> {
        let shards = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, MOST);
        let new = || Self {
            loads: Counter::default(),
            cache_flushes: Counter::default(),
            retired_bytes: Counter::default(),
            unlooked: AtomicUsize::new(0),
            contentions: AtomicUsize::new(0),
            settled: AtomicBool::new(false),
            retired: RetiredStack::new(),
        };
        (0..shards).map(|_| new()).collect()
    }

    // Notes that a pack was locked. Relaxed, here and below: preferences.

    pub(super) fn note_contention(&self) {
        self.contentions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn wants_a_home(&self) -> bool {
        self.contentions.load(Ordering::Relaxed) >= BEARABLE && !self.is_settled()
    }

    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// Notes that the shard's home is gone; if needed, it gets another.
    pub(super) fn unsettle(&self) {
        self.contentions.store(0, Ordering::Relaxed);
        self.settled.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }
}

/// Counts something. Relaxed throughout: statistics publish nothing.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of a store that threads seldom update; the others are in the tallies of its shards.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) frees: Counter,
    pub(super) refills: Counter,
    pub(super) reclaims: Counter,
    pub(super) observer_errors: Counter,
    pub(super) reclaimed_bytes: Counter,
}
