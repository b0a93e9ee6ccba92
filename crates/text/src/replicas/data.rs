//! Read-only data of programs, in place on every node.

use std::fmt;

use palimpsest_sys::numa::NodeId;

use super::nodes::PerNode;
use crate::pack::Data;

/// Data with a copy beside each copy of the programs. Dropping it retires all copies, as with [`Data`].
pub struct ReplicatedData(PerNode<Data>);

impl ReplicatedData {
    pub(super) fn new(copies: PerNode<Data>) -> Self {
        Self(copies)
    }

    /// Returns the first address of the copy for programs of threads on `node`.
    pub fn address_on(&self, node: NodeId) -> usize {
        self.0.on(node).address()
    }

    /// Returns the first address of the copy on the calling thread's node.
    pub fn address(&self) -> usize {
        self.0.local().address()
    }

    /// Returns the length of each copy in bytes.
    pub fn len(&self) -> usize {
        self.0.first().len()
    }

    /// Returns false: empty data cannot be placed.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl fmt::Debug for ReplicatedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.with_nodes()).finish()
    }
}
