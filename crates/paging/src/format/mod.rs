//! How entries are written, one module for each architecture.
//!
//! An entry's bits mean different things at different levels (x86-64: bit 7 is PAT in a page and PS above; bit 12 is
//! part of the address in a page and PAT above), so that nothing here reads or writes an entry without its [`Level`].

mod aarch64;
mod riscv;
mod x86_64;

pub use aarch64::{AArch64, AArch64Upper};
pub use riscv::{Sv39, Sv48};
pub use x86_64::{X86_64, X86_64La57};

use crate::address::{Frame, Level, VirtAddr};
use crate::attributes::{Attributes, Stores};

/// A page as its entry describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Its first frame.
    pub frame: Frame,
    /// What it is for. The right to write is here even while stores fault, because the page must be copied first.
    pub attributes: Attributes,
    /// Whether stores reach memory.
    pub stores: Stores,
    /// It has been used since the mark was taken away.
    pub accessed: bool,
    /// It has been written since the mark was taken away.
    pub dirty: bool,
}

impl Leaf {
    /// This page with the marks of `other` too.
    #[inline]
    pub(crate) fn marked_as(self, other: &Self) -> Self {
        Self { accessed: self.accessed || other.accessed, dirty: self.dirty || other.dirty, ..self }
    }
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Nothing is mapped.
    Empty,
    /// A table of the level below.
    Table {
        /// Where it lies.
        frame: Frame,
        /// Whether stores to everything below fault.
        stores: Stores,
    },
    /// A page.
    Leaf(Leaf),
}

/// How sharing a table is made known to the hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareMode {
    /// The entry that points to a table takes away the right to write from all below. One entry is written.
    TableProtect,
    /// Every leaf of a shared table takes it away. 512 entries are written, when a table is first shared.
    LeafProtect,
}

/// An architecture's tables.
///
/// Implementations are data: they touch no hardware and run on any host.
pub trait Format: Sized + Send + Sync + 'static {
    /// For people.
    const NAME: &'static str;

    /// The level of the root.
    const TOP: Level;

    /// How tables can be shared.
    const SHARE_MODE: ShareMode;

    /// Whether the CPU marks pages as accessed by itself. Where it does not, an unmarked page faults.
    const MARKS_ACCESSED: bool;

    /// Whether the CPU marks pages as dirty by itself. Where it does not, a store to an unmarked page faults.
    const MARKS_DIRTY: bool;

    /// Whether an access that the TLB does not allow, though the tables may, drops what the TLB says of its address.
    /// Where it does not, a fault that finds nothing to do must flush, or it comes again for ever.
    const FAULT_EVICTS: bool;

    /// Whether an entry that changes a page's size or frame must pass through an empty one, flushed, since the CPU may
    /// otherwise combine old and new (Arm ARM D8.16.1).
    const BREAK_BEFORE_MAKE: bool;

    /// Whether the address can be translated (is canonical).
    fn is_valid(address: VirtAddr) -> bool;

    /// Whether an entry of this level can be a page.
    fn has_leaf(level: Level) -> bool;

    /// The first physical address that entries cannot hold.
    const PHYSICAL_END: u64;

    /// How many memory types entries can name, from 0 on.
    const MEMORY_TYPES: u8;

    /// What the entry says.
    fn decode(level: Level, bits: u64) -> Entry;

    /// The entry for a page. `leaf.frame` is aligned to what the level maps, the level can have leaves, and the rights
    /// are valid.
    fn leaf(level: Level, leaf: Leaf) -> u64;

    /// The entry for a table. [`Stores::Fault`] is only asked for with [`ShareMode::TableProtect`].
    fn table(frame: Frame, stores: Stores) -> u64;
}

/// Whether bits from `top_bit` on are all equal to it, as for addresses that are extended by their sign.
#[inline]
const fn is_sign_extended(address: VirtAddr, top_bit: u32) -> bool {
    let above = (address.0 as i64) >> top_bit;
    above == 0 || above == -1
}

#[cfg(test)]
mod tests;
