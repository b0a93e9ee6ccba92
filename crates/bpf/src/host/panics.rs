//! Panics of the host's code that is called while another panic unwinds.

/// Calls the host's code. If a panic unwinds already, another one ends here: it would end the process.
#[cfg(feature = "std")]
pub(super) fn without_a_second(call: impl FnOnce()) {
    if !std::thread::panicking() {
        return call();
    }
    if let Err(raised) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        // Dropping it could panic, too.
        core::mem::forget(raised);
    }
}

/// Calls the host's code. Nobody knows whether a panic unwinds.
#[cfg(not(feature = "std"))]
pub(super) fn without_a_second(call: impl FnOnce()) {
    call();
}
