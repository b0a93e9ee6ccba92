//! Changes the rights of pages.

use core::ops::Range;

use super::exclusive::{Exclusive, is_copied_on_write};
use super::kernel_pages::Reach;
use super::need::Purpose;
use super::{AddressSpace, check_range, slots};
use crate::address::VirtAddr;
use crate::attributes::{Rights, Stores};
use crate::error::ChangeError;
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::machine::{Machine, Page};
use crate::reserve::Reserve;

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Gives all pages of `range` these rights; splits large pages that lie only partly in it, and copies shared
    /// tables. Skips gaps.
    ///
    /// The first store to a page that gets the right to write while others refer to it copies it. Pages without rights
    /// keep their memory.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::NoMemory`], [`ChangeError::Rights`]; [`ChangeError::Replicated`], and for
    /// pages that would have to be split [`ChangeError::Pinned`]; [`ChangeError::Kernel`]; nothing is changed.
    pub fn protect(&self, range: Range<VirtAddr>, rights: Rights) -> Result<Flush<'_, F, M>, ChangeError> {
        self.protect_within(range, rights, Reach::User)
    }

    /// Does the same as [`protect`](Self::protect), also for the kernel's pages.
    ///
    /// # Safety
    ///
    /// 1. If the calling program runs in this space, it uses the kernel's pages in the range only as these rights
    ///    allow; and on AArch64, during the call, it does not use large pages that must be split, since their entry is
    ///    empty for a moment.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect), except [`ChangeError::Kernel`].
    pub unsafe fn protect_kernel(
        &self,
        range: Range<VirtAddr>,
        rights: Rights,
    ) -> Result<Flush<'_, F, M>, ChangeError> {
        self.protect_within(range, rights, Reach::Kernel)
    }

    fn protect_within(
        &self,
        range: Range<VirtAddr>,
        rights: Rights,
        reach: Reach,
    ) -> Result<Flush<'_, F, M>, ChangeError> {
        check_range::<F>(&range)?;
        if !rights.is_valid() {
            return Err(ChangeError::Rights(rights));
        }
        let locked = self.lock();
        locked.refuse_kernel(&range, reach)?;
        locked.refuse_split_at(range.clone())?;
        if rights.contains(Rights::WRITE) {
            locked.refuse_replicated(range.clone())?;
        }
        let need = locked.need(range.clone(), Purpose::Change);
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        let mut flush = locked.flush();
        change(&locked.exclusive_root(), range.clone(), rights, &mut reserve, &mut flush);
        if rights.contains(Rights::WRITE) && locked.meta(locked.root()).is_kernel() {
            locked.mark_kernel(range);
        }
        flush.note_made();
        Ok(flush)
    }
}

fn change<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    rights: Rights,
    reserve: &mut Reserve<'_, M>,
    flush: &mut Flush<'s, F, M>,
) {
    for slot in slots(table.level, range) {
        match table.get(slot.index) {
            Entry::Empty => continue,
            Entry::Leaf(_) if slot.whole => {
                table.set_rights(slot.index, slot.range, rights, flush);
                continue;
            }
            Entry::Leaf(_) => table.split(slot.index, slot.range.clone(), reserve, flush),
            Entry::Table { .. } => {}
        }
        if let Some(below) = table.enter(slot.index, slot.range.clone(), reserve, flush) {
            change(&below, slot.range, rights, reserve, flush);
        }
    }
}

impl<'s, F: Format, M: Machine> Exclusive<'_, 's, F, M> {
    /// Gives a page these rights, here and in all replicas. Returns the previous page, with the marks of all.
    pub(crate) fn set_rights(
        &self,
        index: usize,
        range: Range<VirtAddr>,
        rights: Rights,
        flush: &mut Flush<'s, F, M>,
    ) -> Option<Leaf> {
        let (size, machine) = (self.level.page_size()?, self.space.machine);
        let with_rights = |leaf: Leaf| {
            let attributes = crate::Attributes { rights, ..leaf.attributes };
            let leaf = Leaf { attributes, ..leaf };
            // While the page was not writable, its references may have increased without a trace in the entry.
            let alone = !is_copied_on_write(&leaf) || machine.is_exclusive(Page { frame: leaf.frame, size });
            let copied = rights.contains(Rights::WRITE) && !alone;
            Leaf { stores: if copied { Stores::Fault } else { Stores::Pass }, ..leaf }
        };
        let old = self.change_leaf(index, with_rights)?;
        // Rights that only grow need no flush: a stale translation faults, and the fault finds nothing to do.
        if !rights.contains(old.attributes.rights) {
            flush.note_leaf(range);
        }
        Some(old)
    }
}
