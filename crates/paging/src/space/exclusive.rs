//! Tables that only one space refers to: the only way to write entries.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Locked, account};
use crate::address::{ENTRIES, Frame, Level, VirtAddr};
use crate::attributes::{Sharing, Stores};
use crate::entry::{change_leaf, exchange, load, publish};
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf, ShareMode};
use crate::machine::{Machine, Page, Table};
use crate::meta::TableMeta;
use crate::reserve::Reserve;

/// A table that only this space reaches, as long as its lock is held.
pub(crate) struct Exclusive<'a, 's, F: Format, M: Machine> {
    pub(crate) space: &'a Locked<'s, F, M>,
    pub(crate) frame: Frame,
    pub(crate) level: Level,
    table: &'s Table,
    pub(crate) meta: &'s TableMeta,
}

/// An [`Exclusive`] table, kept for later while the lock is held.
///
/// It stays exclusive until the lock is dropped, since others get no reference meanwhile, unless its holder detaches
/// it.
#[derive(Clone, Copy)]
pub(crate) struct Kept<'s> {
    pub(crate) frame: Frame,
    pub(crate) level: Level,
    table: &'s Table,
    meta: &'s TableMeta,
}

impl<'s> Kept<'s> {
    /// Returns the table to the space for which it was kept, whose lock has been held since.
    #[inline]
    pub(crate) fn take_up<'a, F: Format, M: Machine>(&self, space: &'a Locked<'s, F, M>) -> Exclusive<'a, 's, F, M> {
        let Self { frame, level, table, meta } = *self;
        Exclusive { space, frame, level, table, meta }
    }
}

impl<'a, 's, F: Format, M: Machine> Exclusive<'a, 's, F, M> {
    pub(super) fn root(space: &'a Locked<'s, F, M>) -> Self {
        Self::new(space, space.root(), F::TOP)
    }

    /// Creates it for a table that nobody else refers to, by its frame.
    pub(crate) fn at(space: &'a Locked<'s, F, M>, frame: Frame, level: Level) -> Self {
        Self::new(space, frame, level)
    }

