//! How entries are encoded: one module for each architecture.
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

/// A page, as its entry describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Its first frame.
    pub frame: Frame,
    /// Its attributes. They include the right to write even while stores fault because the page must be copied first.
    pub attributes: Attributes,
    /// Whether stores reach memory.
    pub stores: Stores,
    /// Whether it was used since the mark was last cleared.
    pub accessed: bool,
    /// Whether it was written since the mark was last cleared.
    pub dirty: bool,
}

impl Leaf {
    /// Returns this page with the marks of `other` added.
    #[inline]
    pub(crate) fn marked_as(self, other: &Self) -> Self {
        Self { accessed: self.accessed || other.accessed, dirty: self.dirty || other.dirty, ..self }
    }
}

/// The meaning of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Nothing is mapped.
    Empty,
    /// A table of the level below.
    Table {
        /// Its frame.
        frame: Frame,
        /// Whether stores to everything below fault.
        stores: Stores,
    },
    /// A page.
    Leaf(Leaf),
}

/// How the hardware learns that a table is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareMode {
    /// The entry that points to the table removes the right to write from everything below. Writes one entry.
    TableProtect,
    /// Every leaf of a shared table removes it. Writes 512 entries when a table is first shared.
    LeafProtect,
}

/// An architecture's tables.
///
/// Implementations are data: they touch no hardware and run on any host.
pub trait Format: Sized + Send + Sync + 'static {
    /// The name, for people.
    const NAME: &'static str;

    /// The level of the root.
    const TOP: Level;

    /// How tables can be shared.
    const SHARE_MODE: ShareMode;

    /// Whether the CPU marks pages as accessed by itself. If not, an access to an unmarked page faults.
    const MARKS_ACCESSED: bool;

    /// Whether the CPU marks pages as dirty by itself. If not, a store to an unmarked page faults.
    const MARKS_DIRTY: bool;

    /// Whether a fault removes the TLB's entry for its address. If not, a fault that finds nothing to do must flush, or
    /// it recurs for ever: the tables may allow what the TLB does not.
    const FAULT_EVICTS: bool;

    /// Whether an entry must be empty, and flushed, before it changes a page's size or frame, since the CPU may
    /// otherwise combine old and new (Arm ARM D8.16.1).
    const BREAK_BEFORE_MAKE: bool;

    /// Returns whether the address can be translated (is canonical).
    fn is_valid(address: VirtAddr) -> bool;

    /// Returns whether an entry of this level can be a page.
    fn has_leaf(level: Level) -> bool;

    /// The first physical address that entries cannot hold.
    const PHYSICAL_END: u64;

    /// The number of memory types that entries can name, from 0 on.
    const MEMORY_TYPES: u8;

    /// Decodes an entry.
    fn decode(level: Level, bits: u64) -> Entry;

    /// Encodes the entry for a page. `leaf.frame` is aligned to what the level maps, the level can have leaves, and the
    /// rights are valid.
    fn leaf(level: Level, leaf: Leaf) -> u64;

    /// Encodes the entry for a table. [`Stores::Fault`] is only passed with [`ShareMode::TableProtect`].
    fn table(frame: Frame, stores: Stores) -> u64;
}

/// Returns whether all bits from `top_bit` on are equal, as in sign-extended addresses.
#[inline]
const fn is_sign_extended(address: VirtAddr, top_bit: u32) -> bool {
    let above = (address.0 as i64) >> top_bit;
    above == 0 || above == -1
}

#[cfg(test)]
mod tests;
