//! Timers of maps without `std`, where nothing drives them: there are none.

use core::ops::Range;

/// No timers.
#[derive(Debug, Default)]
pub(super) struct Timed;

impl Timed {
    /// Does nothing: there are no timers.
    pub(super) const fn forget(&self, _address: u64) {}

    /// Does nothing: there are no timers.
    pub(super) const fn forget_all(&self, _addresses: Range<u64>) {}
}
