//! Unmaps pages.

use core::ops::{ControlFlow, Range};

use arrayvec::ArrayVec;

use super::exclusive::Exclusive;
use super::kernel_pages::Reach;
use super::map::one_page;
use super::need::Purpose;
use super::replica::Detached;
use super::{AddressSpace, Locked, Mapping, account, check_range, slots};
use crate::address::{Frame, Level, PageSize, VirtAddr};
use crate::entry::{exchange, load, publish};
use crate::error::ChangeError;
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::machine::{Machine, Page};
use crate::reserve::Reserve;

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Unmaps everything in `range`; splits large pages that lie only partly in it. Also frees tables that become
    /// empty; a shared table that lies completely in the range is not copied first, only dropped.
    ///
    /// The pages' references are given back ([`Machine::release`]) after the flush has been waited for. Until then CPUs
    /// may reach them at these addresses, whatever is mapped there meanwhile.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::NoMemory`], [`ChangeError::Pinned`], [`ChangeError::Replicated`],
    /// [`ChangeError::Kernel`]; nothing is unmapped.
    pub fn unmap(&self, range: Range<VirtAddr>) -> Result<Flush<'_, F, M>, ChangeError> {
        self.unmap_within(range, Reach::User)
    }

    /// Does the same as [`unmap`](Self::unmap), also for the kernel's pages.
    ///
    /// # Safety
    ///
    /// 1. If the calling program runs in this space, it uses none of the kernel's pages in the range, neither as code,
    ///    stack or data, nor through a reference, until they are as before.
    ///
    /// # Errors
    ///
    /// As for [`unmap`](Self::unmap), except [`ChangeError::Kernel`].
    pub unsafe fn unmap_kernel(&self, range: Range<VirtAddr>) -> Result<Flush<'_, F, M>, ChangeError> {
        self.unmap_within(range, Reach::Kernel)
    }

    fn unmap_within(&self, range: Range<VirtAddr>, reach: Reach) -> Result<Flush<'_, F, M>, ChangeError> {
        check_range::<F>(&range)?;
        let locked = self.lock();
        locked.refuse_kernel(&range, reach)?;
        let mut flush = locked.flush();
        if locked.unmap_one(&range, &mut flush) {
            return Ok(flush);
        }
        locked.refuse_pinned(range.clone())?;
        locked.refuse_split_at(range.clone())?;
        let need = locked.need(range.clone(), Purpose::Remove);
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        clear(&locked.exclusive_root(), range, &mut reserve, &mut flush);
        Ok(flush)
    }
}

fn clear<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    reserve: &mut Reserve<'_, M>,
    flush: &mut Flush<'s, F, M>,
) {
    if table.level == Level::LAST && table.meta.replica().is_none() {
        return table.clear_pages(range, flush);
    }
    for slot in slots(table.level, range) {
        match table.get(slot.index) {
            Entry::Empty => continue,
            Entry::Leaf(_) if slot.whole => {
                table.clear_leaf(slot.index, slot.range, flush);
                continue;
            }
            Entry::Leaf(_) => table.split(slot.index, slot.range.clone(), reserve, flush),
            Entry::Table { frame, .. } if slot.whole && table.space.meta(frame).replica().is_none() => {
                table.detach(slot.index, slot.range, flush);
                continue;
            }
            Entry::Table { .. } => {}
        }
        let entry_range = slot.range.clone();
        if let Some(below) = table.enter(slot.index, entry_range, reserve, flush) {
            clear(&below, slot.range.clone(), reserve, flush);
            if below.meta.populated() == 0 {
                table.detach_empty(slot.index, &below, slot.range, flush);
            }
        }
    }
}

