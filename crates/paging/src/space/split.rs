//! Splits large pages into small ones, and merges them.

use core::ops::Range;

use super::exclusive::Exclusive;
use super::kernel_pages::{Reach, is_kernel, is_kernel_data};
use super::need::Purpose;
use super::{AddressSpace, check_range, slots};
use crate::address::{ENTRIES, Level, PageSize, VirtAddr};
use crate::attributes::{Privilege, Rights, Stores};
use crate::entry::publish;
use crate::error::ChangeError;
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::machine::{Machine, Page};
use crate::reserve::Reserve;

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Makes every page of `range` one of 4 KiB. The translation stays the same; user mode's pages are unmapped for a
    /// moment, and CPUs that fault meanwhile wait.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::NoMemory`], and for large pages [`ChangeError::Pinned`],
    /// [`ChangeError::Replicated`]; [`ChangeError::Kernel`] on AArch64, where a page of the kernel would be unmapped
    /// for a moment; nothing is changed.
    pub fn split(&self, range: Range<VirtAddr>) -> Result<Flush<'_, F, M>, ChangeError> {
        check_range::<F>(&range)?;
        let locked = self.lock();
        if F::BREAK_BEFORE_MAKE {
            locked.refuse_kernel(&range, Reach::User)?;
        }
        locked.refuse_split_within(range.clone())?;
        let need = locked.need(range.clone(), Purpose::Small);
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        let mut flush = locked.flush();
        split_all(&locked.exclusive_root(), range, &mut reserve, &mut flush);
        Ok(flush)
    }

    /// Makes the 512 pages from `address` on one page of the next size, if they are adjacent in memory, have the same
    /// attributes, belong to user mode, and are not shared. Returns false otherwise.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::NoMemory`].
    pub fn merge(&self, address: VirtAddr, into: PageSize) -> Result<bool, ChangeError> {
        let range = address..VirtAddr(address.0.checked_add(into.bytes()).unwrap_or(0));
        check_range::<F>(&range)?;
        let level = into.level();
        if !address.is_aligned(into) || into == PageSize::Small {
            return Ok(false);
        }
        let locked = self.lock();
        let need = locked.need(range.clone(), Purpose::Change);
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        let mut flush = locked.flush();
        let mut table = locked.exclusive_root();
        while table.level > level {
            let index = table.level.index(address);
            let Some(below) = table.enter(index, range.clone(), &mut reserve, &mut flush) else { return Ok(false) };
            table = below;
        }
        let index = level.index(address);
        let Some(below) = table.enter(index, range.clone(), &mut reserve, &mut flush) else { return Ok(false) };
        // Replicas have other frames.
        if below.meta.replica().is_some() || below.meta.pinned() > 0 {
            return Ok(false);
        }
        let Some(mut leaf) = one_piece(&below, into) else { return Ok(false) };
        let page = Page { frame: leaf.frame, size: into };
        if !locked.machine.merge(page) {
            return Ok(false);
        }
        // On every format: marks set in the table until the flush are collected after it.
        table.hide_table(index);
        flush.note(range);
        flush.settle();
        for entry in 0..ENTRIES {
            if let Entry::Leaf(part) = below.take(entry) {
                leaf = leaf.marked_as(&part);
            }
        }
        table.show(index, F::leaf(level, leaf));
        flush.note_made();
        // Its entries are gone, so that this gives back only the table.
        locked.disown(below.frame, below.level);
        flush.defer_table(below.frame, below.level);
        drop(locked);
        flush.finish();
        Ok(true)
    }
}

/// Returns the large page that a table's small pages form together.
fn one_piece<F: Format, M: Machine>(table: &Exclusive<'_, '_, F, M>, into: PageSize) -> Option<Leaf> {
    let Entry::Leaf(first) = table.get(0) else { return None };
    let part = table.level.entry_bytes();
    let fits = (0..ENTRIES).all(|index| match table.get(index) {
        Entry::Leaf(leaf) => {
            leaf.frame.address() == first.frame.address() + index as u64 * part
                && leaf.attributes == first.attributes
                && leaf.stores == Stores::Pass
                && !is_kernel(&leaf.attributes)
        }
        Entry::Empty | Entry::Table { .. } => false,
    });
    (fits && first.frame.is_aligned(into)).then_some(first)
}

fn split_all<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    reserve: &mut Reserve<'_, M>,
    flush: &mut Flush<'s, F, M>,
) {
    if table.level == Level::LAST {
        return;
    }
    for slot in slots(table.level, range) {
        if let Entry::Leaf(_) = table.get(slot.index) {
            table.split(slot.index, slot.range.clone(), reserve, flush);
        }
        // A table of pages has nothing to split, and may stay shared.
        if table.level.below() == Some(Level::LAST) {
            continue;
        }
        if let Some(below) = table.enter(slot.index, slot.range.clone(), reserve, flush) {
            split_all(&below, slot.range, reserve, flush);
        }
    }
}

impl<'s, F: Format, M: Machine> Exclusive<'_, 's, F, M> {
    /// Turns the large page of entry `index` into a table of pages of the size below, here and in all replicas.
    pub(crate) fn split(
        &self,
        index: usize,
        range: Range<VirtAddr>,
        reserve: &mut Reserve<'_, M>,
        flush: &mut Flush<'s, F, M>,
    ) {
        let (Entry::Leaf(leaf), Some(below), Some(size)) =
            (self.get(index), self.level.below(), self.level.page_size())
        else {
            return;
        };
        let breaks = F::BREAK_BEFORE_MAKE || leaf.attributes.privilege == Privilege::User;
        let leaf = if breaks {
            // Emptied and flushed before the parts are shown, on every format: no CPU has both sizes in its TLB, and
            // the marks are those that the hardware has set until then.
            let leaf = self.hide(index).unwrap_or(leaf);
            flush.note(range.clone());
            flush.settle();
            leaf
        } else {
            // A page of the kernel may be this function's stack: it must translate all the time. Only the size changes,
            // and a CPU may see either (Intel SDM volume 3, 5.10.2.3 and 5.10.4.2; Linux splits its own map so in
            // `__split_large_page`). Marks that may be set until the flush count as set.
            let writable = leaf.attributes.rights.contains(Rights::WRITE);
            Leaf { accessed: true, dirty: leaf.dirty || writable, ..leaf }
        };
        let frame = reserve.take();
        let table = self.space.table(frame);
        for (part, entry) in table.0.iter().enumerate() {
            let frame = leaf.frame.offset(part as u64 * below.entry_bytes());
            publish(entry, F::leaf(below, Leaf { frame, ..leaf }));
        }
        self.space.meta(frame).add_populated(ENTRIES as i16);
        let meta = self.space.meta(frame);
        if is_kernel(&leaf.attributes) {
            meta.set_kernel();
        }
        if is_kernel_data(&leaf.attributes) {
            meta.set_must_not_fault();
        }
        self.space.machine.split(Page { frame: leaf.frame, size });
        // The pages are charged already.
        self.space.own_unfilled(frame);
        self.show(index, F::table(frame, Stores::Pass));
        flush.note_made();
        if !breaks {
            flush.note(range);
        }
    }
}
