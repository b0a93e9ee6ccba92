//! One store per process: what makes packs survive a fork.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::builder::Config;
use super::error::OpenError;
use super::store::Store;

/// The store of this process, and behind it those of the processes that it was forked from.
pub(super) struct Root {
    config: Arc<Config>,
    /// # Invariants
    ///
    /// 1. It comes from `Arc::into_raw`, and the reference is `self`'s until it is dropped.
    ///
    /// A process changes it once at most: the first of its threads to need a store of its own.
    current: AtomicPtr<Store>,
}

impl Root {
    pub(super) fn open(config: Config) -> Result<Self, OpenError> {
        let config = Arc::new(config);
        let store = Store::open(Arc::clone(&config), None)?;
        Ok(Self { config, current: AtomicPtr::new(Arc::into_raw(Arc::new(store)).cast_mut()) })
    }

    /// The youngest store that there is, which in a child that has not loaded anything yet is still its parent's.
    /// Async-signal-safe.
    #[inline]
    pub(super) fn peek(&self) -> &Store {
        // Acquire, partner: the Release exchange in `succeed`. Forbids a thread that sees the store without its fields.
        let store = self.current.load(Ordering::Acquire);
        // SAFETY: invariant 1; a store that was replaced is kept by its successor.
        unsafe { &*store }
    }

    /// The store of this process, made now if the process was forked.
    pub(super) fn current(&self) -> Result<Arc<Store>, OpenError> {
        if !self.peek().fork.is_same_process() {
            self.succeed()?;
        }
        // SAFETY: invariant 1.
        Ok(unsafe { share(NonNull::from(self.peek())) })
    }

    /// Makes a child's store. No lock of the parent is touched: a thread that is no more may hold it.
    #[cold]
    fn succeed(&self) -> Result<(), OpenError> {
        let parent = NonNull::from(self.peek());
        // SAFETY: invariant 1.
        let parent_store = unsafe { share(parent) };
        let store = Arc::into_raw(Arc::new(Store::open(Arc::clone(&self.config), Some(parent_store))?)).cast_mut();
        // Release, partner: the Acquire load in `peek`. Relaxed on failure: the loser drops its own store.
        match self.current.compare_exchange(parent.as_ptr(), store, Ordering::Release, Ordering::Relaxed) {
            // SAFETY: the successor holds the parent's store, so that this reference is not its last.
            Ok(replaced) => unsafe { Arc::decrement_strong_count(replaced) },
            // SAFETY: nobody has seen it.
            Err(_) => unsafe { Arc::decrement_strong_count(store) },
        }
        Ok(())
    }
}

/// Another reference to a store.
///
/// # Safety
///
/// 1. `store` comes from `Arc::into_raw`, and a reference to it is live.
unsafe fn share(store: NonNull<Store>) -> Arc<Store> {
    // SAFETY: 1.
    unsafe { Arc::increment_strong_count(store.as_ptr()) };
    // SAFETY: the reference that was just added.
    unsafe { Arc::from_raw(store.as_ptr()) }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: invariant 1.
        unsafe { Arc::decrement_strong_count(*self.current.get_mut()) };
    }
}
