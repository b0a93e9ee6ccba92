//! Timers of maps without `std`, where nothing drives them: there are none.

use core::ops::Range;

use super::{Map, OpError};

/// No timers.
#[derive(Debug)]
pub(super) struct Timed;

impl Timed {
    /// Nothing drives them.
    pub(super) const fn none() -> Self {
        Self
    }

    /// Does nothing: there are no timers.
    pub(super) const fn forget(&self, _address: u64) {}

    /// Does nothing: there are no timers.
    pub(super) const fn forget_all(&self, _addresses: Range<u64>) {}
}

impl Map {
    /// Returns that there are no timers in the way.
    pub(super) const fn check_timers(&self) -> Result<(), OpError> {
        Ok(())
    }
}
