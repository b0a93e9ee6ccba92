//! A cell that is set once, and for which nobody waits.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A cell that is set once, as `OnceLock` is, but without a lock: a child that was forked while another thread was
/// setting it sets it itself.
pub struct SetOnce<T> {
    /// # Invariants
    ///
    /// 1. Null, or from `Box::into_raw`: then it stays, until the cell is dropped.
    value: AtomicPtr<T>,
    /// Not `Send` and `Sync` by itself.
    _owned: PhantomData<*const T>,
}

// SAFETY: it owns its value, as a `Box` does.
unsafe impl<T: Send> Send for SetOnce<T> {}
// SAFETY: all threads read the value, and each may be the one that has made it: `OnceLock` asks for the same.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

impl<T> SetOnce<T> {
    /// Makes a cell without a value.
    pub const fn new() -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), _owned: PhantomData }
    }

    /// Returns the value, if it is set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire, partner: the exchange in `get_or_init`. Forbids that the value is read before it was written.
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: null, or a value that stays as long as the borrow (invariant 1).
        unsafe { value.as_ref() }
    }

    /// Returns the value, and makes it if it is not set. Several threads may make one at the same time: all get the
    /// first, and the others are dropped.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let made = Box::into_raw(Box::new(make()));
        // Release, partner: the load in `get`, and this one on failure, which reads another thread's value.
        let value = match self.value.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Acquire) {
            Ok(_) => made,
            Err(first) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(made) });
                first
            }
        };
        // SAFETY: not null by now, and as in `get`.
        unsafe { &*value }
    }
}

impl<T> Default for SetOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for SetOnce<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: invariant 1; nobody else has the cell any more.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for SetOnce<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SetOnce").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_value_stays_and_each_is_dropped_once() {
        let counted = Arc::new(());
        let cell = SetOnce::new();
        assert!(cell.get().is_none());
        let set = |number: usize| cell.get_or_init(|| (number, Arc::clone(&counted))).0;
        // As if another thread were first, or had not come back.
        let first = cell.get_or_init(|| {
            assert_eq!(set(1), 1);
            (2, Arc::clone(&counted))
        });
        assert_eq!((first.0, set(3), cell.get().map(|value| value.0)), (1, 1, Some(1)));
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(cell);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn threads_agree() {
        let cell = SetOnce::new();
        let numbers = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|number| {
                    scope.spawn({
                        let cell = &cell;
                        move || *cell.get_or_init(|| number)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect::<Vec<i32>>()
        });
        assert!(numbers.iter().all(|number| Some(number) == cell.get()), "{numbers:?}");
    }
}
