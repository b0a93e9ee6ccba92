//! Reads a range page by page, under one lock.

use core::ops::Range;

use super::{AddressSpace, Locked, Mapping, check_range};
use crate::address::{Frame, Level, PageSize, VirtAddr};
use crate::entry::load;
use crate::error::RangeError;
use crate::format::{Entry, Format, Leaf};
use crate::machine::{Machine, Table};

/// Why a cursor cannot go to an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SeekError {
    /// The cursor was made for other addresses.
    #[error("{address} is outside of {range:?}, for which the cursor was made")]
    Outside {
        /// The address asked for.
        address: VirtAddr,
        /// The cursor's range.
        range: Range<VirtAddr>,
    },
    /// The address is not the start of a page.
    #[error("{0} is no multiple of 4096")]
    Unaligned(VirtAddr),
}

/// The position in a range.
pub(crate) struct Position<'s> {
    pub(crate) range: Range<VirtAddr>,
    /// A multiple of the smallest page, at most the range's end.
    pub(crate) at: VirtAddr,
    /// A table on the way to `at`, or somewhere else.
    spot: Spot<'s>,
}

/// A table, and the addresses that it translates.
#[derive(Clone, Copy)]
struct Spot<'s> {
    frame: Frame,
    table: &'s Table,
    level: Level,
    first: u64,
    last: u64,
}

impl<'s> Spot<'s> {
    /// Returns the table of `level` that translates `at`.
    #[inline]
    fn new<F: Format, M: Machine>(space: &Locked<'s, F, M>, frame: Frame, level: Level, at: VirtAddr) -> Self {
        let rest = level.table_bytes() - 1;
        Self { frame, table: space.table(frame), level, first: at.0 & !rest, last: at.0 | rest }
    }
}

impl<'s> Position<'s> {
    /// Starts at the beginning of a checked range.
    pub(crate) fn new<F: Format, M: Machine>(space: &Locked<'s, F, M>, range: Range<VirtAddr>) -> Self {
        let at = range.start;
        Self { range, at, spot: Spot::new(space, space.root(), F::TOP, at) }
    }

    #[inline]
    pub(crate) fn seek(&mut self, address: VirtAddr) -> Result<(), SeekError> {
        if !address.is_aligned(PageSize::Small) {
            return Err(SeekError::Unaligned(address));
        }
        if address < self.range.start || self.range.end < address {
            return Err(SeekError::Outside { address, range: self.range.clone() });
        }
        self.at = address;
        Ok(())
    }

    /// Returns the table in which the last walk ended. Code that removes the table [leaves](Self::leave) it.
    #[inline]
    pub(crate) fn table(&self) -> Frame {
        self.spot.frame
    }

    /// Returns whether that table has the entry for this position.
    #[inline]
    pub(crate) fn is_in(&self, table: Frame) -> bool {
        let Spot { frame, first, last, .. } = self.spot;
        frame == table && first <= self.at.0 && self.at.0 <= last
    }

    /// Continues from the root.
    pub(crate) fn leave<F: Format, M: Machine>(&mut self, space: &Locked<'s, F, M>) {
        self.enter(space, space.root(), F::TOP);
    }

    /// Continues from a table on the way to `at`.
    pub(crate) fn enter<F: Format, M: Machine>(&mut self, space: &Locked<'s, F, M>, table: Frame, level: Level) {
        self.spot = Spot::new(space, table, level, self.at);
    }

    /// Returns the entry for `at` in this spot's table, if it is for `at`.
    #[inline(always)]
    fn here<F: Format>(&self) -> Option<Entry> {
        let Spot { table, level, first, last, .. } = self.spot;
        let is_here = first <= self.at.0 && self.at.0 <= last;
        is_here.then(|| F::decode(level, load(&table.0[level.index(self.at)])))
    }

    /// Returns the page at `at`, whose entry in the first root's tables is `leaf`.
    #[inline(always)]
    fn page<F: Format, M: Machine>(&self, space: &Locked<'s, F, M>, leaf: Leaf) -> Option<Mapping> {
        let Spot { frame, level, .. } = self.spot;
        Mapping::new(level, self.at, space.marked_by_all(frame, level, level.index(self.at), leaf))
    }

