//! Whether the program has confined itself by a seccomp filter.

use std::sync::atomic::{AtomicBool, Ordering};

/// Raised before the program's filter is installed, if that was seen. `Relaxed`: a thread that does not see it yet is
/// not confined yet.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether the program confines itself: from then on no file may be opened for it. Async-signal-safe.
pub(crate) fn is_seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

/// Notes that a filter is about to be installed.
pub(crate) fn note() {
    SEEN.store(true, Ordering::Relaxed);
}

/// Forgets it, for tests.
#[cfg(test)]
pub(crate) fn forget() {
    SEEN.store(false, Ordering::Relaxed);
}
