//! x86-64, 4 and 5 levels. Intel SDM volume 3, 5.5 ("4-level paging and 5-level paging"), tables 5-15 to 5-20.

use super::{Entry, Format, Leaf, ShareMode, is_sign_extended};
use crate::address::{Frame, Level, VirtAddr};
use crate::attributes::{Attributes, MemoryType, Privilege, Rights, Scope, Sharing, Stores};

/// Four levels: 48 bits of virtual addresses.
#[derive(Clone, Copy, Debug)]
pub enum X86_64 {}

/// Five levels (LA57): 57 bits of virtual addresses.
#[derive(Clone, Copy, Debug)]
pub enum X86_64La57 {}

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// PWT and PCD: bits 0 and 1 of the PAT index.
const TYPE_LOW: u32 = 3;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// PS: a page, at levels 2 and 3.
const LARGE: u64 = 1 << 7;
/// Bit 2 of the PAT index, in a 4 KiB page.
const TYPE_HIGH_SMALL: u64 = 1 << 7;
/// Bit 2 of the PAT index, in larger pages.
const TYPE_HIGH_LARGE: u64 = 1 << 12;
const GLOBAL: u64 = 1 << 8;
// The CPU ignores bits 11:9, and all but P if P is clear.
/// The page is writable by its rights.
const MAY_WRITE: u64 = 1 << 9;
/// A page without rights, whose P is clear.
const INACCESSIBLE: u64 = 1 << 10;
/// A write after a fork does not copy the page.
const SHARED: u64 = 1 << 11;
const NO_EXECUTE: u64 = 1 << 63;
/// Memory types are entries of the PAT.
const TYPES: u8 = 8;
/// Bits 51:12.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

#[inline]
fn decode(level: Level, bits: u64) -> Entry {
    let small = level == Level::LAST;
    if bits & (PRESENT | INACCESSIBLE) == 0 {
        return Entry::Empty;
    }
    if !small && bits & LARGE == 0 {
        let stores = if bits & WRITE != 0 { Stores::Pass } else { Stores::Fault };
        return Entry::Table { frame: Frame::containing(bits & ADDRESS), stores };
    }
    let type_high = if small { TYPE_HIGH_SMALL } else { TYPE_HIGH_LARGE };
    let mut rights = Rights::empty();
    if bits & PRESENT != 0 {
        rights |= Rights::READ;
        rights.set(Rights::WRITE, bits & (WRITE | MAY_WRITE) != 0);
        rights.set(Rights::EXECUTE, bits & NO_EXECUTE == 0);
    }
    let bits = withheld(level, bits);
    let memory = (bits >> TYPE_LOW & 3) as u8 | if bits & type_high != 0 { 4 } else { 0 };
    Entry::Leaf(Leaf {
        frame: Frame::containing(bits & ADDRESS & !(level.entry_bytes() - 1)),
        attributes: Attributes {
            rights,
            privilege: if bits & USER != 0 { Privilege::User } else { Privilege::Kernel },
            scope: if bits & GLOBAL != 0 { Scope::Global } else { Scope::Local },
            sharing: if bits & SHARED != 0 { Sharing::Shared } else { Sharing::Private },
            memory: MemoryType(memory),
        },
        stores: if rights.contains(Rights::WRITE) && bits & WRITE == 0 { Stores::Fault } else { Stores::Pass },
        accessed: bits & ACCESSED != 0,
        dirty: bits & DIRTY != 0,
    })
}

#[inline]
fn leaf(level: Level, leaf: Leaf) -> u64 {
    let small = level == Level::LAST;
    let Attributes { rights, privilege, scope, sharing, memory } = leaf.attributes;
    let mut bits = leaf.frame.address() | u64::from(memory.0 & 3) << TYPE_LOW;
    let mut set = |bit: u64, when: bool| bits |= if when { bit } else { 0 };
    set(PRESENT, !rights.is_empty());
    set(INACCESSIBLE, rights.is_empty());
    set(WRITE, rights.contains(Rights::WRITE) && leaf.stores == Stores::Pass);
    set(MAY_WRITE, rights.contains(Rights::WRITE));
    set(NO_EXECUTE, !rights.contains(Rights::EXECUTE));
    set(USER, privilege == Privilege::User);
    set(GLOBAL, scope == Scope::Global);
    set(SHARED, sharing == Sharing::Shared);
    set(if small { TYPE_HIGH_SMALL } else { TYPE_HIGH_LARGE }, memory.0 & 4 != 0);
    set(LARGE, !small);
    set(ACCESSED, leaf.accessed);
    set(DIRTY, leaf.dirty);
    withheld(level, bits)
}

/// Inverts the bits of the frame's number in an entry whose P is clear; returns other entries unchanged. CPUs with the
/// L1 terminal fault (CVE-2018-3620) load speculatively from the address in an entry that is not present. At the
/// inverted address there is no memory, as long as memory ends in the lower half of all physical addresses (Linux does
/// the same, `pgtable-invert.h`).
#[inline]
const fn withheld(level: Level, bits: u64) -> u64 {
    let number = ADDRESS & !(level.entry_bytes() - 1);
    if bits & PRESENT == 0 { bits ^ number } else { bits }
}

#[inline]
fn table(frame: Frame, stores: Stores) -> u64 {
    // A walk's rights are those that all its levels have; tables allow everything, so that pages decide.
    let write = if stores == Stores::Pass { WRITE } else { 0 };
    frame.address() | PRESENT | USER | write
}

macro_rules! implement {
    ($type:ty, $name:literal, $top:literal, $sign:literal) => {
        impl Format for $type {
            const NAME: &'static str = $name;
            const TOP: Level = Level::new($top);
            // R/W of an entry that points to a table governs all below (SDM volume 3, 5.6.1).
            const SHARE_MODE: ShareMode = ShareMode::TableProtect;
            const MARKS_ACCESSED: bool = true;
            const MARKS_DIRTY: bool = true;
            // SDM volume 3, 5.10.4.1.
            const FAULT_EVICTS: bool = true;
            const BREAK_BEFORE_MAKE: bool = false;
            const PHYSICAL_END: u64 = 1 << 52;
            const MEMORY_TYPES: u8 = TYPES;

            #[inline]
            fn is_valid(address: VirtAddr) -> bool {
                is_sign_extended(address, $sign)
            }

            #[inline]
            fn has_leaf(level: Level) -> bool {
                level.number() <= 3
            }

            #[inline]
            fn decode(level: Level, bits: u64) -> Entry {
                decode(level, bits)
            }

            #[inline]
            fn leaf(level: Level, page: Leaf) -> u64 {
                leaf(level, page)
            }

            #[inline]
            fn table(frame: Frame, stores: Stores) -> u64 {
                table(frame, stores)
            }
        }
    };
}

implement!(X86_64, "x86-64", 4, 47);
implement!(X86_64La57, "x86-64 with 5 levels", 5, 56);
