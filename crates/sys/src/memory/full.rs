//! A table without room.

/// An array is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a table for {capacity} entries is full")]
pub struct Full {
    /// The number of entries that it holds.
    pub capacity: usize,
}
