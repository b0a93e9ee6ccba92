//! Keeps the thread's `errno`.

/// Restores `errno` when dropped, so that the program does not see what an interposed call did to it.
pub(super) struct Kept(i32);

impl Kept {
    pub(super) fn now() -> Self {
        // SAFETY: the C library gives a valid pointer to the thread's own variable.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own variable.
        Self(unsafe { *place })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: as above.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own variable.
        unsafe { *place = self.0 };
    }
}
