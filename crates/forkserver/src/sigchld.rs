//! What the process does when a child ends.

use std::mem::MaybeUninit;

/// While it lives, children of this process stay until they are waited for by their number. An ignored SIGCHLD (which
/// programs inherit), `SA_NOCLDWAIT`, or a handler that waits for any child would take the server's workers away.
pub(crate) struct Waiting {
    before: libc::sigaction,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        // SAFETY: zeros are the default action, without flags.
        let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut before = default;
        // SAFETY: both are locals. Fails for no valid signal.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const default, &raw mut before) };
        Self { before }
    }

    /// Does again what the process did before: in a worker, which has no children of the server's.
    pub(crate) fn give_back(&self) {
        // SAFETY: an action that the kernel has returned, with its handler where it was.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const self.before, std::ptr::null_mut()) };
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.give_back();
    }
}
