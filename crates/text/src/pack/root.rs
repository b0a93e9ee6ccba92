//! One store per process: what makes packs survive a fork.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::builder::Config;
use super::error::OpenError;
use super::shard::{Shard, own_number};
use super::store::Store;

/// The store of this process, and behind it those of the processes that it was forked from.
pub(super) struct Root {
    config: Arc<Config>,
    /// # Invariants
    ///
    /// 1. It comes from `Box::into_raw`, and nothing that it was before is freed while `self` lives.
    ///
    /// A process changes it once at most: the first of its threads to need a store of its own.
    current: AtomicPtr<Generation>,
}

/// A process's store, and the shards through which its threads use it.
pub(super) struct Generation {
    pub(super) store: Arc<Store>,
    shards: Box<[Arc<Shard>]>,
    /// The generation of the process that this one was forked from.
    pub(super) parent: Option<Box<Generation>>,
}

impl Generation {
    fn open(config: &Arc<Config>, parent: Option<&Store>) -> Result<Box<Self>, OpenError> {
        let store = Arc::new(Store::open(Arc::clone(config), parent)?);
        let shards = (0..store.tallies.len()).map(|number| Arc::new(Shard::new(Arc::clone(&store), number))).collect();
        Ok(Box::new(Self { store, shards, parent: None }))
    }

    /// The shard of the calling thread.
    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shards[own_number() % self.shards.len()]
    }
}

impl Root {
    pub(super) fn open(config: Config) -> Result<Self, OpenError> {
        let config = Arc::new(config);
        let first = Generation::open(&config, None)?;
        Ok(Self { config, current: AtomicPtr::new(Box::into_raw(first)) })
    }

    /// The youngest generation that there is, which in a child that has not loaded anything yet is still its parent's.
    /// Async-signal-safe.
    #[inline]
    pub(super) fn peek(&self) -> &Generation {
        // Acquire, partner: the Release exchange in `succeed`. Forbids a thread that sees the generation without its fields.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: invariant 1.
        unsafe { &*current }
    }

    /// The generation of this process, made now if the process was forked.
    #[inline]
    pub(super) fn current(&self) -> Result<&Generation, OpenError> {
        let known = self.peek();
        if known.store.fork.is_same_process() {
            return Ok(known);
        }
        self.succeed(known)
    }

    /// Makes a child's generation. No lock of the parent is touched: a thread that is no more may hold it.
    #[cold]
    fn succeed(&self, parent: &Generation) -> Result<&Generation, OpenError> {
        let mut own = Generation::open(&self.config, Some(&parent.store))?;
        let parent = ptr::from_ref(parent).cast_mut();
        // SAFETY: invariant 1: it comes from a box. Two threads may do this at once; the loser takes it back below.
        own.parent = Some(unsafe { Box::from_raw(parent) });
        let own = Box::into_raw(own);
        // Release, partner: the Acquire load in `peek`. Relaxed on failure: the loser looks again by `peek`.
        if self.current.compare_exchange(parent, own, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: made above, and nobody has seen it.
            let mut own = unsafe { Box::from_raw(own) };
            // The winner owns the parent.
            std::mem::forget(own.parent.take());
        }
        Ok(self.peek())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: invariant 1, and nobody can peek any more.
        drop(unsafe { Box::from_raw(*self.current.get_mut()) });
    }
}
