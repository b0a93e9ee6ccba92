//! The marks of use and of writing.

use core::ops::{ControlFlow, Range};

use super::exclusive::Exclusive;
use super::kernel_pages::Reach;
use super::need::Purpose;
use super::{AddressSpace, check_range, slots};
use crate::address::VirtAddr;
use crate::error::{ChangeError, RangeError};
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::machine::Machine;
use crate::reserve::Reserve;

/// A mark in a page's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Used.
    Accessed,
    /// Written.
    Dirty,
}

impl Mark {
    fn is_on(self, leaf: &Leaf) -> bool {
        match self {
            Self::Accessed => leaf.accessed,
            Self::Dirty => leaf.dirty,
        }
    }

    fn taken_off(self, leaf: Leaf) -> Leaf {
        match self {
            Self::Accessed => Leaf { accessed: false, ..leaf },
            Self::Dirty => Leaf { dirty: false, ..leaf },
        }
    }
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Returns how many pages of `range` have a mark on any node. Copies no table.
    ///
    /// # Errors
    ///
    /// [`RangeError`].
    pub fn count_marked(&self, range: Range<VirtAddr>, mark: Mark) -> Result<usize, RangeError> {
        let mut count = 0;
        check_range::<F>(&range)?;
        let locked = self.lock();
        let _ = locked.walk_in(range, |mapping| {
            count += usize::from(mark.is_on(&mapping.leaf));
            ControlFlow::Continue(())
        });
        Ok(count)
    }

    /// Clears a mark of all pages in `range`, and tells which pages had it. Copies shared tables first, since their
    /// marks also belong to the other spaces.
    ///
    /// Until the flush is waited for, CPUs that still hold a translation may use the page without marking it again.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::NoMemory`]; [`ChangeError::Kernel`] on formats whose CPUs do not set both
    /// marks ([`Format::MARKS_ACCESSED`], [`Format::MARKS_DIRTY`]), so that a page without them faults; nothing is
    /// changed.
    pub fn take_marks(
        &self,
        range: Range<VirtAddr>,
        mark: Mark,
        marked: impl FnMut(VirtAddr),
    ) -> Result<Flush<'_, F, M>, ChangeError> {
        let reach = if F::MARKS_ACCESSED && F::MARKS_DIRTY { Reach::Kernel } else { Reach::User };
        self.take_marks_within(range, mark, marked, reach)
    }

    /// Does the same as [`take_marks`](Self::take_marks), on every format also for the kernel's pages.
    ///
    /// # Safety
    ///
    /// 1. If the calling program runs in this space, its CPUs set marks by themselves, or it uses no page of the kernel
    ///    in the range whose mark is taken, neither as code, stack or data, nor through a reference, until
    ///    [`fault`](Self::fault) has marked the page again.
    ///
    /// # Errors
    ///
    /// As for [`take_marks`](Self::take_marks), except [`ChangeError::Kernel`].
    pub unsafe fn take_marks_kernel(
        &self,
        range: Range<VirtAddr>,
        mark: Mark,
        marked: impl FnMut(VirtAddr),
    ) -> Result<Flush<'_, F, M>, ChangeError> {
        self.take_marks_within(range, mark, marked, Reach::Kernel)
    }

    fn take_marks_within(
        &self,
        range: Range<VirtAddr>,
        mark: Mark,
        mut marked: impl FnMut(VirtAddr),
        reach: Reach,
    ) -> Result<Flush<'_, F, M>, ChangeError> {
        check_range::<F>(&range)?;
        let locked = self.lock();
        locked.refuse_kernel(&range, reach)?;
        let need = locked.need(range.clone(), Purpose::Change);
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        let mut flush = locked.flush();
        take(&locked.exclusive_root(), range, mark, &mut marked, &mut reserve, &mut flush);
        Ok(flush)
    }
}

fn take<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    mark: Mark,
    marked: &mut dyn FnMut(VirtAddr),
    reserve: &mut Reserve<'_, M>,
    flush: &mut Flush<'s, F, M>,
) {
    for slot in slots(table.level, range) {
        if let Entry::Leaf(_) = table.get(slot.index) {
            let old = table.change_leaf(slot.index, |leaf| mark.taken_off(leaf));
            if old.is_some_and(|old| mark.is_on(&old)) {
                marked(slot.range.start);
                flush.note_leaf(slot.range);
            }
        } else if let Some(below) = table.enter(slot.index, slot.range.clone(), reserve, flush) {
            take(&below, slot.range, mark, marked, reserve, flush);
        }
    }
}
