//! Maps pages.

use core::ops::{ControlFlow, Range};

use super::exclusive::Exclusive;
use super::kernel_pages::is_kernel;
use super::need::Purpose;
use super::{AddressSpace, Locked, account, check_range, slots, whole_entries};
use crate::address::{Frame, Level, PageSize, VirtAddr};
use crate::attributes::{Attributes, Scope, Sharing, Stores};
use crate::error::MapError;
use crate::flush::Flush;
use crate::format::{Format, Leaf};
use crate::machine::Machine;
use crate::reserve::Reserve;

/// The sizes of pages that may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSizes {
    /// The largest to which addresses are aligned, up to this.
    UpTo(PageSize),
    /// Only this one.
    Only(PageSize),
}

impl PageSizes {
    fn largest(self) -> PageSize {
        match self {
            Self::UpTo(size) | Self::Only(size) => size,
        }
    }
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Maps `range` to the physical memory from `first` on.
    ///
    /// Does not call [`Machine::retain`]: the caller hands over a reference to each page. The first store to a private,
    /// writable page with other references ([`Machine::is_exclusive`]) copies it. New pages count as used and written.
    /// Nothing must be flushed, since nothing was mapped; CPUs that remember the absence of a translation (RISC-V
    /// without Svvptc) may fault once.
    ///
    /// # Safety
    ///
    /// 1. The caller has a reference to each page, or the memory is not counted; unless there is an error, the space
    ///    then owns it.
    /// 2. All programs that run in this space may use the memory as `attributes` say, for as long as it is mapped. User
    ///    mode must not get the right to write to memory of the calling program: its code, stacks and data.
    ///
    /// # Errors
    ///
    /// [`MapError`]; nothing is mapped.
    pub unsafe fn map(
        &self,
        range: Range<VirtAddr>,
        first: Frame,
        attributes: Attributes,
        sizes: PageSizes,
    ) -> Result<(), MapError> {
        check_range::<F>(&range)?;
        check_map::<F, M>(&self.machine, first, range.end.0 - range.start.0, attributes)?;
        let largest = sizes.largest();
        if let PageSizes::Only(size) = sizes
            && !(range.start.is_aligned(size) && range.end.is_aligned(size) && first.is_aligned(size))
        {
            return Err(MapError::Size { address: range.start, frame: first, size });
        }
        // A frame with another alignment than its address needs smaller pages.
        let same_offset = |size: PageSize| (range.start.0 ^ first.address()) & (size.bytes() - 1) == 0;
        let largest = PageSize::DESCENDING.into_iter().find(|&size| size <= largest && same_offset(size));
        let largest = largest.unwrap_or(PageSize::Small);

        let locked = self.lock();
        let leaf = Leaf { frame: first, attributes, stores: Stores::Pass, accessed: true, dirty: true };
        if let Some(size) = one_page(&range)
            && size <= largest
            && locked.map_one(&range, size.level(), leaf)
        {
            return Ok(());
        }
        let mut mapped = Ok(());
        let _ = locked.walk_in(range.clone(), |mapping| {
            let address = mapping.address.max(range.start);
            mapped = Err(MapError::Mapped { address, size: mapping.size });
            ControlFlow::Break(())
        });
        mapped?;
        let need = locked.need(range.clone(), Purpose::Fill(largest.level()));
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        // Only unsharing may need a flush.
        let mut flush = locked.flush();
        locked.before_make(range.clone(), &mut flush);
        let job = Job { start: range.start, leaf, largest };
        fill(&locked.exclusive_root(), range.clone(), &job, &mut reserve, &mut flush);
        if is_kernel(&attributes) {
            locked.mark_kernel(range);
        }
        drop(locked);
        drop(reserve);
        flush.note_made();
        flush.settle();
        Ok(())
    }
}

/// Returns the size of the page if `range` is exactly one.
#[inline]
pub(crate) fn one_page(range: &Range<VirtAddr>) -> Option<PageSize> {
    let is_it = |size: &PageSize| range.end.0 - range.start.0 == size.bytes() && range.start.is_aligned(*size);
    PageSize::DESCENDING.into_iter().find(is_it)
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Maps one page if its entry is empty and its table exists and is this space's own, as is usual: then nothing must
    /// be reserved. Returns whether it did.
    fn map_one(&self, range: &Range<VirtAddr>, level: Level, leaf: Leaf) -> bool {
        let table = if F::has_leaf(level) { self.own_table(range.start, level) } else { None };
        let Some(table) = table.filter(|table| table.is_empty_at(range.start)) else { return false };
        if F::BREAK_BEFORE_MAKE {
            self.before_make(range.clone(), &mut self.flush());
        }
        table.fill(level.index(range.start), F::leaf(level, self.as_mapped(level, leaf)));
        self.charge_pages(account::pages_of(level));
        if is_kernel(&leaf.attributes) {
            self.mark_kernel(range.clone());
        }
        self.machine.entries_made();
        true
    }
}

/// Checks that entries can hold these frames and attributes, and that the machine has such frames.
pub(crate) fn check_map<F: Format, M: Machine>(
    machine: &M,
    first: Frame,
    bytes: u64,
    attributes: Attributes,
) -> Result<(), MapError> {
    let end = F::PHYSICAL_END.min(machine.physical_end());
    if first.address().checked_add(bytes).is_none_or(|last| last > end) {
        return Err(MapError::Physical { first, bytes, end, format: F::NAME });
    }
    if !attributes.rights.is_valid() {
        return Err(MapError::Rights(attributes.rights));
    }
    if attributes.memory.0 >= F::MEMORY_TYPES {
        let (memory, types) = (attributes.memory.0, F::MEMORY_TYPES);
        return Err(MapError::MemoryType { memory, types, format: F::NAME });
    }
    if attributes.scope == Scope::Global && attributes.sharing == Sharing::Private {
        return Err(MapError::PrivateGlobal { first });
    }
    Ok(())
}

/// What to map.
struct Job {
    /// The address where `leaf.frame` is mapped.
    start: VirtAddr,
    leaf: Leaf,
    largest: PageSize,
}

fn fill<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    job: &Job,
    reserve: &mut Reserve<'_, M>,
    flush: &mut Flush<'s, F, M>,
) {
    let level = table.level;
    let is_leaf = F::has_leaf(level) && level <= job.largest.level();
    let pages = if is_leaf { whole_entries(level, &range) } else { range.end..range.end };
    if !pages.is_empty() {
        let frame = job.leaf.frame.offset(pages.start.0 - job.start.0);
        let count = (pages.end.0 - pages.start.0) / level.entry_bytes();
        table.fill_pages(level.index(pages.start), count as usize, Leaf { frame, ..job.leaf });
    }
    for part in [range.start..pages.start, pages.end..range.end] {
        for slot in slots(level, part) {
            match table.enter_or_create(slot.index, slot.range.clone(), reserve, flush) {
                Some(below) => fill(&below, slot.range, job, reserve, flush),
                None => unreachable!("nothing was mapped in the range"),
            }
        }
    }
}
