//! A lock that a thread is refused while it holds it, instead of waiting for itself, and for nobody who is not there.

use super::OpError;
use super::once::Mutex;
#[cfg(feature = "std")]
use super::turns::{Orphan, Turns};

/// A value that one thread at a time changes. In a child that lacks a thread which was changing it, it is not dropped:
/// nobody knows what is left of it.
#[derive(Debug)]
pub(super) struct Guarded<T: Default> {
    /// Whoever has one locks `value`.
    #[cfg(feature = "std")]
    turns: Turns,
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
        Self { turns: Turns::new(), value: Mutex::new(value) }
    }

    /// Changes the value; waits while another thread does.
    ///
    /// # Errors
    ///
    /// [`OpError::Deadlock`] in a signal handler that has interrupted a change on its own thread.
    /// [`OpError::Abandoned`] in a child whose parent was changing it when it forked: the value may be half changed.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> Result<R, OpError> {
        let _turn = self.turns.take(Orphan::Lasts)?;
        // Free: only whoever has the turn locks it, and unlocks it before the turn ends.
        Ok(change(&mut super::once::lock(&self.value)))
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
        beside(|| guarded.turns.take(Orphan::Lasts), || guarded.change(|_| ()) == Err(OpError::Abandoned));
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
