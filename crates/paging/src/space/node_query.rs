//! Reads translations as one node sees them.

use super::{AddressSpace, Locked, Mapping};
use crate::address::VirtAddr;
use crate::format::{Entry, Format};
use crate::machine::{Machine, Node};

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Returns the page that CPUs of `node` find at `address`, through the root that they use ([`root`](Self::root)).
    /// Also `None` if the node does not have its page yet ([`replicate_on_use`](Self::replicate_on_use)). Its marks are
    /// only that node's; [`query`](Self::query) has those of all.
    pub fn query_on(&self, address: VirtAddr, node: Node) -> Option<Mapping> {
        let locked = self.lock();
        locked.find_from(locked.root_index(node), address)
    }

    /// Shows `visit` the page that contains `address` on each of the space's nodes, with its frame there: to change the
    /// bytes of a replicated page, write all of them. Shows a frame that several nodes use only for the first of them.
    pub fn query_copies(&self, address: VirtAddr, mut visit: impl FnMut(Node, Mapping)) {
        let locked = self.lock();
        for (index, (node, _)) in locked.inner.roots.iter().enumerate() {
            let Some(mapping) = locked.find_from(index, address) else { continue };
            let is_known = |before: usize| {
                locked.find_from(before, address).is_some_and(|other| other.leaf.frame == mapping.leaf.frame)
            };
            if !(0..index).any(is_known) {
                visit(*node, mapping);
            }
        }
    }
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Returns the page that contains `address`, from root number `root` on.
    fn find_from(&self, root: usize, address: VirtAddr) -> Option<Mapping> {
        if !F::is_valid(address) {
            return None;
        }
        let (mut table, mut level) = (self.inner.roots[root].1, F::TOP);
        loop {
            match self.entry(table, level, level.index(address)) {
                Entry::Empty => return None,
                Entry::Leaf(leaf) => return Mapping::new(level, address, leaf),
                Entry::Table { frame, .. } => (table, level) = (frame, level.below()?),
            }
        }
    }
}