impl<'s, F: Format, M: Machine> Exclusive<'_, 's, F, M> {
    /// Empties the entry of a page, here and in all replicas, whose pages may differ. Returns the previous page, with
    /// the marks of all.
    #[inline(always)]
    pub(crate) fn clear_leaf(&self, index: usize, range: Range<VirtAddr>, flush: &mut Flush<'s, F, M>) -> Option<Leaf> {
        let size = self.level.page_size()?;
        let mut others = ArrayVec::new();
        let marks = if self.meta.replica().is_some() { self.clear_replicas(index, &mut others) } else { None };
        let mut leaf = self.take_leaf(index)?;
        // First: one deferred page too many causes a flush, after which the others are released.
        flush.note_leaf(range);
        flush.defer_page(Page { frame: leaf.frame, size });
        if let Some(marks) = marks {
            leaf = leaf.marked_as(&marks);
            for frame in others.into_iter().filter(|&frame| frame != leaf.frame) {
                flush.defer_page(Page { frame, size });
            }
        }
        self.space.charge_pages(-account::pages_of(self.level));
        Some(leaf)
    }

    /// Empties the entry of a page in all replicas. Returns one of the pages, with the marks of all, and puts their
    /// frames into `frames`.
    #[cold]
    fn clear_replicas(&self, index: usize, frames: &mut ArrayVec<Frame, { super::MAX_NODES }>) -> Option<Leaf> {
        let mut marks = None;
        for replica in self.replicas() {
            // An exchange, since the hardware may have set marks until now.
            if let Entry::Leaf(leaf) = F::decode(self.level, exchange(&replica.0[index], 0)) {
                frames.push(leaf.frame);
                marks = Some(leaf.marked_as(&marks.unwrap_or(leaf)));
            }
        }
        marks
    }

    /// Empties the entries of small pages in a table without replicas, if nobody needs to know what they were.
    fn clear_pages(&self, range: Range<VirtAddr>, flush: &mut Flush<'s, F, M>) {
        let mut count = 0;
        for slot in slots(self.level, range) {
            let entry = &self.entries().0[slot.index];
            let Entry::Leaf(leaf) = F::decode(self.level, load(entry)) else { continue };
            // Not an exchange: the hardware's marks are not needed.
            publish(entry, 0);
            flush.note_leaf(slot.range);
            flush.defer_page(Page { frame: leaf.frame, size: PageSize::Small });
            count += 1;
        }
        self.meta.add_populated(-count);
        self.space.charge_pages(-i64::from(count));
    }

    /// Removes an empty table, here and on all nodes. `range` is what must still be flushed of it.
    pub(crate) fn detach_empty(&self, index: usize, below: &Self, range: Range<VirtAddr>, flush: &mut Flush<'s, F, M>) {
        if below.meta.replica().is_some() {
            let mut copies = Detached::default();
            self.unring(index, below, range.clone(), flush, &mut copies);
            self.space.release_detached(copies, flush);
        }
        self.detach(index, range, flush);
    }

    /// Removes a table with everything below it. `range` is what must still be flushed of it.
    pub(crate) fn detach(&self, index: usize, range: Range<VirtAddr>, flush: &mut Flush<'s, F, M>) {
        let Some(below) = self.level.below() else { return };
        if let Entry::Table { frame, .. } = self.take(index) {
            self.space.disown_tree(frame, below);
            flush.note(range);
            flush.defer_table(frame, below);
        }
    }
}

impl<'s, F: Format, M: Machine> Locked<'s, F, M> {
    /// Unmaps one page as [`clear`] does, if that removes only its entry: usually the table is this space's own and has
    /// other pages too.
    fn unmap_one(&self, range: &Range<VirtAddr>, flush: &mut Flush<'s, F, M>) -> bool {
        let Some(level) = one_page(range).map(PageSize::level) else { return false };
        if self.meta(self.root()).pinned() > 0 {
            return false;
        }
        let index = level.index(range.start);
        let table = self.own_table(range.start, level).filter(|table| table.meta.populated() > 1);
        let Some(table) = table.filter(|table| matches!(table.get(index), Entry::Leaf(_))) else { return false };
        if level == Level::LAST && table.meta.replica().is_none() {
            table.clear_pages(range.clone(), flush);
        } else {
            table.clear_leaf(index, range.clone(), flush);
        }
        true
    }
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Fails if a page of the range is pinned.
    pub(crate) fn refuse_pinned(&self, range: Range<VirtAddr>) -> Result<(), ChangeError> {
        // Nothing below a table without pins is pinned.
        if self.meta(self.root()).pinned() == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        let _ = self.walk_in(range, |mapping| {
            if !self.machine.is_pinned(mapping.page()) {
                return ControlFlow::Continue(());
            }
            result = Err(ChangeError::Pinned { address: mapping.address });
            ControlFlow::Break(())
        });
        result
    }

    /// Fails if the range begins or ends within a large page that cannot be split.
    pub(crate) fn refuse_split_at(&self, range: Range<VirtAddr>) -> Result<(), ChangeError> {
        for edge in [range.start, range.end] {
            if let Some(mapping) = self.find(edge).filter(|mapping| mapping.address != edge) {
                self.refuse_split(&mapping)?;
            }
        }
        Ok(())
    }

    /// Fails if a large page of the range cannot be split.
    pub(crate) fn refuse_split_within(&self, range: Range<VirtAddr>) -> Result<(), ChangeError> {
        let mut result = Ok(());
        let _ = self.walk_in(range, |mapping| {
            if mapping.size > PageSize::Small {
                result = self.refuse_split(&mapping);
            }
            if result.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        result
    }

    /// Refuses a split: pins are counted by pages as they were pinned, and the other nodes' pages would be left over.
    pub(crate) fn refuse_split(&self, mapping: &Mapping) -> Result<(), ChangeError> {
        if self.has_copies(mapping) {
            return Err(ChangeError::Replicated { address: mapping.address });
        }
        if self.meta(self.root()).pinned() > 0 && self.machine.is_pinned(mapping.page()) {
            return Err(ChangeError::Pinned { address: mapping.address });
        }
        Ok(())
    }
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Returns whether the table with the page at `address` has replicas.
    pub(crate) fn is_replicated(&self, address: VirtAddr) -> bool {
        self.meta(self.table_of(address)).replica().is_some()
    }

    /// Returns the table with the page at `address`, or the table where the walk ends.
    pub(crate) fn table_of(&self, address: VirtAddr) -> Frame {
        let (mut table, mut level) = (self.root(), F::TOP);
        while let Entry::Table { frame, .. } = self.entry(table, level, level.index(address)) {
            let Some(below) = level.below() else { break };
            (table, level) = (frame, below);
        }
        table
    }
}
