//! What timers keep of a program.

use alloc::sync::{Arc, Weak};

use palimpsest_text::Program as Loaded;

use super::Host;

/// The number of the helper that says what a timer calls.
pub(super) const SET_CALLBACK: i32 = 170;

/// What is kept of a program for its timers, whatever becomes of it.
#[derive(Debug)]
pub(super) struct Kept {
    /// Where its functions are.
    pub(super) code: Arc<Loaded>,
    /// What each call of a timer gets.
    pub(super) fuel: i64,
    /// Whose helpers and maps it knows. Timers do not keep it: they end with it.
    pub(super) host: Weak<Host>,
}

impl Kept {
    /// Whether it has this function.
    pub(super) fn has(&self, function: u64) -> bool {
        let offset = function.checked_sub(self.code.entry().expose_provenance() as u64);
        offset.is_some_and(|offset| offset < self.code.len() as u64)
    }
}
