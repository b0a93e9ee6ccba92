//! A lock that one fork handler takes, and that the handlers on either side of the fork release.
//!
//! The standard library's mutex needs its guard for that, and a C callback has nowhere to keep one. Three states, after
//! the well-known scheme for futexes: free, held, held with sleepers. It allocates nothing, and has no poisoning:
//! nothing panics under these locks.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_SLEEPERS: u32 = 2;

/// How often a thread looks at a taken lock before it sleeps.
const SPINS: u32 = 64;

/// Exclusive access to a `T`.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    /// # Invariants
    ///
    /// Only the holder of the lock accesses it.
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time, so sharing the lock amounts to sending the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard { lock: self }
    }

    /// Takes the lock without a guard. [`release`](Self::release) it afterwards.
    #[inline]
    pub(crate) fn acquire(&self) {
        // Acquire: pairs with the exchange in `release`, so that this thread sees what the last holder wrote.
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.acquire_contended();
        }
    }

    #[cold]
    fn acquire_contended(&self) {
        for _ in 0..SPINS {
            hint::spin_loop();
            // Relaxed: only a hint that trying is worth it.
            if self.state.load(Ordering::Relaxed) == FREE
                // Acquire: as in `acquire`.
                && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
        }
        // Acquire: as in `acquire`. Keeps the state at "with sleepers": this thread cannot know that it was the last
        // one.
        while self.state.swap(HELD_WITH_SLEEPERS, Ordering::Acquire) != FREE {
            // An error means a changed state or a signal: look again.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, HELD_WITH_SLEEPERS, None);
        }
    }

    /// Whether nobody holds the lock now.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
    }

    /// Returns the value to a thread that holds the lock without a guard.
    ///
    /// # Safety
    ///
    /// 1. This thread [acquired](Self::acquire) the lock, or is a child's copy of the thread that did, and has no other
    ///    reference to the value.
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: by (1) nobody else has a reference to the value.
        unsafe { &mut *self.value.get() }
    }

    /// Releases a lock that this thread took, or that the thread took which forked this process.
    #[inline]
    pub(crate) fn release(&self) {
        // Release: pairs with the acquiring operations above.
        if self.state.swap(FREE, Ordering::Release) == HELD_WITH_SLEEPERS {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

/// The lock, held.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists while this thread holds the lock, so nobody else has a reference to the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard itself is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        const EACH: u64 = 50_000;
        let lock = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 4 * EACH);
    }

    #[test]
    fn a_lock_taken_without_a_guard_excludes_until_it_is_released() {
        let lock = Lock::new(0_u32);
        lock.acquire();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock() = 1);
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!other.is_finished());
            lock.release();
        });
        assert_eq!(*lock.lock(), 1);
    }
}
