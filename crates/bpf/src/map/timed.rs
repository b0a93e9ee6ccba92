//! What drives the timers in the values of a map.

use alloc::sync::Arc;
use core::ops::Range;
use std::sync::OnceLock;

use crate::timer::Timers;

/// The timers of the first host that the map was given to; nothing before.
#[derive(Debug, Default)]
pub(crate) struct Timed(OnceLock<Arc<Timers>>);

impl Timed {
    /// Says what drives them, if nothing does yet.
    pub(crate) fn set(&self, timers: &Arc<Timers>) {
        let _ = self.0.set(Arc::clone(timers));
    }

    /// What drives them.
    pub(crate) fn get(&self) -> Option<&Timers> {
        self.0.get().map(|timers| &**timers)
    }

    /// The timer at this address goes, if there is one.
    pub(super) fn forget(&self, address: u64) {
        if let Some(timers) = self.get() {
            timers.forget(address);
        }
    }

    /// The same for all between these addresses.
    pub(super) fn forget_all(&self, addresses: Range<u64>) {
        if let Some(timers) = self.get() {
            timers.forget_all(addresses);
        }
    }
}
