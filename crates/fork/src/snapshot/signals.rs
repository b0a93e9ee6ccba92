//! Keeping signal handlers out while memory is copied.

use std::mem::MaybeUninit;

/// All signals of the calling thread are blocked while this lives.
#[derive(Debug)]
pub(super) struct Blocked(Mask);

/// A set of blocked signals.
pub(super) type Mask = libc::sigset_t;

impl Blocked {
    /// Blocks all signals that can be.
    pub(super) fn all() -> Self {
        let mut all = MaybeUninit::<Mask>::uninit();
        // SAFETY: fills the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = current();
        // SAFETY: both sets are initialised locals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), &raw mut before) };
        Self(before)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set(&self.0);
    }
}

/// The signals that are blocked now.
pub(super) fn current() -> Mask {
    let mut mask = MaybeUninit::<Mask>::zeroed();
    // SAFETY: without a new set the current one is stored to a local.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: zeroes are a valid set, and the call has overwritten them.
    unsafe { mask.assume_init() }
}

/// Blocks these signals and no others.
pub(super) fn set(mask: &Mask) {
    // SAFETY: the set is initialised; nothing is stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
