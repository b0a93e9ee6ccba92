//! What keeps threads that load at the same time out of each other's cache lines.
//!
//! Every program holds the store that it lies in, and every load and every drop is counted. Were that one reference count and one
//! set of counters, threads would spend their time passing two cache lines around. So there is a *shard* per CPU: a reference
//! count of its own, which in turn holds the store, and a tally.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::program::Meta;
use super::retired::RetiredStack;
use super::stats::Counter;
use super::store::Store;

/// The most shards of a store.
const MOST: usize = 64;

/// What programs hold. Aligned to a pair of cache lines, which x86-64 CPUs fetch together.
#[repr(align(128))]
pub(super) struct Shard {
    store: Arc<Store>,
    number: usize,
}

impl Shard {
    pub(super) fn new(store: Arc<Store>, number: usize) -> Self {
        Self { store, number }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.store.tallies[self.number]
    }
}

/// What threads of one shard have done.
#[repr(align(128))]
pub(super) struct Tally {
    pub(super) loads: Counter,
    pub(super) cache_flushes: Counter,
    /// Bytes of chunks that were ever retired.
    pub(super) retired_bytes: Counter,
    /// Bytes retired since the sum over all shards was last looked at.
    pub(super) unlooked: AtomicUsize,
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
            retired: RetiredStack::new(),
        };
        (0..shards).map(|_| new()).collect()
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