    /// Returns its entries for reading.
    pub(crate) fn entries(&self) -> &'s Table {
        self.table
    }

    fn new(space: &'a Locked<'s, F, M>, frame: Frame, level: Level) -> Self {
        let (table, meta) = (space.table(frame), space.meta(frame));
        debug_assert_eq!(meta.shares(), 1, "a shared table is not written");
        Self { space, frame, level, table, meta }
    }

    /// Returns the same table once more: the lock's holder may write it under two names.
    pub(crate) fn again(&self) -> Self {
        Self { ..*self }
    }

    /// Returns entry `index`.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Entry {
        F::decode(self.level, load(&self.table.0[index]))
    }

    /// Returns whether the entry for `address` is empty.
    #[inline]
    pub(crate) fn is_empty_at(&self, address: VirtAddr) -> bool {
        matches!(self.get(self.level.index(address)), Entry::Empty)
    }

    /// Fills an empty entry, here and in all replicas of the table.
    #[inline]
    pub(crate) fn fill(&self, index: usize, bits: u64) {
        debug_assert_eq!(self.get(index), Entry::Empty);
        self.meta.add_populated(1);
        self.write(index, bits);
    }

    /// Empties an entry, here and in all replicas, and returns it. The hardware may have set marks until now.
    pub(crate) fn take(&self, index: usize) -> Entry {
        if let Some(leaf) = self.take_leaf(index) {
            return Entry::Leaf(leaf);
        }
        let entry = self.get(index);
        if let Entry::Table { .. } = entry {
            self.meta.add_populated(-1);
            self.write(index, 0);
        }
        entry
    }

    /// Does the same as [`take`](Self::take), but only for a page; other entries stay.
    #[inline(always)]
    pub(crate) fn take_leaf(&self, index: usize) -> Option<Leaf> {
        let Entry::Leaf(mut leaf) = self.get(index) else { return None };
        if !(leaf.accessed && leaf.dirty) {
            // An exchange, lest a mark is lost; a page with both marks gets no other.
            if let Entry::Leaf(last) = F::decode(self.level, exchange(&self.table.0[index], 0)) {
                leaf = last;
            }
        }
        self.meta.add_populated(-1);
        self.write(index, 0);
        Some(leaf)
    }

    /// Empties a page's entry for a moment, here and in all replicas, until [`show`](Self::show). Returns the previous
    /// page, with the marks of all nodes. CPUs that fault meanwhile wait for the lock.
    pub(crate) fn hide(&self, index: usize) -> Option<Leaf> {
        let take = |table: &Table| match F::decode(self.level, exchange(&table.0[index], 0)) {
            Entry::Leaf(leaf) => Some(leaf),
            Entry::Empty | Entry::Table { .. } => None,
        };
        let mut leaf = take(self.table)?;
        for there in self.replicas().filter_map(take) {
            leaf = leaf.marked_as(&there);
        }
        Some(leaf)
    }

    /// Empties the entry of a table for a moment, here and in all replicas, until [`show`](Self::show).
    pub(crate) fn hide_table(&self, index: usize) {
        self.write(index, 0);
    }

    /// Ends what [`hide`](Self::hide) has begun, or replaces an entry at once. Not for a page's entry that walkers may
    /// be marking: the marks would be lost.
    pub(crate) fn show(&self, index: usize, bits: u64) {
        self.write(index, bits);
    }

    /// Fills `count` empty entries from `first` on, here and in all replicas, with pages that follow `leaf` in memory.
    pub(crate) fn fill_pages(&self, first: usize, count: usize, leaf: Leaf) {
        let bytes = self.level.entry_bytes();
        let fill = |table: &Table| {
            let mut frame = leaf.frame;
            for entry in &table.0[first..first + count] {
                debug_assert_eq!(F::decode(self.level, load(entry)), Entry::Empty);
                publish(entry, F::leaf(self.level, self.space.as_mapped(self.level, Leaf { frame, ..leaf })));
                frame = frame.offset(bytes);
            }
        };
        fill(self.table);
        self.replicas().for_each(fill);
        self.meta.add_populated(count as i16);
        self.space.charge_pages(count as i64 * account::pages_of(self.level));
    }

    #[inline]
    fn write(&self, index: usize, bits: u64) {
        publish(&self.table.0[index], bits);
        for replica in self.replicas() {
            publish(&replica.0[index], bits);
        }
    }

    /// Changes a page's entry here and, with the frame that it has there, in all replicas, without losing marks that
    /// the hardware sets meanwhile. Returns the old entry, with the marks of all.
    pub(crate) fn change_leaf(&self, index: usize, change: impl Fn(Leaf) -> Leaf) -> Option<Leaf> {
        let mut old = change_leaf::<F>(&self.table.0[index], self.level, &change)?;
        for replica in self.replicas() {
            if let Some(leaf) = change_leaf::<F>(&replica.0[index], self.level, &change) {
                old = old.marked_as(&leaf);
            }
        }
        Some(old)
    }

    /// Keeps the table, to be taken up again while the lock is held.
    pub(crate) fn keep(&self) -> Kept<'s> {
        Kept { frame: self.frame, level: self.level, table: self.table, meta: self.meta }
    }

    /// Returns the other nodes' copies of this table.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &'s Table> + use<'a, 's, F, M> {
        let space = self.space;
        core::iter::successors(self.meta.replica(), move |&frame| space.meta(frame).replica())
            .map(move |frame| space.table(frame))
    }

    /// Returns the table below entry `index`, unshared if others share it; `None` if the entry is not a table.
    ///
    /// `reserve` has a table in case it is shared. `range` is what the entry translates.
    pub(crate) fn enter(
        &self,
        index: usize,
        range: Range<VirtAddr>,
        reserve: &mut Reserve<'_, M>,
        flush: &mut Flush<'s, F, M>,
    ) -> Option<Exclusive<'a, 's, F, M>> {
        let Entry::Table { frame, stores } = self.get(index) else { return None };
        let level = self.level.below()?;
        let meta = self.space.meta(frame);
        if meta.shares() > 1 {
            return Some(self.unshare(index, frame, level, range, reserve.take(), flush));
        }
        if stores == Stores::Fault {
            // The last sharer takes it back. Rights only grow, so that a stale translation only costs a fault.
            self.show(index, F::table(frame, Stores::Pass));
        }
        meta.set_protected(false);
        self.space.own(frame, level);
        Some(Exclusive::new(self.space, frame, level))
    }

    /// Returns the table below the entry for `address`, if it is this space's own already, so that
    /// [`enter`](Self::enter) would change nothing.
    #[inline]
    fn own_below(&self, address: VirtAddr) -> Option<Self> {
        let Entry::Table { frame, stores: Stores::Pass } = self.get(self.level.index(address)) else { return None };
        let meta = self.space.meta(frame);
        let is_own = meta.shares() == 1 && meta.owner() == Some(self.space.id) && !meta.is_protected();
        if is_own { Some(Self::new(self.space, frame, self.level.below()?)) } else { None }
    }

    /// Does the same as [`enter`](Self::enter), and makes a new table if the entry is empty.
    pub(crate) fn enter_or_create(
        &self,
        index: usize,
        range: Range<VirtAddr>,
        reserve: &mut Reserve<'_, M>,
        flush: &mut Flush<'s, F, M>,
    ) -> Option<Exclusive<'a, 's, F, M>> {
        if self.get(index) == Entry::Empty {
            let (frame, level) = (reserve.take(), self.level.below()?);
            self.space.own(frame, level);
            self.fill(index, F::table(frame, Stores::Pass));
            return Some(Exclusive::new(self.space, frame, level));
        }
        self.enter(index, range, reserve, flush)
    }

    /// Replaces a shared table by our own copy; see the header of [`space`](super).
    fn unshare(
        &self,
        index: usize,
        shared: Frame,
        level: Level,
        range: Range<VirtAddr>,
        copy: Frame,
        flush: &mut Flush<'s, F, M>,
    ) -> Exclusive<'a, 's, F, M> {
        let space = self.space;
        let (old, meta) = (space.table(shared), space.meta(shared));
        let (new, new_meta) = (space.table(copy), space.meta(copy));
        for (old, new) in old.0.iter().zip(&new.0) {
            let bits = match F::decode(level, load(old)) {
                Entry::Empty => continue,
                Entry::Leaf(_) => {
                    let leaf = protect_leaf::<F>(old, level);
                    if let Some(size) = level.page_size() {
                        space.machine.retain(Page { frame: leaf.frame, size });
                    }
                    F::leaf(level, leaf)
                }
                Entry::Table { frame, .. } => {
                    if let Some(below) = level.below() {
                        space.share_table(frame, below);
                    }
                    let bits = F::table(frame, shared_stores::<F>());
                    publish(old, bits);
                    bits
                }
            };
            // Relaxed: nobody sees the table before it is published.
            new.store(bits, Ordering::Relaxed);
        }
        meta.set_protected(true);
        new_meta.set_kernel_as(meta);
        new_meta.add_populated(meta.populated() as i16);
        space.disown(shared, level);
        space.own(copy, level);
        // Step c of the header: one store.
        self.show(index, F::table(copy, Stores::Pass));
        flush.note(range);
        flush.defer_table(shared, level);
        Exclusive::new(space, copy, level)
    }
}

