//! Counts the tables that a move needs at its destination, before it starts.

use core::ops::Range;

use super::{Locked, entry_range, slots};
use crate::address::{Frame, Level, VirtAddr};
use crate::format::{Entry, Format};
use crate::machine::Machine;

/// Follows a move in ascending order, as [`remap`](super::AddressSpace::remap) makes it.
pub(crate) struct Placement<'l, 's, F: Format, M: Machine> {
    space: &'l Locked<'s, F, M>,
    from: Range<VirtAddr>,
    to: VirtAddr,
    /// Where the last entry was placed: the tables on the way there are counted already.
    last: Option<VirtAddr>,
    need: usize,
}

impl<'l, 's, F: Format, M: Machine> Placement<'l, 's, F, M> {
    /// Returns the maximum number of tables needed to place the contents of `from` at `to`.
    pub(crate) fn need(space: &'l Locked<'s, F, M>, from: Range<VirtAddr>, to: VirtAddr) -> usize {
        let mut placement = Self { space, from: from.clone(), to, last: None, need: 0 };
        placement.table(space.root(), F::TOP, from);
        placement.need
    }

    fn table(&mut self, table: Frame, level: Level, range: Range<VirtAddr>) {
        for slot in slots(level, range) {
            let aligned = self.target(slot.range.start).0 & (level.entry_bytes() - 1) == 0;
            match self.space.entry(table, level, slot.index) {
                Entry::Empty => {}
                Entry::Leaf(_) if slot.whole => self.place(slot.range.start, level),
                Entry::Leaf(_) => self.parts(level, slot.range),
                Entry::Table { frame, .. } if slot.whole && aligned && self.space.meta(frame).replica().is_none() => {
                    self.place(slot.range.start, level);
                }
                Entry::Table { frame, .. } => {
                    if let Some(below) = level.below() {
                        self.table(frame, below, slot.range);
                    }
                }
            }
        }
    }

    /// Counts for a large page of `level` that is split because `range` of it moves.
    fn parts(&mut self, level: Level, range: Range<VirtAddr>) {
        let Some(below) = level.below() else { return };
        for slot in slots(below, range) {
            if slot.whole { self.place(slot.range.start, below) } else { self.parts(below, slot.range) }
        }
    }

    fn target(&self, address: VirtAddr) -> VirtAddr {
        VirtAddr(self.to.0 + (address.0 - self.from.start.0))
    }

    /// Counts the tables that an entry of `level` needs on its way from the root.
    fn place(&mut self, address: VirtAddr, level: Level) {
        let to = self.target(address);
        let (mut above, mut next) = (F::TOP, Some(self.space.root()));
        while above > level {
            let Some(below) = above.below() else { break };
            // The table to which the entry leads, if it can be written as it is.
            next = next.and_then(|table| match self.space.entry(table, above, above.index(to)) {
                Entry::Table { frame, .. } if self.space.meta(frame).shares() == 1 => Some(frame),
                _ => None,
            });
            let region = entry_range(above, to);
            // A table that contains what moves may be empty, and gone, before it is needed.
            let stays = next.is_some() && (region.end <= self.from.start || self.from.end <= region.start);
            let is_counted = self.last.is_some_and(|last| entry_range(above, last) == region);
            self.need += usize::from(!stays && !is_counted);
            above = below;
        }
        self.last = Some(to);
    }
}
