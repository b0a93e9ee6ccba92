//! Timers of maps without `std`, where nothing drives them: there are none.

use super::cells::Cells;
use super::{Definition, Map, MapError, OpError};

/// No timers.
#[derive(Debug)]
pub(super) struct Timed;

impl Timed {
    /// Returns that they take no memory.
    pub(super) const fn bytes(_definition: &Definition) -> u64 {
        0
    }

    /// Nothing drives them.
    pub(super) const fn new(_definition: &Definition, _values: Option<&Cells>) -> Result<Self, MapError> {
        Ok(Self)
    }

    /// Does nothing: there are no timers.
    pub(super) const fn forget(&self, _address: u64) {}

    /// Does nothing: there are no timers.
    pub(super) const fn forget_all(&self) {}
}

impl Map {
    /// Returns that there are no timers in the way.
    pub(super) const fn check_timers(&self) -> Result<(), OpError> {
        Ok(())
    }
}
