//! The packs of one process: a region of addresses in slots of 2 MiB, with all that belongs to it.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use palimpsest_sys::{Causes, CoreSync, ForkDetector, Reservation, SyncError};

use super::backing::{Backing, Refused};
use super::config::Config;
use super::contents::{LaidOut, Pack};
use super::directory::Readers;
use super::epoch::ProcessEpochs;
use super::limbo::ReclaimState;
use super::slot::Slot;
use super::tally::{Counters, Tally};
use crate::observe::{ObserveError, Observer};
use crate::primitive::{AtomicU64, AtomicUsize};

/// See the module's documentation.
///
/// Who writes what several threads use: `used_slots`, the holder of `grow`; `generation`, the holder of `reclaiming`;
/// both are read by anybody. `next_reclaim` and `freeing`, any thread that reclaims. The rest is atomic inside, has its
/// own lock, or never changes.
pub(super) struct Store {
    pub(super) config: Arc<Config>,
    pub(super) backing: Backing,
    pub(super) refused: Vec<Refused>,
    pub(super) region: Arc<Reservation>,
    pub(super) slots: Box<[Slot]>,
    /// Slots from here on have never been used.
    pub(super) used_slots: AtomicUsize,
    pub(super) sync: CoreSync,
    pub(super) fork: ForkDetector,
    /// Counts the fork witnesses; see `reclaim`.
    pub(super) generation: AtomicU64,
    pub(super) readers: Readers,
    pub(super) epochs: Arc<ProcessEpochs>,
    /// One tally for each shard.
    pub(super) tallies: Box<[Tally]>,
    pub(super) reclaiming: Mutex<ReclaimState>,
    /// How many threads are about to free what they have collected.
    pub(super) freeing: AtomicUsize,
    /// Bytes of retired chunks at which the next automatic reclaim is due.
    pub(super) next_reclaim: AtomicUsize,
    /// Held while a pack is made.
    pub(super) grow: Mutex<()>,
    /// Packs that are out of use, with their first slots; unmapped when no reader can see them any more.
    pub(super) graveyard: Mutex<Vec<LaidOut>>,
    pub(super) counters: Counters,
}

impl Store {
    /// Returns the generation in which programs are born at this time.
    pub(super) fn generation(&self) -> u64 {
        // Acquire, partner: the Release store in `reclaim`. Forbids that a program counts as younger than a witness
        // that children do not inherit yet.
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the pack of a slot, for a caller that holds the slot's lock or knows of a program in it.
    pub(super) fn pack_in<'s>(&self, slot: &'s Slot) -> Option<&'s Pack> {
        // Acquire, partner: the Release store in `install_pack`.
        let pack = slot.pack.load(Ordering::Acquire);
        // SAFETY: null or a live pack; it is removed under the slot's lock, which the caller holds, or lives as long as
        // the program.
        unsafe { pack.as_ref() }
    }

    /// Synchronises all cores, by signals if `membarrier` has begun to fail. Callers hold no lock: the dynamic linker
    /// may be asked, and a constructor that waits for the lock has the linker's.
    pub(super) fn sync_cores(&self) -> Result<(), SyncError> {
        if let Some(refused) = self.sync.sync_by_any_path()? {
            tracing::warn!(refused = %Causes(refused), "core synchronisation falls back to signals");
        }
        Ok(())
    }

    /// Returns whether there are observers.
    pub(super) fn is_observed(&self) -> bool {
        !self.config.observers.is_empty()
    }

    /// Calls `tell` for every observer, and counts failures.
    pub(super) fn observe(&self, tell: impl Fn(&dyn Observer) -> Result<(), ObserveError>) {
        for observer in &self.config.observers {
            if let Err(error) = tell(&**observer) {
                tracing::warn!(%error, "an observer failed");
                self.counters.observer_errors.add(1);
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.forget_everything();
    }
}

/// A store that only its own process drops.
///
/// A child lacks some of its parent's mappings, and a thread that it lacks may hold a lock for ever, or may have been
/// in the middle of changing a list.
pub(super) struct KeptStore(ManuallyDrop<Store>);

impl KeptStore {
    pub(super) fn new(store: Store) -> Self {
        Self(ManuallyDrop::new(store))
    }
}

impl Deref for KeptStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.0
    }
}

impl Drop for KeptStore {
    fn drop(&mut self) {
        if self.0.fork.is_same_process() {
            // SAFETY: dropped only here.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
