//! A spin lock; the machine decides how to wait.

use core::cell::UnsafeCell;
use core::num::NonZeroU64;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;

use crate::primitive::{AtomicBool, AtomicU64};

/// The holder without a name.
const NOBODY: u64 = 0;

#[derive(Debug, Default)]
pub(crate) struct SpinLock<T> {
    /// Set by an exchange, by any CPU that wants the value; cleared by the one that has it.
    held: AtomicBool,
    /// The holder of the lock, if it has a name. Only the holder writes it.
    holder: AtomicU64,
    /// # Invariants
    ///
    /// 1. Accessed only while `held` was set by the accessor.
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time reaches the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), holder: AtomicU64::new(NOBODY), value: UnsafeCell::new(value) }
    }

    /// Spins, calling `relax`, until the lock is free. Panics if `me` holds it, since it would wait for ever.
    pub(crate) fn lock(&self, me: Option<NonZeroU64>, relax: impl Fn()) -> Guard<'_, T> {
        // Acquire, partner: the Release in `Guard::drop`. Forbids seeing the value as it was before the last holder
        // changed it. Relaxed on failure: tried again.
        while self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.held.load(Ordering::Relaxed) {
                // Relaxed: a thread that finds its own name has stored it itself, and not removed it since.
                let waits_for_itself = me.is_some_and(|me| me.get() == self.holder.load(Ordering::Relaxed));
                assert!(!waits_for_itself, "the space is in use by the caller itself: drop the cursor first");
                relax();
            }
        }
        if let Some(me) = me {
            // Relaxed: see above.
            self.holder.store(me.get(), Ordering::Relaxed);
        }
        Guard { lock: self }
    }
}

pub(crate) struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held (invariant 1).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held (invariant 1).
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Relaxed: see `SpinLock::lock`.
        self.lock.holder.store(NOBODY, Ordering::Relaxed);
        // Release, partner: the Acquire in `SpinLock::lock`.
        self.lock.held.store(false, Ordering::Release);
    }
}
