//! Changes a range page by page, under one lock.
//!
//! The cursor reads as [`Cursor`](super::Cursor) does. Before a change it makes the table its own, with those above
//! ([`CursorMut::own`]): there it copies and makes tables and splits large pages, with tables that were reserved for
//! this one step. Following changes in the same table find it [kept](Kept) and reserve nothing.

use core::ops::Range;

use super::cursor::{Position, SeekError};
use super::exclusive::{Exclusive, Kept};
use super::kernel_pages::{Reach, is_kernel};
use super::map::check_map;
use super::need::Purpose;
use super::{AddressSpace, Locked, Mapping, account, check_range, entry_range};
use crate::address::{Frame, PageSize, VirtAddr};
use crate::attributes::{Attributes, Rights, Stores};
use crate::error::{ChangeError, MapError, NoTables};
use crate::flush::Flush;
use crate::format::{Entry, Format, Leaf};
use crate::machine::Machine;
use crate::reserve::Reserve;
use arrayvec::ArrayVec;

/// Why a cursor has mapped nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CursorMapError {
    /// The page does not end in the cursor's range.
    #[error(transparent)]
    Seek(#[from] SeekError),
    /// As for [`AddressSpace::map`].
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Reads and changes a range page by page, with the space's lock held, so that nothing changes in between.
///
/// Each step is done completely, or returns an error and changes nothing; earlier steps stay. A shared table is copied
/// before the first change in it. The cursor collects what must be flushed, and [`finish`](Self::finish) returns it; a
/// cursor that is dropped flushes by itself.
///
/// The cursor's owner must not use the space otherwise: that panics if the machine knows the caller
/// ([`Machine::caller`]), and otherwise waits for the lock for ever.
///
/// ```
/// use palimpsest_paging::format::X86_64;
/// use palimpsest_paging::sim::{Computer, Config, MapSimulated};
/// use palimpsest_paging::{AddressSpace, Attributes, Node, PAGE, PageSize, PageSizes, Rights, SpaceId};
/// use palimpsest_paging::{SpaceOptions, VirtAddr};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let computer = Computer::new::<X86_64>(Config::default());
/// let space = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], SpaceOptions::default())?;
/// let frames = computer.allocate(Node(0), 8 * PAGE, PageSize::Small).ok_or("no memory")?;
/// let range = VirtAddr(0x20_0000)..VirtAddr(0x20_0000 + 8 * PAGE);
/// let write = Attributes::user(Rights::READ | Rights::WRITE);
/// space.map_simulated(range.clone(), frames, write, PageSizes::UpTo(PageSize::Large))?;
///
/// // Takes every second page, and makes the others read-only.
/// let mut cursor = space.cursor_mut(range)?;
/// while let Some(page) = cursor.find() {
///     if page.address.0 / PAGE % 2 == 0 {
///         cursor.take_next()?;
///     } else {
///         cursor.protect_next(Rights::READ)?;
///     }
/// }
/// // The lock is free from here on; the pages when this has been waited for.
/// cursor.finish().dispatch().wait();
/// # assert_eq!(computer.live_frames(), 4);
/// # Ok(())
/// # }
/// ```
#[must_use = "what it takes away stays in TLBs until the flush that `finish` returns is waited for"]
pub struct CursorMut<'s, F: Format, M: Machine> {
    // Dropped first, so that others need not wait for the flush.
    space: Locked<'s, F, M>,
    position: Position<'s>,
    /// The table that was changed last.
    kept: Option<Kept<'s>>,
    flush: Flush<'s, F, M>,
    /// Addresses, from the first to the last, of pages that were removed and may still be in TLBs.
    taken: Option<Range<VirtAddr>>,
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Returns a changing cursor at the start of `range`. Copies and splits nothing before it is changed.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::Kernel`].
    pub fn cursor_mut(&self, range: Range<VirtAddr>) -> Result<CursorMut<'_, F, M>, ChangeError> {
        self.cursor_within(range, Reach::User)
    }

    /// Does the same as [`cursor_mut`](Self::cursor_mut), also for the kernel's pages.
    ///
    /// # Safety
    ///
    /// 1. If the calling program runs in this space, it uses none of the kernel's pages that the cursor changes,
    ///    neither as code, stack or data, nor through a reference, until they are as before.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`].
    pub unsafe fn cursor_mut_kernel(&self, range: Range<VirtAddr>) -> Result<CursorMut<'_, F, M>, ChangeError> {
        self.cursor_within(range, Reach::Kernel)
    }

    fn cursor_within(&self, range: Range<VirtAddr>, reach: Reach) -> Result<CursorMut<'_, F, M>, ChangeError> {
        check_range::<F>(&range)?;
        let space = self.lock();
        space.refuse_kernel(&range, reach)?;
        let position = Position::new(&space, range);
        let flush = space.flush();
        Ok(CursorMut { space, position, kept: None, flush, taken: None })
    }
}

