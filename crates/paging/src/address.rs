//! Addresses, frames, levels and page sizes. Virtual and physical addresses are different types.

use core::fmt;
use core::ops::Range;

/// Bytes in a table and in the smallest page.
pub const PAGE: u64 = 4096;

/// The last page of all addresses. No range contains it, since the range would end at 2^64.
pub const LAST_PAGE: VirtAddr = VirtAddr(u64::MAX - PAGE + 1);

/// Entries of a table.
pub const ENTRIES: usize = 512;

/// A virtual address as a number, without the promise that a format can translate it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// Returns the address rounded down to a multiple of `size`.
    #[inline]
    pub const fn align_down(self, size: PageSize) -> Self {
        Self(self.0 & !(size.bytes() - 1))
    }

    /// Returns whether the address is a multiple of `size`.
    #[inline]
    pub const fn is_aligned(self, size: PageSize) -> bool {
        self.0 & (size.bytes() - 1) == 0
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A physical address that is a multiple of [`PAGE`]: where a table or a page lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Frame(u64);

impl Frame {
    /// Returns the frame at `address`; `None` if that is not a multiple of [`PAGE`].
    #[inline]
    pub const fn new(address: u64) -> Option<Self> {
        if address & (PAGE - 1) == 0 { Some(Self(address)) } else { None }
    }

    /// Returns the frame that contains `address`.
    #[inline]
    pub const fn containing(address: u64) -> Self {
        Self(address & !(PAGE - 1))
    }

    /// Returns the frame's first physical address.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0
    }

    /// Returns the frame `bytes` behind this one, rounded down to a frame.
    #[inline]
    pub const fn offset(self, bytes: u64) -> Self {
        Self::containing(self.0 + bytes)
    }

    /// Returns whether the address is a multiple of `size`.
    #[inline]
    pub const fn is_aligned(self, size: PageSize) -> bool {
        self.0 & (size.bytes() - 1) == 0
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {:#x}", self.0)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A level of tables, counted from the pages: an entry of a table of level 1 translates 4 KiB, of level 2 2 MiB, and so
/// on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Level(u8);

impl Level {
    /// The level of tables whose entries are pages.
    pub const LAST: Self = Self(1);

    /// Returns level `number`, 1 to 5.
    ///
    /// # Panics
    ///
    /// For other numbers.
    #[inline]
    pub const fn new(number: u8) -> Self {
        assert!(number >= 1 && number <= 5, "levels are 1 to 5");
        Self(number)
    }

    /// Returns the level's number, 1 to 5.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns the level of the tables that this level's entries point to.
    #[inline]
    pub const fn below(self) -> Option<Self> {
        if self.0 > 1 { Some(Self(self.0 - 1)) } else { None }
    }

    /// Returns the bytes that one entry translates.
    #[inline]
    pub const fn entry_bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Returns the bytes that a whole table translates.
    #[inline]
    pub const fn table_bytes(self) -> u64 {
        1 << (self.shift() + 9)
    }

    /// Returns the index of the entry that translates `address`.
    #[inline]
    pub const fn index(self, address: VirtAddr) -> usize {
        (address.0 >> self.shift()) as usize & (ENTRIES - 1)
    }

    /// Returns the size of a page in an entry of this level, if a format has such pages.
    #[inline]
    pub const fn page_size(self) -> Option<PageSize> {
        match self.0 {
            1 => Some(PageSize::Small),
            2 => Some(PageSize::Large),
            3 => Some(PageSize::Giant),
            _ => None,
        }
    }

    #[inline]
    const fn shift(self) -> u32 {
        12 + 9 * (self.0 as u32 - 1)
    }
}

/// The size of a page: what one leaf entry maps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Giant,
}

impl PageSize {
    /// All sizes, largest first.
    pub const DESCENDING: [Self; 3] = [Self::Giant, Self::Large, Self::Small];

    /// Returns the size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.level().entry_bytes()
    }

    /// Returns the level of tables with such leaves.
    #[inline]
    pub const fn level(self) -> Level {
        match self {
            Self::Small => Level(1),
            Self::Large => Level(2),
            Self::Giant => Level(3),
        }
    }
}

/// Returns whether `range` is a non-empty range of whole pages.
#[inline]
pub(crate) fn is_page_range(range: &Range<VirtAddr>) -> bool {
    range.start < range.end && range.start.is_aligned(PageSize::Small) && range.end.is_aligned(PageSize::Small)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_cut_addresses_as_the_manuals_say() {
        // Intel SDM volume 3, table 5-14: bits 47:39, 38:30, 29:21, 20:12; LA57: 56:48.
        let address = VirtAddr(0x1ff << 48 | 0x155 << 39 | 0x0aa << 30 | 0x133 << 21 | 0x0cc << 12 | 0xabc);
        let indices = [5, 4, 3, 2, 1].map(|level| Level::new(level).index(address));
        assert_eq!(indices, [0x1ff, 0x155, 0x0aa, 0x133, 0x0cc]);
        assert_eq!(Level::LAST.entry_bytes(), PAGE);
        assert_eq!(PageSize::Giant.bytes(), 1 << 30);
        assert_eq!(Level::new(5).table_bytes(), 1 << 57);
    }

    #[test]
    fn frames_are_aligned() {
        assert_eq!(Frame::new(0x1001), None);
        assert_eq!(Frame::containing(0x1fff), Frame::new(0x1000).unwrap());
        assert!(Frame::new(0x20_0000).unwrap().is_aligned(PageSize::Large));
        assert!(!Frame::new(0x20_1000).unwrap().is_aligned(PageSize::Large));
    }
}
