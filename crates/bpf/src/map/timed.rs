//! What drives the timers in the values of a map.

use alloc::sync::Arc;
use core::fmt;
use std::sync::OnceLock;

use super::cells::Cells;
use super::guarded::Guarded;
use super::{Definition, Element, Map, MapError, OpError, Store};
use crate::host::{OnTimer, Timers};
use crate::timer::{self, Part};

/// The timers of a map.
pub(crate) struct Timed {
    /// Those of the first host that the map was given to; until then, empty.
    timers: OnceLock<Arc<Timers>>,
    /// Where the first one is.
    first: u64,
    /// Room for them, until there is a host. Whoever has it sets `timers`.
    part: Guarded<Option<Part<OnTimer>>>,
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
        let mut timed = Self { timers: OnceLock::new(), first: 0, part: Guarded::new(None) };
        if let (Some(offset), Some(values)) = (definition.timer, values) {
            timed.first = values.address(0) + u64::from(offset);
            let part = Part::new(timed.first, values.stride() as u64, definition.max_entries)
                .map_err(|_| MapError::Memory { name: definition.name.clone(), bytes: Self::bytes(definition) })?;
            timed.part = Guarded::new(Some(part));
        }
        Ok(timed)
    }

    /// Sets what drives them, if nothing does yet. In a child whose parent was doing that, nothing ever does.
    pub(crate) fn set(&self, timers: &Arc<Timers>) {
        let set = |part: &mut Option<Part<OnTimer>>| {
            if let Some(part) = part.take() {
                timers.add(part);
                // Behind the room: whoever finds what drives them finds that, too. It is the first, since there is no
                // more room than this.
                let _ = self.timers.set(Arc::clone(timers));
            }
        };
        // Refused: there is nothing that a host could do about it. Its programs get an error.
        let _ = self.part.change(set);
    }

    /// What drives them; `None` before the map was given to a host, and in a child whose parent was just doing that.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Kind;
    use crate::map::tests::{in_a_child, in_the_middle};
    use crate::timer::{SystemTime, TimerClock};

    #[test]
    fn what_drives_timers_is_known_when_it_has_room_for_them() {
        let definition = Definition { timer: Some(0), ..Definition::new("timed", Kind::Array, 4, 16, 1) };
        let map = Map::new(definition).expect("good measures");
        let timers = [(); 2].map(|()| Arc::new(Timers::new(alloc::boxed::Box::new(SystemTime))));
        let init = || map.timed.get().map(|timers| timers.init(map.timed.first, TimerClock::Boot));
        let set = |is_in_the_middle: &dyn Fn()| {
            let part = map.timed.part.change(|part| {
                is_in_the_middle();
                part.take()
            });
            // As if it had not begun.
            assert_eq!(map.timed.part.change(|empty| *empty = part.expect("it was free")), Ok(()));
        };
        let is_refused = || {
            map.timed.set(&timers[1]);
            init().is_none()
        };
        in_the_middle(set, || in_a_child(is_refused));
        // As in a signal handler.
        assert_eq!(map.timed.part.change(|_| is_refused()), Ok(true));
        timers.iter().for_each(|timers| map.timed.set(timers));
        assert!(map.timed.get().is_some_and(|first| Arc::ptr_eq(first, &timers[0])));
        assert_eq!(init(), Some(Ok(())));
    }
}