impl<'s, F: Format, M: Machine> CursorMut<'s, F, M> {
    /// Returns the cursor's position: an address of its range, or the range's end.
    pub fn address(&self) -> VirtAddr {
        self.position.at
    }

    /// Returns the addresses where it may go.
    pub fn range(&self) -> Range<VirtAddr> {
        self.position.range.clone()
    }

    /// Goes to `address`, forwards or backwards.
    ///
    /// # Errors
    ///
    /// [`SeekError`]; the cursor stays where it was.
    #[inline]
    pub fn seek(&mut self, address: VirtAddr) -> Result<(), SeekError> {
        self.position.seek(address)
    }

    /// Returns the page that contains the cursor's address, if one is mapped there; `None` at the range's end.
    #[inline]
    pub fn query(&mut self) -> Option<Mapping> {
        if self.position.at < self.position.range.end { self.position.query(&self.space) } else { None }
    }

    /// Goes to the next mapped page, if there is none here, and stays before it. Goes to the range's end if there is
    /// none at all.
    pub fn find(&mut self) -> Option<Mapping> {
        self.position.find(&self.space)
    }

    /// Goes past the next mapped page, and returns it. Returns `None` if there is no other up to the range's end.
    #[inline]
    pub fn skip_next(&mut self) -> Option<Mapping> {
        self.position.next(&self.space)
    }

    /// Maps one page here, of `size` and at `frame`, and goes past it. References and marks are as with
    /// [`AddressSpace::map`].
    ///
    /// If this cursor has removed pages there that CPUs may still remember, it flushes them first.
    ///
    /// # Safety
    ///
    /// 1, 2. As for [`AddressSpace::map`].
    ///
    /// # Errors
    ///
    /// [`CursorMapError`]; nothing is mapped, and the cursor stays where it was.
    #[inline]
    pub unsafe fn map(&mut self, frame: Frame, size: PageSize, attributes: Attributes) -> Result<(), CursorMapError> {
        let at = self.position.at;
        check_map::<F, M>(self.space.machine, frame, size.bytes(), attributes)?;
        if !at.is_aligned(size) || !frame.is_aligned(size) {
            return Err(MapError::Size { address: at, frame, size }.into());
        }
        let part = at..VirtAddr(at.0.saturating_add(size.bytes()));
        if part.end > self.position.range.end {
            return Err(SeekError::Outside { address: part.end, range: self.position.range.clone() }.into());
        }
        let kept = self.here().filter(|&(kept, of)| of == size && kept.take_up(&self.space).is_empty_at(at));
        if kept.is_none()
            && let Some(mapping) = self.position.first_in(&self.space, size)
        {
            return Err(MapError::Mapped { address: mapping.address.max(at), size: mapping.size }.into());
        }
        // Even before a table is made there: CPUs may remember one.
        if self.taken.as_ref().is_some_and(|taken| taken.start < part.end && part.start < taken.end) {
            self.flush.settle();
            self.taken = None;
        }
        self.space.before_make(part.clone(), &mut self.flush);
        let kept = match kept {
            Some((kept, _)) => kept,
            None => self.descend(size, part.clone(), Purpose::Fill(size.level())).map_err(MapError::from)?,
        };
        let table = kept.take_up(&self.space);
        let index = table.level.index(at);
        let leaf = Leaf { frame, attributes, stores: Stores::Pass, accessed: true, dirty: true };
        table.fill(index, F::leaf(table.level, self.space.as_mapped(table.level, leaf)));
        self.space.charge_pages(account::pages_of(table.level));
        if is_kernel(&attributes) {
            self.space.mark_kernel(part);
        }
        self.flush.note_made();
        self.position.pass(size.level());
        Ok(())
    }