/// Returns whether an entry for a shared table lets stores pass.
#[inline]
pub(crate) const fn shared_stores<F: Format>() -> Stores {
    match F::SHARE_MODE {
        ShareMode::TableProtect => Stores::Fault,
        ShareMode::LeafProtect => Stores::Pass,
    }
}

/// Returns whether a page must be copied before it is written, once two entries refer to it.
#[inline]
pub(crate) fn is_copied_on_write(leaf: &Leaf) -> bool {
    leaf.attributes.sharing == Sharing::Private
}

/// Returns a leaf's form when two entries refer to its page.
#[inline]
pub(crate) fn protected(leaf: Leaf) -> Leaf {
    let writable = leaf.attributes.rights.contains(crate::Rights::WRITE);
    if writable && is_copied_on_write(&leaf) { Leaf { stores: Stores::Fault, ..leaf } } else { leaf }
}

/// Makes stores to a private page fault, which is right for all sharers of the table. Returns the resulting leaf.
fn protect_leaf<F: Format>(entry: &AtomicU64, level: Level) -> Leaf {
    match change_leaf::<F>(entry, level, protected) {
        Some(old) => protected(old),
        None => unreachable!("an entry of a shared table changes to nothing else"),
    }
}

impl<'s, F: Format, M: Machine> Locked<'s, F, M> {
    /// Returns the table with the entry of `level` for `address`, if nothing must be made, copied or taken back on the
    /// way.
    #[inline]
    pub(crate) fn own_table(&self, address: VirtAddr, level: Level) -> Option<Exclusive<'_, 's, F, M>> {
        let mut table = self.exclusive_root();
        while table.level > level {
            table = table.own_below(address)?;
        }
        Some(table)
    }

    /// Returns a page's form when it is mapped: a private, writable page with other references must be copied before it
    /// is written.
    #[inline]
    pub(crate) fn as_mapped(&self, level: Level, leaf: Leaf) -> Leaf {
        let first = protected(leaf);
        if first.stores == leaf.stores {
            return leaf;
        }
        let is_alone = |size| self.machine.is_exclusive(Page { frame: leaf.frame, size });
        if level.page_size().is_some_and(is_alone) { leaf } else { first }
    }

    /// Counts one more entry that will refer to a table which this space refers to.
    pub(crate) fn share_table(&self, frame: Frame, level: Level) {
        let meta = self.meta(frame);
        meta.add_share();
        if F::SHARE_MODE == ShareMode::LeafProtect {
            self.protect_leaves(frame, level);
        }
    }

    /// Removes the hardware's right to write from every private page below a table that is being shared.
    fn protect_leaves(&self, frame: Frame, level: Level) {
        let meta = self.meta(frame);
        if meta.is_protected() {
            return;
        }
        let table = self.table(frame);
        for index in 0..ENTRIES {
            match F::decode(level, load(&table.0[index])) {
                Entry::Empty => {}
                Entry::Leaf(_) => {
                    change_leaf::<F>(&table.0[index], level, protected);
                }
                Entry::Table { frame, .. } => {
                    if let Some(below) = level.below() {
                        self.protect_leaves(frame, below);
                    }
                }
            }
        }
        meta.set_protected(true);
    }
}
