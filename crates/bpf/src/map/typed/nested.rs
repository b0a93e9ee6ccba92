//! Handles for maps of maps.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;

use super::super::{Definition, Kind, Map, NestError, OpError};
use super::{Handle, Lengths, Plain, TypeError, check};

handle! {
    /// Maps by number (`K` is `u32`) or by key, with handles `H` for them.
    MapsHandle<K: Plain, H: Handle>, size_of::<K>(), size_of::<u32>(), [ArrayOfMaps, HashOfMaps], inner::<H>
}

fn inner<H: Handle>(definition: &Definition) -> Result<(), TypeError> {
    // A map of maps is not made without.
    let Some(inner) = &definition.inner else { return Err(TypeError::Kind { kind: definition.kind }) };
    H::fits(inner).map_err(|error| TypeError::Inner(Box::new(error)))
}

impl<K: Plain, H: Handle> MapsHandle<K, H> {
    /// Returns the map of `key`.
    pub fn get(&self, key: &K) -> Option<H> {
        let map = self.map.maps()?.get(key.as_bytes())?;
        // What is put in has the measures that `fits` has seen.
        H::new(map).ok()
    }

    /// Puts a map in ([`Maps::set`](crate::map::Maps::set)).
    ///
    /// # Errors
    ///
    /// [`NestError`].
    pub fn set(&self, key: &K, map: &H) -> Result<(), NestError> {
        self.put(key, Some(Arc::clone(map.map())))
    }

    /// Removes the map of `key`. It is kept all the same, since programs may be using it.
    ///
    /// # Errors
    ///
    /// [`NestError`].
    pub fn remove(&self, key: &K) -> Result<(), NestError> {
        self.put(key, None)
    }

    fn put(&self, key: &K, map: Option<Arc<Map>>) -> Result<(), NestError> {
        let kind = self.map.definition().kind;
        self.map.maps().ok_or(OpError::Unsupported { kind })?.set(key.as_bytes(), map)
    }
}
