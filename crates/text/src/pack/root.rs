//! What belongs to one process: its store, and its epochs. A forked child gets new ones.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::config::Config;
use super::epoch::{EpochsByProcess, ProcessEpochs};
use super::error::OpenError;
use super::policy::ForkPolicy;
use super::shard::{Shard, own_number};
use super::store::{KeptStore, Store};

/// The store and the epochs of this process, and, linked behind them, those of its ancestors.
///
/// Every thread that has the packs may read `current` at any time, also a signal handler in `lookup`. Threads of a
/// forked child that find the parent's generation there replace it, by one exchange. The rest is never written. Only
/// dropping the packs frees.
pub(super) struct Root {
    config: Arc<Config>,
    /// # Invariants
    ///
    /// 1. It comes from `Box::into_raw`, and none of its earlier values is freed while `self` lives.
    ///
    /// A process changes it at most once, in the first thread that needs the process's own store.
    current: AtomicPtr<Generation>,
    /// The epochs, perhaps shared with other packs.
    epochs: Arc<EpochsByProcess>,
}

/// A process's store, and the shards through which its threads use it.
pub(super) struct Generation {
    pub(super) store: Arc<KeptStore>,
    shards: Box<[Arc<Shard>]>,
    /// The generation of the parent process. Behind a pointer, since others refer to it all the time.
    ///
    /// # Invariants
    ///
    /// 1. It comes from `Box::into_raw`, and this value frees it.
    parent: Option<NonNull<Generation>>,
}

impl Generation {
    fn open(config: &Arc<Config>, epochs: Arc<ProcessEpochs>, parent: Option<&Self>) -> Result<Box<Self>, OpenError> {
        let parent_store = parent.map(|parent| &**parent.store);
        let store = Store::open(Arc::clone(config), epochs, parent_store)?;
        let store = Arc::new(KeptStore::new(store));
        let shards = (0..store.tallies.len()).map(|number| Arc::new(Shard::new(Arc::clone(&store), number))).collect();
        Ok(Box::new(Self { store, shards, parent: parent.map(NonNull::from) }))
    }

    /// Returns the shard of the calling thread.
    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shards[own_number() % self.shards.len()]
    }

    /// Returns the parent process's generation.
    pub(super) fn parent(&self) -> Option<&Self> {
        // SAFETY: invariant 1.
        self.parent.map(|parent| unsafe { parent.as_ref() })
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if let Some(parent) = self.parent {
            // SAFETY: invariant 1; generations are dropped with their root, when nobody refers to them.
            drop(unsafe { Box::from_raw(parent.as_ptr()) });
        }
    }
}

impl Root {
    pub(super) fn open(config: Config) -> Result<Self, OpenError> {
        let config = Arc::new(config);
        let epochs = config.epochs.clone().unwrap_or_default();
        let first = Generation::open(&config, epochs.share(), None)?;
        Ok(Self { config, current: AtomicPtr::new(Box::into_raw(first)), epochs })
    }

    /// Returns the youngest generation; in a child that has not loaded anything yet, that is still its parent's.
    /// Async-signal-safe.
    #[inline]
    pub(super) fn peek(&self) -> &Generation {
        // Acquire, partner: the Release exchange in `succeed`. Forbids seeing the generation without its fields.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: invariant 1.
        unsafe { &*current }
    }

    /// Returns the generation of this process; makes it first if the process was forked.
    #[inline]
    pub(super) fn current(&self) -> Result<&Generation, OpenError> {
        let known = self.peek();
        if known.store.fork.is_same_process() {
            return Ok(known);
        }
        self.succeed(known)
    }

    /// Makes a child's generation. Touches no lock of the parent: a thread that no longer exists may hold it.
    #[cold]
    fn succeed(&self, parent: &Generation) -> Result<&Generation, OpenError> {
        let own = match Generation::open(&self.config, self.epochs.share(), Some(parent)) {
            Ok(own) => own,
            // Another thread may have succeeded.
            Err(error) => return if ptr::eq(self.peek(), parent) { Err(error) } else { Ok(self.peek()) },
        };
        if self.config.fork == ForkPolicy::Omit {
            // Before this process's programs can lie where the parent's were.
            own.store.observe(|observer| observer.omitted(parent.store.region.range()));
        }
        let own = Box::into_raw(own);
        let known = ptr::from_ref(parent).cast_mut();
        // Release, partner: the Acquire load in `peek`. Relaxed on failure: the loser looks again by `peek`.
        if self.current.compare_exchange(known, own, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: made above, and nobody has seen it.
            let mut own = unsafe { Box::from_raw(own) };
            // The parent now belongs to the winner.
            own.parent = None;
        }
        Ok(self.peek())
    }

    /// Returns the epochs in which threads of this process are pinned.
    #[inline]
    pub(super) fn epochs(&self) -> &ProcessEpochs {
        self.epochs.own()
    }

    /// Returns the same epochs, to share them with other packs.
    pub(super) fn shared_epochs(&self) -> &Arc<EpochsByProcess> {
        &self.epochs
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: invariant 1, and nobody can use it any more.
        drop(unsafe { Box::from_raw(*self.current.get_mut()) });
    }
}
