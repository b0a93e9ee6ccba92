//! [`Published`], for threads of this process.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use super::seats::Seat;
use super::thread::{self, Barrier};
use super::versions::Versions;

/// How often [`Published::replace`] lets others run for the sake of the old value.
const TURNS: u32 = 16;

/// A value that any thread reads and replaces at any time. See the module's documentation.
///
/// A forked child has a copy, and the reads of the thread that has forked. Those of other threads have ended there,
/// also one that was lent to the thread that has forked.
///
/// Signal handlers may call `read`, whatever they have interrupted: it uses neither locks nor the allocator, and frees
/// nothing. What it returns is to be dropped before the handler returns.
pub struct Published<V> {
    versions: Versions<V>,
    barrier: &'static Barrier,
    /// Owned, shared, and dropped by any thread.
    _values: PhantomData<V>,
}

// SAFETY: it owns its values, as a `Box` does.
unsafe impl<V: Send> Send for Published<V> {}
// SAFETY: all threads read a value, and any of them may drop it: `Arc` asks for the same.
unsafe impl<V: Send + Sync> Sync for Published<V> {}

impl<V> Published<V> {
    /// Publishes a value.
    pub fn new(value: V) -> Self {
        Self { versions: Versions::new(value), barrier: Barrier::chosen(), _values: PhantomData }
    }

    /// Returns the present value, which stays as long as the result, whatever [`replace`](Self::replace) does.
    ///
    /// While a thread has such a result, no old value of any `Published` is freed that was replaced after the thread's
    /// outermost `read`. So keep it for a short time.
    #[inline]
    pub fn read(&self) -> Reading<'_, V> {
        let seat = thread::enter();
        Reading { value: self.versions.current(), seat, _borrowed: PhantomData }
    }

    /// Replaces the value. Frees the old one if its readers leave within a few turns of this thread; else the next
    /// call does that, or [`reclaim`](Self::reclaim). Returns how many old values are left.
    pub fn replace(&self, value: V) -> usize {
        self.replace_and(value, |_| ()).1
    }

    /// Does the same, and passes the old value to `see`, which must not panic. Returns what that returns, too.
    pub fn replace_and<R>(&self, value: V, see: impl FnOnce(&V) -> R) -> (R, usize) {
        let (tag, seen) = self.versions.replace(value, thread::seats(), see);
        (seen, Replaced { published: self, tag }.free())
    }

    /// Replaces the value, and frees nothing: for whoever holds a lock that a value's destructor could want. The result
    /// frees the old value; so do later calls.
    pub fn replace_only(&self, value: V) -> Replaced<'_, V> {
        let (tag, ()) = self.versions.replace(value, thread::seats(), |_| ());
        Replaced { published: self, tag }
    }

    /// Frees the old values that nobody reads any more. Never waits. Returns how many are left, or in another thread's
    /// hands.
    pub fn reclaim(&self) -> usize {
        let retired = self.versions.take_retired();
        if retired.is_empty() {
            return 0;
        }
        match self.barrier.pass() {
            // SAFETY: 1. just now.
            Ok(()) => unsafe { self.versions.free(retired, thread::seats()) },
            // A filter was added that refuses `membarrier`: nobody knows who reads what.
            Err(_) => self.versions.keep(retired),
        }
    }
}

/// A value that was replaced, and not freed. See [`Published::replace_only`].
#[derive(Debug)]
pub struct Replaced<'p, V> {
    published: &'p Published<V>,
    /// Of the value.
    tag: u64,
}

impl<V> Replaced<'_, V> {
    /// Does what is left of [`Published::replace`], and returns the same.
    pub fn free(self) -> usize {
        let mut left = self.published.reclaim();
        for _ in 0..TURNS {
            // This thread would wait for itself.
            if left == 0 || thread::holds(self.tag) {
                break;
            }
            std::thread::yield_now();
            left = self.published.reclaim();
        }
        left
    }
}

/// Keeps what this thread reads: until the result is dropped, no value of any [`Published`] is freed that is replaced
/// from now on. For readers that clone what they read, and must not be those who drop the last of it.
pub fn pin() -> Pinned {
    Pinned { seat: thread::enter(), _of_this_thread: PhantomData }
}

/// See [`pin`].
#[must_use = "values are kept only while this lives"]
pub struct Pinned {
    /// Counts this as a read.
    seat: &'static Seat,
    /// Not `Send`, for the seat is one thread's.
    _of_this_thread: PhantomData<*const ()>,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pinned").finish_non_exhaustive()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.seat.leave();
    }
}

impl<V> fmt::Debug for Published<V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Published").finish_non_exhaustive()
    }
}

/// A value that is being read, or a part of it; see [`Published::read`].
///
/// Belongs to its thread, which others may let read through it:
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>(_: T) {}
/// is_send(palimpsest_sys::published::Published::new(1).read());
/// ```
#[must_use = "the value is kept only while this lives"]
pub struct Reading<'p, V: ?Sized> {
    /// # Invariants
    ///
    /// 1. Valid as long as the seat counts this read.
    value: NonNull<V>,
    /// Counts this read.
    seat: &'static Seat,
    /// Not `Send`, for the seat is one thread's.
    _borrowed: PhantomData<(&'p V, *const ())>,
}

// SAFETY: others only get the value by reference. The seat counts this read until this is dropped by its own thread;
// if it is forgotten, for ever.
unsafe impl<V: Sync + ?Sized> Sync for Reading<'_, V> {}

impl<'p, V: ?Sized> Reading<'p, V> {
    /// Narrows this to a part of the value.
    #[inline]
    pub fn map<W: ?Sized>(self, part: impl for<'v> FnOnce(&'v V) -> &'v W) -> Reading<'p, W> {
        let value = NonNull::from(part(&self));
        let seat = self.seat;
        std::mem::forget(self);
        Reading { value, seat, _borrowed: PhantomData }
    }
}

impl<V: ?Sized> Deref for Reading<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: invariant 1.
        unsafe { self.value.as_ref() }
    }
}

impl<V: ?Sized> Drop for Reading<'_, V> {
    #[inline]
    fn drop(&mut self) {
        self.seat.leave();
    }
}

impl<V: ?Sized + fmt::Debug> fmt::Debug for Reading<'_, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Reading").field(&&**self).finish()
    }
}
