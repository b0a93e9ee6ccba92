//! What drives the timers in the values of a map.

use alloc::sync::Arc;
use core::ops::Range;
use std::sync::OnceLock;

use super::{Element, Map, OpError, Store};
use crate::timer::Timers;

/// The timers of the first host that the map was given to; until then, empty.
#[derive(Debug)]
pub(crate) struct Timed(OnceLock<Arc<Timers>>);

impl Timed {
    /// Nothing drives them yet.
    pub(super) const fn none() -> Self {
        Self(OnceLock::new())
    }

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

impl Map {
    /// Checks that the timers of its values can be removed here: not in a signal handler that has interrupted a change
    /// of timers on its thread.
    pub(super) fn check_timers(&self) -> Result<(), OpError> {
        let is_interrupted = self.definition.timer.is_some() && Timers::is_interrupted();
        if is_interrupted { Err(OpError::Deadlock) } else { Ok(()) }
    }

    /// The element whose value has a timer at this address.
    pub(crate) fn timed_element(&self, address: u64) -> Option<Element> {
        let offset = self.definition.timer?;
        let (keys, values) = match &self.store {
            Store::Array(array) => (array.keys(), array.values()),
            Store::Hash(hash) => (hash.keys(), hash.values()),
            _ => return None,
        };
        let index = values.index_of(address, offset)?;
        Some(Element { index, key: keys.address(index), value: values.address(index) })
    }
}
