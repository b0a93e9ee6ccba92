//! The record of a slab's returned blocks, for the fuzz targets.

use super::unit::{Unit, WORDS};

/// Blocks that one unit can have.
const BLOCKS: u32 = WORDS as u32 * 64;

/// The returned blocks of one unit.
pub struct Blocks(Box<Unit>);

impl Default for Blocks {
    /// None has been returned.
    fn default() -> Self {
        let zeroed = Box::new_zeroed();
        // SAFETY: a record is made of atomic integers, of which zeros are values; untouched records of an arena are
        // zeros.
        Self(unsafe { zeroed.assume_init() })
    }
}

impl Blocks {
    /// How many there can be.
    pub fn capacity(&self) -> u32 {
        BLOCKS
    }

    /// Takes a block that was given back, if there is one.
    pub fn take(&self) -> Option<u32> {
        self.0.take_returned()
    }

    /// Notes that `block` was given back; false if it had been already, or there is no such block.
    pub fn put_back(&self, block: u32) -> bool {
        self.0.put_back(block)
    }

    /// Whether `block` has been given back.
    pub fn is_returned(&self, block: u32) -> bool {
        self.0.is_returned(block)
    }

    /// Forgets all blocks.
    pub fn clear(&self) {
        self.0.clear_bitmap();
    }
}
