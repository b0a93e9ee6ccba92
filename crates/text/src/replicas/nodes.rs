//! The nodes that have copies, and one value for each of them.

use std::sync::Arc;

use palimpsest_sys::numa::{MOST_NODES, NodeId, current_node};

/// The nodes that have copies, and which of these each node's threads use.
pub(super) struct Nodes {
    /// Ascending; at least one.
    homes: Box<[NodeId]>,
    /// For each node that a kernel can have, the index of its home.
    places: Box<[u16]>,
}

impl Nodes {
    /// Records `homes`, and for each node its home; one that is not among `homes` counts as the first.
    pub(super) fn new(homes: &[NodeId], home: impl Fn(NodeId) -> NodeId) -> Self {
        let mut homes = homes.to_vec();
        homes.sort_unstable();
        homes.dedup();
        if homes.is_empty() {
            homes.push(NodeId::default());
        }
        // Lossless: a kernel has no more nodes.
        homes.truncate(MOST_NODES as usize);
        let place = |node| homes.binary_search(&home(NodeId(node))).unwrap_or(0) as u16;
        let places = (0..MOST_NODES).map(place).collect();
        Self { homes: homes.into_boxed_slice(), places }
    }

    pub(super) fn homes(&self) -> &[NodeId] {
        &self.homes
    }

    fn place(&self, node: NodeId) -> usize {
        self.places.get(node.0 as usize).map_or(0, |&place| usize::from(place))
    }
}

/// One value for each home. The first is held separately: with one node there is no other, and nobody asks where the
/// thread runs.
pub(super) struct PerNode<T> {
    nodes: Arc<Nodes>,
    first: T,
    /// The values of the other homes, in their order.
    others: Box<[T]>,
}

impl<T> PerNode<T> {
    /// Takes a value for each home, in the order of homes.
    pub(super) fn new(nodes: &Arc<Nodes>, all: impl IntoIterator<Item = T>) -> Self {
        let mut all = all.into_iter();
        let first = all.next().unwrap_or_else(|| unreachable!("there is at least one home"));
        let others: Box<[T]> = all.collect();
        assert_eq!(others.len() + 1, nodes.homes.len(), "one for each home");
        Self { nodes: Arc::clone(nodes), first, others }
    }

    pub(super) fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    /// Returns the value for the calling thread's node.
    #[inline]
    pub(super) fn local(&self) -> &T {
        if self.others.is_empty() { &self.first } else { self.on(current_node()) }
    }

    /// Returns the value for threads that run on `node`.
    #[inline]
    pub(super) fn on(&self, node: NodeId) -> &T {
        match self.nodes.place(node) {
            0 => &self.first,
            place => &self.others[place - 1],
        }
    }

    pub(super) fn first(&self) -> &T {
        &self.first
    }

    /// Returns all, in the order of their nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Does what [`iter`](Self::iter) does, with the nodes.
    pub(super) fn with_nodes(&self) -> impl Iterator<Item = (NodeId, &T)> {
        self.nodes.homes.iter().copied().zip(self.iter())
    }

    /// Does what [`with_nodes`](Self::with_nodes) does, with mutable values.
    pub(super) fn with_nodes_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut T)> {
        self.nodes.homes.iter().copied().zip(std::iter::once(&mut self.first).chain(&mut self.others))
    }

    /// Returns all, in the order of their nodes.
    pub(super) fn into_iter(self) -> impl Iterator<Item = T> {
        std::iter::once(self.first).chain(self.others)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_that_of_its_home() {
        let nodes = Nodes::new(&[NodeId(3), NodeId(1), NodeId(3)], |node| NodeId(if node.0 > 5 { 3 } else { node.0 }));
        let names = PerNode::new(&Arc::new(nodes), ["one", "three"]);
        assert_eq!(names.nodes().homes(), [NodeId(1), NodeId(3)]);
        let found = [0, 1, 3, 5, 6, 1023, 1024, u32::MAX].map(|node| *names.on(NodeId(node)));
        assert_eq!(found, ["one", "one", "three", "one", "three", "three", "one", "one"]);
        assert!(names.iter().any(|name| std::ptr::eq(name, names.local())));
    }

    #[test]
    fn without_a_home_there_is_one() {
        let one = PerNode::new(&Arc::new(Nodes::new(&[], |node| node)), [7]);
        assert_eq!((*one.local(), *one.on(NodeId(9)), one.iter().count()), (7, 7, 1));
    }
}
