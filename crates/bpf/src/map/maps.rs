//! Maps inside maps: by key or by number.
//!
//! An outer map holds numbers of inner ones. An inner map that was once put in is kept as long as the outer one, even
//! if another has taken its place: programs may be using its values, and only memory that stays is safe then.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use super::guarded::Guarded;
use super::once::OnceLock;
use super::{Definition, Kind, Map, MapError, OpError, Update};

/// An outer map keeps fewer than 2 to this power of inner ones: programs know them by numbers of 24 bits.
const PARTS: usize = 20;

/// Why a map cannot be put into another.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NestError {
    /// The outer map was not made for maps like this.
    #[error("map `{inner}` has another kind, key, value or access than the maps that `{outer}` was made for")]
    Shape {
        /// The outer map.
        outer: alloc::string::String,
        /// The inner map.
        inner: alloc::string::String,
    },
    /// There is no such key, or no room.
    #[error(transparent)]
    Op(#[from] OpError),
}

/// Maps by key.
#[derive(Debug)]
pub struct Maps {
    /// Numbers of maps, from 1.
    numbers: Box<Map>,
    outer: alloc::string::String,
    shape: Box<Definition>,
    /// All that were ever put in, by number: each part has as many as its first number. Nothing is removed, so that a
    /// reader waits for nobody.
    kept: [OnceLock<Part>; PARTS],
    /// Their numbers, by address. Whoever puts a map in locks it.
    known: Guarded<BTreeMap<usize, u32>>,
}

/// Some of the maps that are kept.
type Part = Box<[OnceLock<Arc<Map>>]>;

/// Returns what maps must have in common to stand in each other's place.
fn shape(definition: &Definition) -> impl PartialEq + use<> {
    // Programs reach every byte of maps inside a map, so they could write to a lock.
    (definition.kind, definition.key_len, definition.value_len, definition.access, definition.lock)
}

impl Maps {
    /// Returns the definition of the map of numbers.
    fn numbers(definition: &Definition) -> Definition {
        let kind = if definition.kind == Kind::ArrayOfMaps { Kind::Array } else { Kind::Hash };
        Definition::new(&definition.name, kind, definition.key_len, 4, definition.max_entries)
    }

    /// Bytes that it takes, without the inner maps.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        super::bytes(&Self::numbers(definition), 1)
    }

    pub(super) fn new(definition: &Definition) -> Result<Self, MapError> {
        let none = || super::definition::measure(definition, "the kind", "one whose inner maps are defined");
        Ok(Self {
            numbers: Box::new(Map::new(Self::numbers(definition))?),
            outer: definition.name.clone(),
            shape: definition.inner.clone().ok_or_else(none)?,
            kept: [const { OnceLock::new() }; PARTS],
            known: Guarded::new(BTreeMap::new()),
        })
    }

    /// Puts a map in, or removes the one with this key. Programs that have found the old one may go on with it; it is
    /// kept as long as this map.
    ///
    /// A map that is put in for the first time takes memory, so in a signal handler put in only maps that were in
    /// before.
    ///
    /// # Errors
    ///
    /// [`NestError`]. [`OpError::Deadlock`] in a signal handler that has interrupted such a change on its own thread;
    /// [`OpError::Abandoned`] in a child of `fork` whose parent was making one.
    pub fn set(&self, key: &[u8], map: Option<Arc<Map>>) -> Result<(), NestError> {
        let Some(map) = map else {
            let taken = if self.numbers.definition().kind == Kind::Array {
                self.numbers.update(key, &[0; 4], Update::Always)
            } else {
                self.numbers.remove(key)
            };
            return Ok(taken?);
        };
        if shape(map.definition()) != shape(&self.shape) {
            let inner = map.definition().name.clone();
            return Err(NestError::Shape { outer: self.outer.clone(), inner });
        }
        let number = self.known.change(|known| self.number_for(known, map))??;
        Ok(self.numbers.update(key, &number.to_ne_bytes(), Update::Always)?)
    }

    /// Returns the number of a map, and keeps the map from now on.
    fn number_for(&self, known: &mut BTreeMap<usize, u32>, map: Arc<Map>) -> Result<u32, OpError> {
        // A number without a map means nothing, should something panic in between.
        let next = known.len() as u32 + 1;
        let place = Arc::as_ptr(&map).addr();
        if let Some(number) = known.get(&place) {
            return Ok(*number);
        }
        let (part, index) = Self::place(next);
        let part = self.kept.get(part).ok_or(OpError::Full)?;
        let part = part.get_or_init(|| (0..1 << next.ilog2()).map(|_| OnceLock::new()).collect());
        // Before its number, so that whoever has the number finds it. The place is free, since this is the first map
        // with the number.
        let _ = part[index].set(map);
        known.insert(place, next);
        Ok(next)
    }

    /// Returns where the map with this number is: its part, and the place in it.
    const fn place(number: u32) -> (usize, usize) {
        let part = number.ilog2();
        (part as usize, (number - (1 << part)) as usize)
    }

    /// The map with this key.
    pub fn get(&self, key: &[u8]) -> Option<Arc<Map>> {
        self.numbered(self.number(key)?).cloned()
    }

    /// The number of the map with this key.
    pub(crate) fn number(&self, key: &[u8]) -> Option<u32> {
        let mut number = [0; 4];
        self.numbers.read(key, 0, &mut number).ok()?;
        Some(u32::from_ne_bytes(number)).filter(|number| *number != 0)
    }

    /// The map with this number.
    pub(crate) fn numbered(&self, number: u32) -> Option<&Arc<Map>> {
        let (part, index) = if number == 0 { return None } else { Self::place(number) };
        self.kept.get(part)?.get()?.get(index)?.get()
    }

    /// All maps that are kept.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Arc<Map>> {
        self.kept.iter().filter_map(OnceLock::get).flat_map(|part| part.iter().filter_map(OnceLock::get))
    }
}