    /// Unmaps the next page, moves past it, and returns what it was, with its marks. Returns none if the range has no
    /// further page.
    ///
    /// If only a part of a large page lies in the range, or from the cursor's address on, the largest page in that part
    /// is split off and removed. Tables that become empty go too. The page's reference is given back
    /// ([`Machine::release`]) after the flush has been waited for: to map it elsewhere, [retain](Machine::retain) it
    /// first.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NoMemory`], [`ChangeError::Pinned`], [`ChangeError::Replicated`]; nothing is unmapped, and the
    /// cursor stays before that page.
    #[inline(always)]
    pub fn take_next(&mut self) -> Result<Option<Mapping>, ChangeError> {
        let at = self.position.at;
        let no_pins = self.space.meta(self.space.root()).pinned() == 0;
        // Most pages follow another one in the same table.
        if let Some((kept, size)) = self.here().filter(|&(_, size)| no_pins && self.fits(size)) {
            let table = kept.take_up(&self.space);
            let part = at..VirtAddr(at.0 + size.bytes());
            if let Some(leaf) = table.clear_leaf(table.level.index(at), part, &mut self.flush) {
                let is_empty = table.meta.populated() == 0;
                self.took(at, size, is_empty);
                return Ok(Some(Mapping { address: at, size, leaf }));
            }
        }
        self.take_found()
    }

    #[inline(never)]
    fn take_found(&mut self) -> Result<Option<Mapping>, ChangeError> {
        let Some(found) = self.position.find(&self.space) else { return Ok(None) };
        if self.space.meta(self.space.root()).pinned() > 0 && self.space.machine.is_pinned(found.page()) {
            return Err(ChangeError::Pinned { address: found.address });
        }
        let (part, size) = self.part(&found)?;
        let address = part.start;
        let table = self.own(size, part.clone(), Purpose::Change)?.take_up(&self.space);
        let Some(leaf) = table.clear_leaf(table.level.index(address), part, &mut self.flush) else {
            unreachable!("the page was found under the same lock");
        };
        let is_empty = table.meta.populated() == 0;
        self.took(address, size, is_empty);
        Ok(Some(Mapping { address, size, leaf }))
    }

    /// Goes past a removed page, and gives its table back if that has become empty.
    #[inline(always)]
    fn took(&mut self, address: VirtAddr, size: PageSize, is_empty: bool) {
        self.position.pass(size.level());
        let part = address..VirtAddr(address.0 + size.bytes());
        let region = if is_empty { self.prune(part) } else { part };
        self.taken = Some(match self.taken.take() {
            Some(taken) => taken.start.min(region.start)..taken.end.max(region.end),
            None => region,
        });
    }

    /// Gives the next page these rights, goes past it, and returns what it was. Returns `None` if there is no other up
    /// to the range's end.
    ///
    /// Large pages are split as by [`take_next`](Self::take_next); for the rest see [`AddressSpace::protect`].
    ///
    /// # Errors
    ///
    /// [`ChangeError::NoMemory`], [`ChangeError::Rights`], [`ChangeError::Replicated`], [`ChangeError::Pinned`];
    /// nothing is changed, and the cursor stays before that page.
    #[inline]
    pub fn protect_next(&mut self, rights: Rights) -> Result<Option<Mapping>, ChangeError> {
        if !rights.is_valid() {
            return Err(ChangeError::Rights(rights));
        }
        let Some(found) = self.position.find(&self.space) else { return Ok(None) };
        if rights.contains(Rights::WRITE) && self.space.has_copies(&found) {
            return Err(ChangeError::Replicated { address: found.address });
        }
        let (part, size) = self.part(&found)?;
        let table = self.own(size, part.clone(), Purpose::Change)?.take_up(&self.space);
        let Some(leaf) = table.set_rights(table.level.index(part.start), part.clone(), rights, &mut self.flush) else {
            unreachable!("the page was found under the same lock");
        };
        if rights.contains(Rights::WRITE) && self.space.meta(self.space.root()).is_kernel() {
            self.space.mark_kernel(part.clone());
        }
        self.flush.note_made();
        self.position.pass(size.level());
        Ok(Some(Mapping { address: part.start, size, leaf }))
    }

