//! Reading translations.

use core::ops::{ControlFlow, Range};

use super::cursor::Position;
use super::{AddressSpace, Locked};
use crate::address::{Level, PageSize, VirtAddr};
use crate::error::RangeError;
use crate::format::{Entry, Format, Leaf};
use crate::machine::{Machine, Page};

/// A page as a space maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its first address.
    pub address: VirtAddr,
    /// Its length.
    pub size: PageSize,
    /// What the entry says. Stores may fault though they pass here, since a table above is shared.
    pub leaf: Leaf,
}

impl Mapping {
    /// The page.
    pub fn page(&self) -> Page {
        Page { frame: self.leaf.frame, size: self.size }
    }
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// The page that holds `address`, if one is mapped there.
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
    /// The page that holds `address`.
    pub(crate) fn find(&self, address: VirtAddr) -> Option<Mapping> {
        let (mut table, mut level) = (self.root(), F::TOP);
        loop {
            match self.entry(table, level, level.index(address)) {
                Entry::Empty => return None,
                Entry::Leaf(leaf) => return mapping(level, address, leaf),
                Entry::Table { frame, .. } => (table, level) = (frame, level.below()?),
            }
        }
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

#[inline]
pub(crate) fn mapping(level: Level, address: VirtAddr, leaf: Leaf) -> Option<Mapping> {
    let size = level.page_size()?;
    Some(Mapping { address: address.align_down(size), size, leaf })
}
