//! Whether the program has confined itself by a seccomp filter.

use std::sync::atomic::{AtomicBool, Ordering};

/// As far as that was seen; raised before the filter is there. `Relaxed`: a thread that does not see it yet is not
/// confined yet.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Notes that a filter is about to be installed. Async-signal-safe.
pub(crate) fn note() {
    SEEN.store(true, Ordering::Relaxed);
}

/// Whether the program confines itself: no file may be opened for it from then on. Async-signal-safe.
pub(crate) fn is_seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

/// For tests: no filter was seen.
#[cfg(test)]
pub(crate) fn forget() {
    SEEN.store(false, Ordering::Relaxed);
}
