//! How many locks of maps and hooks the calling thread holds: what a signal handler needs to know before it waits for
//! another thread, which may wait for one of them.

#[cfg(feature = "std")]
std::thread_local! {
    static HELD: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// Counts a lock from before it is taken until after it was given back, so that no handler sees it uncounted.
#[derive(Debug)]
pub(crate) struct Holding(());

impl Holding {
    pub(crate) fn begin() -> Self {
        begin();
        Self(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        end();
    }
}

/// Counts a lock that is about to be taken, and given back by another call.
pub(crate) fn begin() {
    #[cfg(feature = "std")]
    HELD.set(HELD.get().saturating_add(1));
}

/// Counts a lock that was given back, or could not be taken.
pub(crate) fn end() {
    #[cfg(feature = "std")]
    HELD.set(HELD.get().saturating_sub(1));
}

/// Whether this thread holds any.
#[cfg(feature = "std")]
pub(crate) fn is_holding() -> bool {
    HELD.get() != 0
}
