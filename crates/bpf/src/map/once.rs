//! Cells that are set once, and locks, with an operating system and without.

#[cfg(feature = "std")]
pub(super) use std::sync::{Mutex, MutexGuard, OnceLock};

#[cfg(not(feature = "std"))]
pub(super) use spin::{Mutex, MutexGuard};

/// Locks. Should the thread that had it last have panicked, what it has changed may be half done.
#[cfg(feature = "std")]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks, and spins meanwhile: whoever has it must not be interrupted by somebody who wants it.
#[cfg(not(feature = "std"))]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// What the standard library's type of this name is, for whoever may spin.
#[cfg(not(feature = "std"))]
#[derive(Debug)]
pub(super) struct OnceLock<T>(spin::Once<T>);

#[cfg(not(feature = "std"))]
impl<T> OnceLock<T> {
    pub(super) const fn new() -> Self {
        Self(spin::Once::new())
    }

    pub(super) fn get(&self) -> Option<&T> {
        self.0.get()
    }

    pub(super) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.0.call_once(make)
    }

    /// Puts a value in, or returns it if there is one.
    pub(super) fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.0.call_once(|| value.take().unwrap_or_else(|| unreachable!("it is called once")));
        value.map_or(Ok(()), Err)
    }
}
