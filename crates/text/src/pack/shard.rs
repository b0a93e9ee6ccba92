//! What keeps threads that load at the same time out of each other's cache lines.
//!
//! Every program holds the store that it lies in, and every load and every drop is counted. Were that one reference
//! count and one set of counters, threads would spend their time passing two cache lines around. So there is a *shard*
//! per CPU: a reference count of its own, which in turn holds the store, and a tally.
//!
//! A shard whose threads keep finding packs locked by others gets a pack of its own, its *home*. So memory is spent on
//! parallel loading only where there is some: at most one pack for each shard beyond what the programs need.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::program::Meta;
use super::retired::RetiredStack;
use super::root::KeptStore;
use super::slot::Home;
use super::stats::Counter;
use super::store::Store;

/// The most shards of a store.
const MOST: usize = 64;

/// How often a shard finds packs locked before it gets a home.
const BEARABLE: usize = 256;

/// What programs hold. Aligned to a pair of cache lines, which x86-64 CPUs fetch together.
#[repr(align(128))]
pub(super) struct Shard {
    store: Arc<KeptStore>,
    number: usize,
}

impl Shard {
    pub(super) fn new(store: Arc<KeptStore>, number: usize) -> Self {
        Self { store, number }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.store.tallies[self.number]
    }

    pub(super) fn home(&self) -> Home {
        Home::OfShard(self.number)
    }
}

/// What threads of one shard have done.
///
/// | field | who writes | who reads |
/// |---|---|---|
/// | `loads`, `cache_flushes`, `retired_bytes` | threads of the shard, at a load or a drop | `stats`; reclaiming |
/// | `unlooked` | threads of the shard: adds at a drop, zeroes when the sum is looked at | the same |
/// | `contentions` | threads of the shard that find a pack locked; zeroed with the home | whoever makes a pack |
/// | `settled` | whoever makes the home (under `grow`) or gives it back (its slot's lock) | threads of the shard |
/// | `retired` | threads of the shard push; who holds `reclaiming` takes all | the same |
///
/// A program is counted and retired in the shard that loaded it, which its handle names: so threads of all shards may
/// write here when they drop. A forked child writes to none: it has a store of its own (`root`).
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
    /// One for each shard of a store.
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

    // Relaxed, in all of these: preferences.

    pub(super) fn note_contention(&self) {
        self.contentions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn wants_a_home(&self) -> bool {
        self.contentions.load(Ordering::Relaxed) >= BEARABLE && !self.settled.load(Ordering::Relaxed)
    }

    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// The shard's home is gone; should it be missed, there will be another.
    pub(super) fn unsettle(&self) {
        self.contentions.store(0, Ordering::Relaxed);
        self.settled.store(false, Ordering::Relaxed);
    }

    /// Whose home a pack is that this shard's threads make for want of room.
    pub(super) fn home_of_new_packs(&self, shard: &Shard) -> Home {
        if self.settled.load(Ordering::Relaxed) { shard.home() } else { Home::OfNobody }
    }
}

/// A small number of the calling thread, handed out in turn.
pub(super) fn own_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            // Relaxed: any number will do.
            let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
            number.set(Some(fresh));
            fresh
        })
    })
}
