//! What the object knows once it has started.

use std::sync::OnceLock;

use crate::channel::Noted;
use crate::settings::Settings;

/// What `palimpsest run` sets: its process id, which the program keeps.
const FIRST: &str = "PALIMPSEST_STARTED";

/// Whether the end of this process is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// If nothing was frozen in the process with this id. Its children have other ids.
    Told(u32),
    Silent,
}

impl End {
    /// That of this process.
    pub(crate) fn of_this_process() -> Self {
        let own = std::process::id();
        let is_first = std::env::var(FIRST).is_ok_and(|first| first == own.to_string());
        if is_first { Self::Told(own) } else { Self::Silent }
    }
}

/// What the object knows once it has started.
pub(crate) struct Started {
    pub(crate) settings: Settings,
    /// Standard error as the program got it.
    pub(crate) standard_error: Option<Noted>,
    /// The descriptor for the report, if that is where it goes.
    pub(crate) report: Option<Noted>,
    /// seccomp filters that the program was started under; `None` without `/proc`.
    pub(crate) filters: Option<u64>,
    /// Whether its end is told of.
    pub(crate) end: End,
}

static STARTED: OnceLock<Started> = OnceLock::new();

/// What the object knows; `None` before it has started, and for good if it must do nothing. Async-signal-safe.
pub(crate) fn get() -> Option<&'static Started> {
    STARTED.get()
}

/// Notes it. Called once.
pub(crate) fn set(started: Started) {
    // This is the only place that sets it.
    let _ = STARTED.set(started);
}