    /// Ends the cursor, which frees the lock. Returns the flush, to be [dispatched](Flush::dispatch) and waited for.
    pub fn finish(self) -> Flush<'s, F, M> {
        self.flush
    }

    /// Returns the table that was changed last, if it has the entry for this position, and the size of its pages.
    #[inline]
    fn here(&self) -> Option<(Kept<'s>, PageSize)> {
        let kept = self.kept.filter(|kept| self.position.is_in(kept.frame))?;
        Some((kept, kept.level.page_size()?))
    }

    /// Returns what a step changes of the page found here: all of it, or the largest page from here on that is in the
    /// range.
    #[inline]
    fn part(&self, found: &Mapping) -> Result<(Range<VirtAddr>, PageSize), ChangeError> {
        let (at, size) = (self.position.at, found.size);
        let size = if self.fits(size) { size } else { self.smaller_part(found)? };
        Ok((at..VirtAddr(at.0 + size.bytes()), size))
    }

    /// Returns whether a page of `size` from here on is in the range.
    #[inline]
    fn fits(&self, size: PageSize) -> bool {
        let (at, end) = (self.position.at, self.position.range.end);
        at.is_aligned(size) && at.0.checked_add(size.bytes()).is_some_and(|last| last <= end.0)
    }

    #[cold]
    fn smaller_part(&self, found: &Mapping) -> Result<PageSize, ChangeError> {
        self.space.refuse_split(found)?;
        let smaller = PageSize::DESCENDING.into_iter().filter(|&size| size < found.size);
        Ok(smaller.into_iter().find(|&size| self.fits(size)).unwrap_or(PageSize::Small))
    }

    /// Returns the table with the entry of a page of `size` here, ready to be written. `part` is that page.
    ///
    /// Fails before anything is changed.
    #[inline(always)]
    fn own(&mut self, size: PageSize, part: Range<VirtAddr>, purpose: Purpose) -> Result<Kept<'s>, NoTables> {
        match self.kept {
            Some(kept) if kept.level == size.level() && kept.frame == self.position.table() => Ok(kept),
            _ => self.descend(size, part, purpose),
        }
    }

    #[inline(never)]
    fn descend(&mut self, size: PageSize, part: Range<VirtAddr>, purpose: Purpose) -> Result<Kept<'s>, NoTables> {
        let need = self.space.need(part.clone(), purpose);
        let reserve = || Reserve::new(self.space.machine, need, self.space.home());
        let mut reserve = match reserve() {
            // Memory that this cursor has released may suffice.
            Err(_) if self.flush.keeps_memory() => {
                self.flush.settle();
                reserve()?
            }
            answer => answer?,
        };
        let mut table = self.space.exclusive_root();
        while table.level > size.level() {
            let index = table.level.index(part.start);
            if let Entry::Leaf(_) = table.get(index) {
                table.split(index, part.clone(), &mut reserve, &mut self.flush);
            }
            match table.enter_or_create(index, part.clone(), &mut reserve, &mut self.flush) {
                Some(below) => table = below,
                None => unreachable!("what is no table was split or was empty"),
            }
        }
        let kept = table.keep();
        self.position.enter(&self.space, kept.frame, kept.level);
        self.kept = Some(kept);
        Ok(kept)
    }

    /// Gives back the tables on the way to `part` that have become empty. All of them are this space's own. Returns the
    /// addresses that they translated.
    #[inline(never)]
    fn prune(&mut self, part: Range<VirtAddr>) -> Range<VirtAddr> {
        let mut region = part.clone();
        self.kept = None;
        self.position.leave(&self.space);
        let mut way = ArrayVec::<Exclusive<'_, 's, F, M>, 5>::new();
        let mut table = self.space.exclusive_root();
        while let (Entry::Table { frame, .. }, Some(below)) =
            (table.get(table.level.index(part.start)), table.level.below())
        {
            way.push(core::mem::replace(&mut table, Exclusive::at(&self.space, frame, below)));
        }
        while table.meta.populated() == 0
            && let Some(above) = way.pop()
        {
            let index = above.level.index(part.start);
            above.detach_empty(index, &table, part.clone(), &mut self.flush);
            region = entry_range(above.level, part.start);
            table = above;
        }
        region
    }
}
