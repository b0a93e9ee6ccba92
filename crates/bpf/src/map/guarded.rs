//! A lock that a thread is refused while it holds it, instead of waiting for itself, and for nobody who is not there.

#[cfg(feature = "std")]
use core::sync::atomic::{AtomicU32, Ordering};

use super::OpError;
#[cfg(feature = "std")]
use super::lock::{Holder, Owner};
use super::once::Mutex;
#[cfg(feature = "std")]
use super::pause::pause;
#[cfg(feature = "std")]
use crate::holding::Holding;

/// A value that one thread at a time changes. In a child that lacks a thread which was changing it, it is not dropped:
/// nobody knows what is left of it.
#[derive(Debug)]
pub(super) struct Guarded<T: Default> {
    /// The number of whoever has locked `value` or is about to, or 0.
    #[cfg(feature = "std")]
    owner: AtomicU32,
    value: Mutex<T>,
}

#[cfg(feature = "std")]
impl<T: Default> Drop for Guarded<T> {
    fn drop(&mut self) {
        if matches!(self.value.try_lock(), Err(std::sync::TryLockError::WouldBlock)) {
            let value = self.value.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            core::mem::forget(core::mem::take(value));
        }
    }
}

#[cfg(feature = "std")]
impl<T: Default> Guarded<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { owner: AtomicU32::new(0), value: Mutex::new(value) }
    }

    /// Becomes the owner; waits while another thread is.
    fn own(&self) -> Result<Held<'_>, OpError> {
        let (mine, holding) = (Owner::here(super::this_cpu).number(), Holding::begin());
        for round in 0.. {
            // Acquire: with the release of `Held::drop`; without it the mutex could look locked.
            match self.owner.compare_exchange_weak(0, mine, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Held { owner: &self.owner, _holding: holding }),
                // By chance.
                Err(0) => {}
                Err(owner) => match Holder::of(owner) {
                    Holder::Interrupted => return Err(OpError::Deadlock),
                    Holder::Gone => return Err(OpError::Abandoned),
                    Holder::Runs => pause(round),
                },
            }
        }
        unreachable!("the rounds are without end")
    }

    /// Changes the value; waits while another thread does.
    ///
    /// # Errors
    ///
    /// [`OpError::Deadlock`] in a signal handler that has interrupted a change on its own thread.
    /// [`OpError::Abandoned`] in a child whose parent was changing it when it forked: the value may be half changed.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> Result<R, OpError> {
        let _held = self.own()?;
        // Free: only the owner locks it, and unlocks it before it gives up its number.
        Ok(change(&mut super::once::lock(&self.value)))
    }
}

/// Gives up the number of the owner when it is dropped.
#[cfg(feature = "std")]
struct Held<'a> {
    owner: &'a AtomicU32,
    /// Dropped behind the owner.
    _holding: Holding,
}

#[cfg(feature = "std")]
impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Release: with the acquire of `own`.
        self.owner.store(0, Ordering::Release);
    }
}

#[cfg(not(feature = "std"))]
impl<T: Default> Guarded<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { value: Mutex::new(value) }
    }

    /// Changes the value; spins while another CPU does, so whoever changes it must not be interrupted by somebody who
    /// wants to.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> Result<R, OpError> {
        Ok(change(&mut super::once::lock(&self.value)))
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::map::tests::beside;

    #[test]
    fn nobody_waits_for_itself() {
        let guarded = Guarded::new(1);
        // As a signal handler that has interrupted its thread.
        assert_eq!(guarded.change(|_| guarded.change(|_| ())), Ok(Err(OpError::Deadlock)));
        let raised = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| guarded.change(|_| panic!("half way"))));
        assert!(raised.is_err());
        assert_eq!(guarded.change(|value| core::mem::replace(value, 2)), Ok(1), "it was given back");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| guarded.change(|value| *value += 1).expect("others go on")));
            }
        });
        assert_eq!(guarded.change(|value| *value), Ok(4002));
        // The child does not know how far the other thread had come.
        beside(|| guarded.own(), || guarded.change(|_| ()) == Err(OpError::Abandoned));
    }

    #[test]
    #[expect(unsafe_code, reason = "a child has what its parent's threads use")]
    fn a_child_frees_nothing_that_was_being_changed() {
        use alloc::boxed::Box;
        use alloc::sync::Arc;

        let counted = Arc::new(());
        for (is_changing, left) in [(true, 2), (false, 1)] {
            let guarded = Box::into_raw(Box::new(Guarded::new(Some(Arc::clone(&counted)))));
            // SAFETY: the box is the child's only when it is dropped there.
            let shown = unsafe { &*guarded };
            let is_left = || {
                // SAFETY: made above; the child has no thread that uses it.
                drop(unsafe { Box::from_raw(guarded) });
                Arc::strong_count(&counted) == left
            };
            let change = || {
                let held = is_changing.then(|| super::super::once::lock(&shown.value));
                Ok::<_, ()>(held)
            };
            beside(change, is_left);
            // SAFETY: the child had its own.
            drop(unsafe { Box::from_raw(guarded) });
        }
    }
}
