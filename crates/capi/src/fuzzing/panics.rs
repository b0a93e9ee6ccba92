//! A panic on demand, so that tests see what becomes of one in each function for C.

use std::cell::Cell;

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

/// What the panic says.
pub const PLANTED: &str = "planted by a test";

/// Makes the next function for C that this thread calls panic inside. Returns whether the last one has not.
pub fn arm() -> bool {
    ARMED.replace(true)
}

/// Takes back [`arm`]. Returns whether nothing has panicked since.
pub fn disarm() -> bool {
    ARMED.replace(false)
}

/// Where each function is guarded: panics if that was asked for.
pub(crate) fn when_armed() {
    assert!(!ARMED.replace(false), "{PLANTED}");
}
