//! The present value and the old ones.

use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use super::primitive::AtomicPtr;
use super::seats::Seats;

/// One value, in its own allocation.
struct Version<V> {
    value: V,
    /// The last epoch in which a read may have begun that uses it. Written once, by the thread that has withdrawn it.
    tag: u64,
    /// The one that was retired before. Written by the thread that has this version to itself, before it shares it.
    older: *mut Self,
}

/// The present value, which any thread replaces by an exchange, and the stack of those that are retired.
///
/// Without locks: in a forked child nobody would release one that another thread has held.
pub(super) struct Versions<V> {
    /// # Invariants
    ///
    /// 1. Comes from `Box::into_raw`, and is freed by whoever has withdrawn it, once no read uses it.
    current: AtomicPtr<Version<V>>,
    /// # Invariants
    ///
    /// 1. Null, or a list of withdrawn versions, each with its tag. Whoever takes the list has all of it to itself.
    retired: AtomicPtr<Version<V>>,
}

impl<V> Versions<V> {
    pub(super) fn new(value: V) -> Self {
        let (current, retired) = (AtomicPtr::new(boxed(value)), AtomicPtr::new(ptr::null_mut()));
        Self { current, retired }
    }

    /// Returns the present value. It is there as long as the caller's seat shows the read that it has begun.
    #[inline]
    pub(super) fn current(&self) -> NonNull<V> {
        // Acquire, partner: the exchange in `replace`. Forbids that the value is read before it was written.
        let version = self.current.load(Ordering::Acquire);
        // SAFETY: invariant 1: a version, which the caller's read keeps.
        let value = unsafe { &raw mut (*version).value };
        // SAFETY: a field of an allocation.
        unsafe { NonNull::new_unchecked(value) }
    }

    /// Replaces the value, passes the old one to `see`, and retires it. Returns its tag, and what `see` returns.
    pub(super) fn replace<R>(&self, value: V, seats: &Seats, see: impl FnOnce(&V) -> R) -> (u64, R) {
        // AcqRel: Release, partner: the load in `current`. Acquire: what its maker wrote is dropped here later.
        let old = self.current.swap(boxed(value), Ordering::AcqRel);
        let tag = seats.advance();
        // SAFETY: withdrawn just now; readers do not use this field.
        unsafe { (*old).tag = tag };
        // SAFETY: a version that nobody frees before it is retired.
        let seen = see(unsafe { &(*old).value });
        self.retire(old);
        (tag, seen)
    }

    /// Adds `version`, and those that are linked to it, to the retired ones.
    fn retire(&self, version: *mut Version<V>) {
        let mut last = version;
        // SAFETY: the caller has all of these versions to itself.
        while let Some(older) = NonNull::new(unsafe { (*last).older }) {
            last = older.as_ptr();
        }
        let mut newest = self.retired.load(Ordering::Relaxed);
        loop {
            // SAFETY: as above; readers do not use this field.
            unsafe { (*last).older = newest };
            // Release, partner: the exchange in `take_retired`. Forbids that it is taken without its tag.
            match self.retired.compare_exchange_weak(newest, version, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => newest = newer,
            }
        }
    }

    /// Takes all that is retired; then the caller is to make all threads pass a barrier, and to call
    /// [`free`](Self::free).
    pub(super) fn take_retired(&self) -> Retired<V> {
        // Acquire, partner: the exchange in `retire`.
        Retired(self.retired.swap(ptr::null_mut(), Ordering::Acquire))
    }

    /// Frees what no read can use, keeps the rest, and returns how many that is.
    ///
    /// # Safety
    ///
    /// 1. All threads have passed a barrier since `retired` was taken from this value.
    pub(super) unsafe fn free(&self, retired: Retired<V>, seats: &Seats) -> usize {
        // After the barrier (1).
        let oldest = seats.oldest_read();
        self.sort_out(retired, |tag, _| tag < oldest)
    }

    /// Keeps all of `retired`, and returns how many that is.
    pub(super) fn keep(&self, retired: Retired<V>) -> usize {
        self.sort_out(retired, |_, _| false)
    }

    /// Frees the values that `is_free` names, by their tags, and retires the others again. Returns how many those are.
    pub(super) fn sort_out(&self, retired: Retired<V>, is_free: impl Fn(u64, &V) -> bool) -> usize {
        let (mut next, mut kept, mut count) = (retired.0, ptr::null_mut(), 0);
        while let Some(version) = NonNull::new(next) {
            // SAFETY: taken by this call's caller, and nobody else has it (invariant 1 of `retired`).
            let this = unsafe { &mut *version.as_ptr() };
            next = this.older;
            if is_free(this.tag, &this.value) {
                // SAFETY: comes from `boxed`, and no read uses it.
                drop(unsafe { Box::from_raw(version.as_ptr()) });
            } else {
                this.older = kept;
                (kept, count) = (version.as_ptr(), count + 1);
            }
        }
        if !kept.is_null() {
            self.retire(kept);
        }
        count
    }
}

/// Withdrawn versions that one thread has to itself.
#[must_use = "they are freed or kept, or lost"]
pub(super) struct Retired<V>(*mut Version<V>);

impl<V> Retired<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_null()
    }
}

impl<V> Drop for Versions<V> {
    fn drop(&mut self) {
        // Relaxed: nobody else has this value any more, nor a read of it.
        let retired = Retired(self.retired.load(Ordering::Relaxed));
        self.retired.store(ptr::null_mut(), Ordering::Relaxed);
        self.sort_out(retired, |_, _| true);
        // SAFETY: invariant 1.
        drop(unsafe { Box::from_raw(self.current.load(Ordering::Relaxed)) });
    }
}

fn boxed<V>(value: V) -> *mut Version<V> {
    Box::into_raw(Box::new(Version { value, tag: 0, older: ptr::null_mut() }))
}
