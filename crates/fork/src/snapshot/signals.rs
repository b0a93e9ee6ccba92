//! The set of blocked signals, which an abandoned call may have changed.

use std::mem::MaybeUninit;

/// A set of blocked signals.
pub(super) type Mask = libc::sigset_t;

/// Returns the signals that are blocked now.
pub(super) fn current() -> Mask {
    let mut mask = MaybeUninit::<Mask>::zeroed();
    // SAFETY: without a new set the current one is stored to a local.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: zeros are a valid set, and the call has overwritten them.
    unsafe { mask.assume_init() }
}

/// Blocks these signals and no others.
pub(super) fn set(mask: &Mask) {
    // SAFETY: the set is initialised; nothing is stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
