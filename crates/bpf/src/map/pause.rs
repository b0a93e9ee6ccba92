//! Waiting for another thread that is about to finish.

/// Waits a little for another thread to finish.
pub(super) fn pause(round: u32) {
    if round < 64 {
        return core::hint::spin_loop();
    }
    #[cfg(feature = "std")]
    std::thread::yield_now();
    #[cfg(not(feature = "std"))]
    core::hint::spin_loop();
}