    /// Goes to the table in which the walk to `at` ends.
    #[inline(never)]
    fn arrive<F: Format, M: Machine>(&mut self, space: &Locked<'s, F, M>) {
        loop {
            match (self.here::<F>(), self.spot.level.below()) {
                (None, _) => self.leave(space),
                (Some(Entry::Table { frame, .. }), Some(below)) => self.enter(space, frame, below),
                (Some(_), _) => return,
            }
        }
    }

    /// Returns the page at this position.
    #[inline(always)]
    pub(crate) fn query<F: Format, M: Machine>(&mut self, space: &Locked<'s, F, M>) -> Option<Mapping> {
        if let Some(Entry::Leaf(leaf)) = self.here::<F>() {
            return self.page(space, leaf);
        }
        self.arrive(space);
        match self.here::<F>() {
            Some(Entry::Leaf(leaf)) => self.page(space, leaf),
            _ => None,
        }
    }

    /// Goes to the next mapped page, if there is none at this position. Returns `None` at the range's end.
    #[inline(always)]
    pub(crate) fn find<F: Format, M: Machine>(&mut self, space: &Locked<'s, F, M>) -> Option<Mapping> {
        loop {
            if self.at >= self.range.end {
                return None;
            }
            // Most pages follow another one in the same table.
            if let Some(Entry::Leaf(leaf)) = self.here::<F>() {
                return self.page(space, leaf);
            }
            self.go_on(space);
        }
    }

    /// Goes to the table with the next page, or to the range's end.
    #[inline(never)]
    fn go_on<F: Format, M: Machine>(&mut self, space: &Locked<'s, F, M>) {
        while self.at < self.range.end {
            self.arrive(space);
            if let Some(Entry::Leaf(_)) = self.here::<F>() {
                return;
            }
            self.pass(self.spot.level);
        }
    }

    /// Returns a mapped page in the place of one of `size`, from this position on.
    #[inline(always)]
    pub(crate) fn first_in<F: Format, M: Machine>(
        &mut self,
        space: &Locked<'s, F, M>,
        size: PageSize,
    ) -> Option<Mapping> {
        if self.spot.level == size.level() && self.here::<F>() == Some(Entry::Empty) {
            return None;
        }
        let part = self.at..VirtAddr(self.at.0.saturating_add(size.bytes()));
        let first = Position::new(space, part).find(space);
        self.arrive(space);
        first
    }

    /// Goes past the entry of `level` at this position.
    #[inline(always)]
    pub(crate) fn pass(&mut self, level: Level) {
        let last = self.at.0 | (level.entry_bytes() - 1);
        // The last entry of all ends beyond the last number.
        self.at = VirtAddr(last.saturating_add(1).min(self.range.end.0));
    }

    /// Returns the next mapped page, and goes past it.
    #[inline(always)]
    pub(crate) fn next<F: Format, M: Machine>(&mut self, space: &Locked<'s, F, M>) -> Option<Mapping> {
        let found = self.find(space)?;
        self.pass(self.spot.level);
        Some(found)
    }
}

/// Reads a range page by page, with the space's lock held, so that nothing changes meanwhile.
///
/// The cursor's owner must not use the space otherwise: that panics if the machine knows the caller
/// ([`Machine::caller`]), and otherwise waits for the lock for ever. As an [`Iterator`] it returns the mapped pages in
/// ascending order, large ones at the ends of the range as a whole.
pub struct Cursor<'s, F: Format, M: Machine> {
    space: Locked<'s, F, M>,
    position: Position<'s>,
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Returns a reading cursor at the start of `range`.
    ///
    /// # Errors
    ///
    /// [`RangeError`].
    pub fn cursor(&self, range: Range<VirtAddr>) -> Result<Cursor<'_, F, M>, RangeError> {
        check_range::<F>(&range)?;
        let space = self.lock();
        let position = Position::new(&space, range);
        Ok(Cursor { space, position })
    }
}

impl<F: Format, M: Machine> Cursor<'_, F, M> {
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
}

impl<F: Format, M: Machine> Iterator for Cursor<'_, F, M> {
    type Item = Mapping;

    #[inline(always)]
    fn next(&mut self) -> Option<Mapping> {
        self.position.next(&self.space)
    }
}
