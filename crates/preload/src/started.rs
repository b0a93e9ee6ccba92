//! What is known once the object has started.

use std::sync::OnceLock;

use crate::channel::Noted;
use crate::settings::Settings;

/// What is known once the object has started.
pub(crate) struct Started {
    pub(crate) settings: Settings,
    /// Standard error as the program got it.
    pub(crate) standard_error: Option<Noted>,
    /// The descriptor for the report, if that is where it goes.
    pub(crate) report: Option<Noted>,
    /// seccomp filters that the program was started under; `None` without `/proc`.
    pub(crate) filters: Option<u64>,
}

static STARTED: OnceLock<Started> = OnceLock::new();

/// What is known; `None` before the object has started, and for good if it must do nothing. Async-signal-safe.
pub(crate) fn get() -> Option<&'static Started> {
    STARTED.get()
}

/// Notes it. Called once.
pub(crate) fn set(started: Started) {
    // Nobody else sets it.
    let _ = STARTED.set(started);
}
