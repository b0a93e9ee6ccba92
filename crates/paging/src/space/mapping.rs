//! A page as a space maps it.

use crate::address::{Level, PageSize, VirtAddr};
use crate::format::Leaf;
use crate::machine::Page;

/// A page as a space maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its first address.
    pub address: VirtAddr,
    /// Its length.
    pub size: PageSize,
    /// The entry, with the marks that CPUs of any node have set. Stores may fault even if the entry lets them pass,
    /// since a table above may be shared.
    pub leaf: Leaf,
}

impl Mapping {
    /// Returns the page.
    pub fn page(&self) -> Page {
        Page { frame: self.leaf.frame, size: self.size }
    }

    /// Returns the page that an entry of `level` maps at `address`; `None` if the level has no pages.
    #[inline]
    pub(crate) fn new(level: Level, address: VirtAddr, leaf: Leaf) -> Option<Self> {
        let size = level.page_size()?;
        Some(Self { address: address.align_down(size), size, leaf })
    }
}
