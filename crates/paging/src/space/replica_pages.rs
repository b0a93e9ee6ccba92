//! Pages that nodes have for themselves: one by one.

use core::ops::Range;

use super::exclusive::Exclusive;
use super::kernel_pages::is_kernel;
use super::{Locked, Mapping, Replicated};
use crate::address::{Frame, Level, VirtAddr};
use crate::attributes::{Rights, Scope, Sharing};
use crate::entry::{exchange, load, publish};
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::machine::{Machine, Node, Page};

/// When a node gets its pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Now,
    OnUse,
}

impl<'s, F: Format, M: Machine> Exclusive<'_, 's, F, M> {
    /// Gives every other node its own page: a page of the kernel at once, since the kernel may run on it.
    pub(super) fn replicate_page(
        &self,
        index: usize,
        leaf: &Leaf,
        range: Range<VirtAddr>,
        when: When,
        flush: &mut Flush<'s, F, M>,
    ) -> Replicated {
        let mut done = Replicated::default();
        let Some(size) = self.level.page_size() else { return done };
        let page = Page { frame: leaf.frame, size };
        let when = if is_kernel(&leaf.attributes) { When::Now } else { when };
        let nodes = self.space.inner.roots[1..].iter().map(|(node, _)| *node);
        for (replica, node) in self.replicas().zip(nodes) {
            let entry = &replica.0[index];
            let there = F::decode(self.level, load(entry));
            match there {
                Entry::Leaf(there) if there.frame != leaf.frame => continue,
                Entry::Empty if when == When::OnUse => continue,
                _ => {}
            }
            let bits = match when {
                _ if self.space.must_be_single(page, leaf) => None,
                When::OnUse => Some(0),
                When::Now => {
                    let frame = self.space.machine.replica(page, node);
                    frame.map(|frame| F::leaf(self.level, Leaf { frame, ..*leaf }))
                }
            };
            let Some(bits) = bits else {
                done.single += 1;
                if there == Entry::Empty {
                    publish(entry, F::leaf(self.level, *leaf));
                    flush.note_made();
                }
                continue;
            };
            done.pages += 1;
            // An exchange, since the hardware may have set a mark until now. The node may also have written the page
            // while it was single and writable.
            if let Entry::Leaf(last) = F::decode(self.level, exchange(entry, bits)) {
                self.change_leaf(index, |leaf| leaf.marked_as(&last));
                flush.note_leaf(range.clone());
            } else {
                flush.note_made();
            }
        }
        done
    }

    /// Makes every other node use the first's page.
    pub(crate) fn drop_pages(&self, index: usize, leaf: &Leaf, range: Range<VirtAddr>, flush: &mut Flush<'s, F, M>) {
        let Some(size) = self.level.page_size() else { return };
        let mut marks = *leaf;
        for replica in self.replicas() {
            let entry = &replica.0[index];
            let there = F::decode(self.level, load(entry));
            if there == Entry::Empty {
                // It was waiting for its first use.
                publish(entry, F::leaf(self.level, *leaf));
                flush.note_made();
            }
            if let Entry::Leaf(there) = there
                && there.frame != leaf.frame
            {
                // An exchange, since the hardware may have set marks until now.
                if let Entry::Leaf(last) = F::decode(self.level, exchange(entry, F::leaf(self.level, *leaf))) {
                    marks = marks.marked_as(&last);
                }
                flush.note_leaf(range.clone());
                flush.defer_page(Page { frame: there.frame, size });
            }
        }
        self.change_leaf(index, |leaf| leaf.marked_as(&marks));
    }
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Returns whether a page must keep one frame for all nodes: a device may be writing to a pinned page, and another
    /// space to a shared one; global pages belong to the kernel.
    fn must_be_single(&self, page: Page, leaf: &Leaf) -> bool {
        let attributes = leaf.attributes;
        let is_shared = attributes.sharing == Sharing::Shared && attributes.scope == Scope::Local;
        attributes.rights.contains(Rights::WRITE) || is_shared || self.machine.is_pinned(page)
    }

    /// Returns the table with the first root's entry for `address`, or the table where that walk ends.
    fn last_table(&self, address: VirtAddr) -> (Frame, Level) {
        let (mut table, mut level) = (self.root(), F::TOP);
        while let (Entry::Table { frame, .. }, Some(below)) =
            (self.entry(table, level, level.index(address)), level.below())
        {
            (table, level) = (frame, below);
        }
        (table, level)
    }

    /// Returns the other nodes' entries for the page at `address`; empty ones wait for their first use.
    fn replica_entries(&self, address: VirtAddr) -> impl Iterator<Item = Entry> + '_ {
        let (table, level) = self.last_table(address);
        self.ring_of(table).skip(1).map(move |frame| self.entry(frame, level, level.index(address)))
    }

    /// Returns whether another node has, or waits for, its own page instead of `mapping`.
    pub(crate) fn has_copies(&self, mapping: &Mapping) -> bool {
        let is_single = |entry| matches!(entry, Entry::Leaf(there) if there.frame == mapping.leaf.frame);
        self.replica_entries(mapping.address).any(|entry| !is_single(entry))
    }

    /// Gives `node` its page at `address` if that has waited for its first use. Returns whether it had.
    pub(crate) fn fetch_replica(&self, mapping: &Mapping, node: Node) -> bool {
        let (table, level) = self.last_table(mapping.address);
        let index = self.root_index(node);
        let Some(own) = self.ring_of(table).nth(index) else { return false };
        let entry = &self.table(own).0[level.index(mapping.address)];
        if F::decode(level, load(entry)) != Entry::Empty {
            return false;
        }
        let (page, leaf) = (mapping.page(), mapping.leaf);
        let single = self.must_be_single(page, &leaf);
        let replica = if single { None } else { self.machine.replica(page, self.inner.roots[index].0) };
        publish(entry, F::leaf(level, Leaf { frame: replica.unwrap_or(leaf.frame), ..leaf }));
        true
    }
}
