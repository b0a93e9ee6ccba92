//! How long a wait lasts.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::timespec;

/// How long to wait in the kernel.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Not at all.
    Not,
    For(Duration),
    Forever,
}

impl Step {
    /// Returns the time for `ppoll` and `pselect6`; `None` for ever.
    pub(crate) fn time(self) -> Option<timespec> {
        let time = match self {
            Self::Not => Duration::ZERO,
            Self::For(time) => time,
            Self::Forever => return None,
        };
        let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
        Some(timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() })
    }

    /// Returns the time for `epoll_pwait`: no less than asked for.
    pub(crate) fn millis(self) -> c_int {
        match self {
            Self::Not => 0,
            Self::For(time) => c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX),
            Self::Forever => -1,
        }
    }
}

/// Until when a call waits.
#[derive(Clone, Copy)]
pub(crate) struct Limit(Option<Instant>);

impl Limit {
    pub(crate) fn after(time: Option<Duration>) -> Self {
        // Anything too far away is for ever.
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    /// Whether it is further away than `time`.
    pub(crate) fn is_beyond(self, time: Duration) -> bool {
        self.0.is_none_or(|end| end.saturating_duration_since(Instant::now()) > time)
    }

    pub(crate) fn left(self) -> Step {
        match self.0 {
            None => Step::Forever,
            Some(end) => Step::For(end.saturating_duration_since(Instant::now())),
        }
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}
