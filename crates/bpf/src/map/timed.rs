//! What drives the timers in the values of a map.

use alloc::sync::Arc;
use core::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::cells::Cells;
use super::{Definition, Element, Map, MapError, OpError, Store};
use crate::host::{OnTimer, Timers};
use crate::timer::{self, Part};

/// The timers of a map.
pub(crate) struct Timed {
    /// Those of the first host that the map was given to; until then, empty.
    timers: OnceLock<Arc<Timers>>,
    /// Where the first one is.
    first: u64,
    /// Room for them, until there is a host.
    part: Mutex<Option<Part<OnTimer>>>,
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timed").field(&self.timers).finish()
    }
}

impl Timed {
    /// Returns the bytes that the timers of a map take.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        if definition.timer.is_some() { u64::from(definition.max_entries) * Part::<OnTimer>::EACH } else { 0 }
    }

    /// Makes room for the timers of a map, if it has any. Nothing drives them yet.
    pub(super) fn new(definition: &Definition, values: Option<&Cells>) -> Result<Self, MapError> {
        let mut timed = Self { timers: OnceLock::new(), first: 0, part: Mutex::new(None) };
        if let (Some(offset), Some(values)) = (definition.timer, values) {
            timed.first = values.address(0) + u64::from(offset);
            let part = Part::new(timed.first, values.stride() as u64, definition.max_entries)
                .map_err(|_| MapError::Memory { name: definition.name.clone(), bytes: Self::bytes(definition) })?;
            timed.part = Mutex::new(Some(part));
        }
        Ok(timed)
    }

    /// Sets what drives them, if nothing does yet.
    pub(crate) fn set(&self, timers: &Arc<Timers>) {
        if self.timers.set(Arc::clone(timers)).is_err() {
            return;
        }
        let part = self.part.lock().unwrap_or_else(PoisonError::into_inner).take();
        part.into_iter().for_each(|part| timers.add(part));
    }

    /// What drives them.
    pub(crate) fn get(&self) -> Option<&Arc<Timers>> {
        self.timers.get()
    }

    /// Removes the timer at this address, if there is one.
    pub(super) fn forget(&self, address: u64) {
        if let Some(timers) = self.get() {
            timers.forget(address);
        }
    }

    /// Removes all of them, for good.
    pub(super) fn forget_all(&self) {
        if let Some(timers) = self.get() {
            timers.forget_map(self.first);
        }
    }
}

impl Map {
    /// Checks that the timers of its values can be removed here: not in a signal handler that has interrupted a change
    /// of timers on its thread.
    pub(super) fn check_timers(&self) -> Result<(), OpError> {
        let is_interrupted = self.definition.timer.is_some() && timer::is_interrupted();
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
