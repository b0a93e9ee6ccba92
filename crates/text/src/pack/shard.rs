//! Shards keep threads that load at the same time out of each other's cache lines.
//!
//! Every program holds a reference to the store that it lies in, and every load and every drop is counted. With one
//! reference count and one set of counters, threads would spend their time passing two cache lines around. So each CPU
//! has a *shard*: counters, and a reference count that in turn holds the store.
//!
//! A shard whose threads keep finding packs locked by others gets a pack of its own, its *home*. So parallel loading
//! costs memory only where it happens: at most one pack per shard beyond what the programs need.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::slot::Home;
use super::store::{KeptStore, Store};
use super::tally::Tally;

/// The reference that programs hold. Aligned to a pair of cache lines, which x86-64 CPUs fetch together.
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

    /// Returns the home for packs that this shard's threads make because the others are full.
    pub(super) fn home_of_new_packs(&self) -> Home {
        if self.tally().is_settled() { self.home() } else { Home::OfNobody }
    }
}

/// Returns the calling thread's small number, handed out in turn.
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
