//! Moves pages to other addresses.

use core::ops::{ControlFlow, Range};

use super::exclusive::Exclusive;
use super::kernel_pages::Reach;
use super::need::Purpose;
use super::placement::Placement;
use super::{AddressSpace, Locked, Mapping, check_range, entry_range, slots};
use crate::address::{Level, VirtAddr};
use crate::error::ChangeError;
use crate::flush::Flush;
use crate::format::{Entry, Format};
use crate::machine::Machine;
use crate::reserve::Reserve;

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Moves everything mapped in `from` to the addresses from `to` on, where nothing is mapped. Tables that lie
    /// completely in both places move with all their pages, even shared ones; other shared tables are copied first.
    ///
    /// Until the flush is waited for, CPUs may reach the pages at the old addresses too.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]; nothing is moved.
    pub fn remap(&self, from: Range<VirtAddr>, to: VirtAddr) -> Result<Flush<'_, F, M>, ChangeError> {
        self.remap_within(from, to, Reach::User)
    }

    /// Does the same as [`remap`](Self::remap), also for the kernel's pages.
    ///
    /// # Safety
    ///
    /// 1. If the calling program runs in this space, it uses none of the kernel's pages in the range, neither as code,
    ///    stack or data, nor through a reference, until they are as before.
    ///
    /// # Errors
    ///
    /// As for [`remap`](Self::remap), except [`ChangeError::Kernel`].
    pub unsafe fn remap_kernel(&self, from: Range<VirtAddr>, to: VirtAddr) -> Result<Flush<'_, F, M>, ChangeError> {
        self.remap_within(from, to, Reach::Kernel)
    }

    fn remap_within(&self, from: Range<VirtAddr>, to: VirtAddr, reach: Reach) -> Result<Flush<'_, F, M>, ChangeError> {
        check_range::<F>(&from)?;
        let bytes = from.end.0 - from.start.0;
        // A destination beyond all addresses contains the last page.
        let end = VirtAddr(to.0.checked_add(bytes).unwrap_or(0));
        check_range::<F>(&(to..end))?;
        if to < from.end && from.start < end {
            return Err(ChangeError::Overlap { from, to });
        }
        let locked = self.lock();
        locked.refuse_kernel(&from, reach)?;
        locked.refuse_pinned(from.clone())?;
        locked.refuse_ringed(from.clone())?;
        locked.refuse_mapped(to..end)?;
        locked.refuse_misaligned(from.clone(), to)?;
        let need = locked.need(from.clone(), Purpose::Change) + Placement::need(&locked, from.clone(), to);
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        let mut flush = locked.flush();
        locked.before_make(to..end, &mut flush);
        let root = locked.exclusive_root();
        let mut job = Job { root: &root, from: from.start, to, reserve: &mut reserve, flush: &mut flush };
        shift(&root, from, &mut job);
        if root.meta.is_kernel() {
            locked.mark_kernel(to..end);
        }
        flush.note_made();
        Ok(flush)
    }
}

struct Job<'j, 'a, 's, 'm, F: Format, M: Machine> {
    root: &'j Exclusive<'a, 's, F, M>,
    from: VirtAddr,
    to: VirtAddr,
    reserve: &'j mut Reserve<'m, M>,
    flush: &'j mut Flush<'s, F, M>,
}

impl<F: Format, M: Machine> Job<'_, '_, '_, '_, F, M> {
    fn target(&self, address: VirtAddr) -> VirtAddr {
        VirtAddr(self.to.0 + (address.0 - self.from.0))
    }

    /// Puts an entry of `level` at `address`.
    fn place(&mut self, address: VirtAddr, level: Level, bits: u64) {
        let mut table = self.root.again();
        while table.level > level {
            let range = entry_range(table.level, address);
            match table.enter_or_create(table.level.index(address), range, self.reserve, self.flush) {
                Some(below) => table = below,
                None => unreachable!("nothing is mapped where pages move to"),
            }
        }
        let index = level.index(address);
        if let (Entry::Table { frame, .. }, Some(below)) = (table.get(index), level.below()) {
            // An empty table, left from an earlier step.
            debug_assert_eq!(table.space.meta(frame).populated(), 0);
            table.take(index);
            table.space.disown(frame, below);
            self.flush.defer_table(frame, below);
        }
        table.fill(index, bits);
    }
}

fn shift<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    job: &mut Job<'_, '_, 's, '_, F, M>,
) {
    let level = table.level;
    for slot in slots(level, range) {
        let to = job.target(slot.range.start);
        match table.get(slot.index) {
            Entry::Empty => continue,
            Entry::Leaf(_) if slot.whole => {
                if let Entry::Leaf(leaf) = table.take(slot.index) {
                    job.place(to, level, F::leaf(level, leaf));
                    job.flush.note_leaf(slot.range);
                }
                continue;
            }
            Entry::Leaf(_) => table.split(slot.index, slot.range.clone(), job.reserve, job.flush),
            Entry::Table { frame, .. }
                if slot.whole
                    && to.0 & (level.entry_bytes() - 1) == 0
                    && table.space.meta(frame).replica().is_none() =>
            {
                if let Entry::Table { frame, stores } = table.take(slot.index) {
                    job.place(to, level, F::table(frame, stores));
                    job.flush.note(slot.range);
                }
                continue;
            }
            Entry::Table { .. } => {}
        }
        if let Some(below) = table.enter(slot.index, slot.range.clone(), job.reserve, job.flush) {
            shift(&below, slot.range.clone(), job);
            if below.meta.populated() == 0 {
                table.detach_empty(slot.index, &below, slot.range, job.flush);
            }
        }
    }
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    fn refuse_mapped(&self, range: Range<VirtAddr>) -> Result<(), ChangeError> {
        let mut result = Ok(());
        let start = range.start;
        let _ = self.walk_in(range, |mapping| {
            result = Err(ChangeError::Mapped { address: mapping.address.max(start) });
            ControlFlow::Break(())
        });
        result
    }

    /// Fails if a large page would move to a misaligned address.
    fn refuse_misaligned(&self, from: Range<VirtAddr>, to: VirtAddr) -> Result<(), ChangeError> {
        let mut result = Ok(());
        let (start, offset) = (from.start, from.start.0 ^ to.0);
        let _ = self.walk_in(from, |mapping| {
            if offset & (mapping.size.bytes() - 1) == 0 {
                return ControlFlow::Continue(());
            }
            let distance = to.0.wrapping_sub(start.0);
            result = Err(ChangeError::Misaligned {
                address: mapping.address,
                to: VirtAddr(mapping.address.0.wrapping_add(distance)),
            });
            ControlFlow::Break(())
        });
        result
    }

    /// Fails if a page of the range is in a table with copies on other nodes: a move would lose their marks.
    fn refuse_ringed(&self, range: Range<VirtAddr>) -> Result<(), ChangeError> {
        self.refuse_if(range, |mapping| self.is_replicated(mapping.address))
    }

    /// Fails if a page of the range is replicated.
    pub(crate) fn refuse_replicated(&self, range: Range<VirtAddr>) -> Result<(), ChangeError> {
        self.refuse_if(range, |mapping| self.has_copies(mapping))
    }

    fn refuse_if(&self, range: Range<VirtAddr>, refused: impl Fn(&Mapping) -> bool) -> Result<(), ChangeError> {
        let mut result = Ok(());
        let _ = self.walk_in(range, |mapping| {
            if !refused(&mapping) {
                return ControlFlow::Continue(());
            }
            result = Err(ChangeError::Replicated { address: mapping.address });
            ControlFlow::Break(())
        });
        result
    }
}
