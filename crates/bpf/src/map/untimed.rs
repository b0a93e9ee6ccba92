//! Timers of maps where nothing drives them: there are none.

use core::ops::Range;

/// No timers.
#[derive(Debug, Default)]
pub(super) struct Timed;

impl Timed {
    /// There is none at this address.
    pub(super) const fn forget(&self, _address: u64) {}

    /// There are none between these addresses.
    pub(super) const fn forget_all(&self, _addresses: Range<u64>) {}
}
