//! What drives the timers in the values of a map.

use alloc::sync::Arc;
use core::ops::Range;
use std::sync::OnceLock;

use crate::timer::Timers;

/// The timers of the first host that the map was given to; until then, empty.
#[derive(Debug, Default)]
pub(crate) struct Timed(OnceLock<Arc<Timers>>);

impl Timed {
    /// Sets what drives them, if nothing does yet.
    pub(crate) fn set(&self, timers: &Arc<Timers>) {
        let _ = self.0.set(Arc::clone(timers));
    }

    /// What drives them.
    pub(crate) fn get(&self) -> Option<&Timers> {
        self.0.get().map(|timers| &**timers)
    }

    /// Removes the timer at this address, if there is one.
    pub(super) fn forget(&self, address: u64) {
        if let Some(timers) = self.get() {
            timers.forget(address);
        }
    }

    /// Removes all timers in this range of addresses.
    pub(super) fn forget_all(&self, addresses: Range<u64>) {
        if let Some(timers) = self.get() {
            timers.forget_all(addresses);
        }
    }
}
