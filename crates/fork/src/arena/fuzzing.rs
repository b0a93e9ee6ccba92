//! The record of a slab's returned blocks, for the fuzz targets.

use super::unit::{Unit, WORDS};

/// Most blocks of a unit.
const BLOCKS: u32 = WORDS as u32 * 64;

/// The returned blocks of one unit.
pub struct Blocks(Box<Unit>);

impl Default for Blocks {
    /// Makes a record of no returned block.
    fn default() -> Self {
        let zeroed = Box::new_zeroed();
        // SAFETY: a record consists of atomic integers, for which zero is valid; untouched records of an arena are
        // zeros.
        Self(unsafe { zeroed.assume_init() })
    }
}

impl Blocks {
    /// Returns how many blocks there can be.
    pub fn capacity(&self) -> u32 {
        BLOCKS
    }

    /// Takes a returned block, if there is one.
    pub fn take(&self) -> Option<u32> {
        self.0.take_returned()
    }

    /// Notes that `block` was returned. Returns false if it was already, or if there is no such block.
    pub fn put_back(&self, block: u32) -> bool {
        self.0.put_back(block)
    }

    /// Whether `block` has been returned.
    pub fn is_returned(&self, block: u32) -> bool {
        self.0.is_returned(block)
    }

    /// Forgets all blocks.
    pub fn clear(&self) {
        self.0.clear_bitmap();
    }
}
