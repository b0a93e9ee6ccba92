//! What the object knows once it has started.

use std::sync::OnceLock;

use palimpsest_sys::proc::stat::Incarnation;

use crate::channel::Noted;
use crate::settings::Settings;

/// `palimpsest run` sets it: to its own process, which becomes the program's.
const FIRST: &str = "PALIMPSEST_STARTED";

/// How this process came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `palimpsest run` has started it, whatever it has executed since.
    Run,
    /// The process that `palimpsest run` has started, or one of its heirs, has started it.
    Heir,
    /// Somebody has set the variables himself.
    Variables,
}

impl Origin {
    /// Returns the origin of this process.
    pub(crate) fn of_this_process() -> Self {
        match std::env::var(FIRST) {
            Err(_) => Self::Variables,
            Ok(first) if first.parse() == Ok(Incarnation::of_this_process()) => Self::Run,
            Ok(_) => Self::Heir,
        }
    }
}

/// Whether to report the end of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// If nothing was frozen in the process with this id. Its children have other ids.
    Told(u32),
    Silent,
}

impl End {
    /// Returns that of this process.
    pub(crate) fn of_this_process() -> Self {
        match Origin::of_this_process() {
            Origin::Run => Self::Told(std::process::id()),
            Origin::Heir | Origin::Variables => Self::Silent,
        }
    }
}

/// What the object knows once it has started.
pub(crate) struct Started {
    pub(crate) settings: Settings,
    /// Standard error as the program got it.
    pub(crate) standard_error: Option<Noted>,
    /// The descriptor for the report, if that is where it goes.
    pub(crate) report: Option<Noted>,
    /// seccomp filters under which the program was started; `None` without `/proc`.
    pub(crate) filters: Option<u64>,
    /// Whether to report its end.
    pub(crate) end: End,
    /// Why this program is never frozen, if it is not among the named ones.
    pub(crate) left_out: Option<String>,
}

static STARTED: OnceLock<Started> = OnceLock::new();

/// Returns what the object knows; `None` before it has started, and for good if it must do nothing. Async-signal-safe.
pub(crate) fn get() -> Option<&'static Started> {
    STARTED.get()
}

/// Notes it. Called once.
pub(crate) fn set(started: Started) {
    // Only this place sets it.
    let _ = STARTED.set(started);
}
