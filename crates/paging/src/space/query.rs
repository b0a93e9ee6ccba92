//! Reads translations.

use core::ops::{ControlFlow, Range};

use super::cursor::Position;
use super::{AddressSpace, Locked, Mapping};
use crate::address::{Frame, Level, VirtAddr};
use crate::error::RangeError;
use crate::format::{Entry, Format, Leaf};
use crate::machine::Machine;

/// The marks of a page.
#[derive(Clone, Copy, Default)]
struct Marks {
    accessed: bool,
    dirty: bool,
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Returns the page that contains `address`, if one is mapped there.
    pub fn query(&self, address: VirtAddr) -> Option<Mapping> {
        if F::is_valid(address) { self.lock().find(address) } else { None }
    }

    /// Shows `visit` every page that shares an address with `range`, in ascending order, until it breaks.
    ///
    /// # Errors
    ///
    /// [`RangeError`].
    pub fn walk(
        &self,
        range: Range<VirtAddr>,
        visit: impl FnMut(Mapping) -> ControlFlow<()>,
    ) -> Result<(), RangeError> {
        let _ = self.cursor(range)?.try_for_each(visit);
        Ok(())
    }
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Returns the page that contains `address`.
    pub(crate) fn find(&self, address: VirtAddr) -> Option<Mapping> {
        let (mut table, mut level) = (self.root(), F::TOP);
        loop {
            match self.entry(table, level, level.index(address)) {
                Entry::Empty => return None,
                Entry::Leaf(leaf) => {
                    let marked = self.marked_by_all(table, level, level.index(address), leaf);
                    return Mapping::new(level, address, marked);
                }
                Entry::Table { frame, .. } => (table, level) = (frame, level.below()?),
            }
        }
    }

    /// Returns a page of the first root's `table`, with the marks that CPUs of all nodes have set in their copies of
    /// it.
    #[inline(always)]
    pub(crate) fn marked_by_all(&self, table: Frame, level: Level, index: usize, leaf: Leaf) -> Leaf {
        if self.inner.roots.len() == 1 {
            return leaf;
        }
        let Marks { accessed, dirty } = self.marks_in_copies(table, level, index);
        Leaf { accessed: leaf.accessed || accessed, dirty: leaf.dirty || dirty, ..leaf }
    }

    /// Returns the marks in the other nodes' copies of `table`.
    ///
    /// Takes no leaf and is not inlined: without copies, an entry is decoded only as far as needed.
    #[inline(never)]
    fn marks_in_copies(&self, table: Frame, level: Level, index: usize) -> Marks {
        self.ring_of(table).skip(1).fold(Marks::default(), |marks, copy| match self.entry(copy, level, index) {
            Entry::Leaf(there) => {
                Marks { accessed: marks.accessed || there.accessed, dirty: marks.dirty || there.dirty }
            }
            Entry::Empty | Entry::Table { .. } => marks,
        })
    }

    /// Shows `visit` every page that shares an address with `range`, in ascending order, until it breaks.
    pub(crate) fn walk_in(
        &self,
        range: Range<VirtAddr>,
        mut visit: impl FnMut(Mapping) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut position = Position::new(self, range);
        while let Some(mapping) = position.next(self) {
            visit(mapping)?;
        }
        ControlFlow::Continue(())
    }
}
