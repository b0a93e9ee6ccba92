//! Handles, by which programs know maps.

use alloc::sync::Arc;

use crate::map::Map;

/// By this number plus its index programs know a map. It cannot be mistaken for an address, since no user space address
/// begins so.
const MAP_TAG: u64 = 0x4d41_5000_0000_0000;

/// Returns the handle of the map with this index.
pub(super) fn handle(index: u32) -> u64 {
    MAP_TAG | u64::from(index)
}

/// Bits of the index of a map of the host, or of the number of a map inside it.
const INDEX_BITS: u32 = 24;

/// Finds the map that programs know by `handle`, among `maps` or inside one of them.
pub(super) fn find(maps: &[Arc<Map>], handle: u64) -> Option<&Arc<Map>> {
    let number = handle ^ MAP_TAG;
    let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
    match number >> INDEX_BITS {
        0 => maps.get(index),
        outer => maps.get(usize::try_from(outer).ok()? - 1)?.maps()?.numbered(index as u32),
    }
}

/// Returns the handle of the map with this key inside the one with `handle`; 0 if there is none.
pub(super) fn inner_handle(handle: u64, outer: &Map, key: &[u8]) -> u64 {
    let number = outer.maps().and_then(|maps| maps.number(key));
    number.map_or(0, |number| MAP_TAG | ((handle ^ MAP_TAG) + 1) << INDEX_BITS | u64::from(number))
}
