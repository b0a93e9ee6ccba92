//! Sets of nodes, in the kernel's format.

use std::fmt;

use super::{MOST_NODES, NodeId};

/// Words of a set.
const WORDS: usize = MOST_NODES as usize / 64;

/// A set of nodes. Contains only nodes that a kernel can have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeSet([u64; WORDS]);

impl NodeSet {
    /// No node.
    pub const NONE: Self = Self([0; WORDS]);

    /// Bits for calls that take a mask: the kernel uses one bit less than it is told (`get_nodes` in `mm/mempolicy.c`).
    pub(crate) const BITS: usize = MOST_NODES as usize + 1;

    /// Returns whether `node` is in the set.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.get(node.0 as usize / 64).is_some_and(|word| word & 1 << (node.0 % 64) != 0)
    }

    /// Adds a node; ignores one that no kernel can have.
    pub fn insert(&mut self, node: NodeId) {
        if let Some(word) = self.0.get_mut(node.0 as usize / 64) {
            *word |= 1 << (node.0 % 64);
        }
    }

    /// Returns whether it contains no node.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Returns the nodes, ascending.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> {
        (0..MOST_NODES).map(NodeId).filter(|&node| self.contains(node))
    }

    /// Returns the nodes that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    pub(crate) fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64; WORDS] {
        &mut self.0
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::default();
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter().map(|node| node.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_in() {
        let nodes = [0, 63, 64, MOST_NODES - 1].map(NodeId);
        let set: NodeSet = nodes.into_iter().chain([NodeId(MOST_NODES), NodeId(u32::MAX)]).collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), nodes);
        assert!(!set.contains(NodeId(1)) && !set.contains(NodeId(MOST_NODES)) && !set.is_empty());
        let low: NodeSet = [NodeId(0), NodeId(2)].into_iter().collect();
        assert_eq!(format!("{:?}", set.intersection(&low)), "{0}");
    }
}
