//! RISC-V Sv39 and Sv48. Privileged architecture, 12.3 ("Page-Based 32-bit… 39-bit… 48-bit Virtual-Memory Systems").

use super::{Entry, Format, Leaf, ShareMode, is_sign_extended};
use crate::address::{Frame, Level, VirtAddr};
use crate::attributes::{Attributes, MemoryType, Privilege, Rights, Scope, Sharing, Stores};

/// Three levels: 39 bits of virtual addresses.
#[derive(Clone, Copy, Debug)]
pub enum Sv39 {}

/// Four levels: 48 bits of virtual addresses.
#[derive(Clone, Copy, Debug)]
pub enum Sv48 {}

const VALID: u64 = 1;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const GLOBAL: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
// RSW, bits 9:8, are for software.
/// The page is writable by its rights.
const MAY_WRITE: u64 = 1 << 8;
/// A write after a fork does not copy the page.
const SHARED: u64 = 1 << 9;
/// A page without rights, whose V is clear, so that the CPU ignores all other bits.
const INACCESSIBLE: u64 = MAY_WRITE;
const NUMBER: u32 = 10;
/// Bits 53:10.
const NUMBER_MASK: u64 = (1 << 44) - 1;
/// PBMT of Svpbmt, bits 62:61.
const TYPE: u32 = 61;

#[inline]
fn frame(bits: u64) -> Frame {
    Frame::containing((bits >> NUMBER & NUMBER_MASK) << 12)
}

#[inline]
fn decode(level: Level, bits: u64) -> Entry {
    if bits & (VALID | INACCESSIBLE) == 0 {
        return Entry::Empty;
    }
    if bits & VALID != 0 && bits & (READ | WRITE | EXECUTE) == 0 {
        // A pointer has no rights to remove: its A, D and U are reserved (12.3.1).
        return Entry::Table { frame: frame(bits), stores: Stores::Pass };
    }
    let mut rights = Rights::empty();
    if bits & VALID != 0 {
        rights |= Rights::READ;
        rights.set(Rights::WRITE, bits & (WRITE | MAY_WRITE) != 0);
        rights.set(Rights::EXECUTE, bits & EXECUTE != 0);
    }
    Entry::Leaf(Leaf {
        frame: Frame::containing(frame(bits).address() & !(level.entry_bytes() - 1)),
        attributes: Attributes {
            rights,
            privilege: if bits & USER != 0 { Privilege::User } else { Privilege::Kernel },
            scope: if bits & GLOBAL != 0 { Scope::Global } else { Scope::Local },
            sharing: if bits & SHARED != 0 { Sharing::Shared } else { Sharing::Private },
            memory: MemoryType((bits >> TYPE & 3) as u8),
        },
        stores: if rights.contains(Rights::WRITE) && bits & WRITE == 0 { Stores::Fault } else { Stores::Pass },
        accessed: bits & ACCESSED != 0,
        dirty: bits & DIRTY != 0,
    })
}

#[inline]
fn leaf(leaf: Leaf) -> u64 {
    let Attributes { rights, privilege, scope, sharing, memory } = leaf.attributes;
    let mut bits = leaf.frame.address() >> 12 << NUMBER | u64::from(memory.0 & 3) << TYPE;
    let mut set = |bit: u64, when: bool| bits |= if when { bit } else { 0 };
    set(VALID, !rights.is_empty());
    set(INACCESSIBLE, rights.is_empty());
    set(READ, rights.contains(Rights::READ));
    set(WRITE, rights.contains(Rights::WRITE) && leaf.stores == Stores::Pass);
    set(MAY_WRITE, rights.contains(Rights::WRITE));
    set(EXECUTE, rights.contains(Rights::EXECUTE));
    set(USER, privilege == Privilege::User);
    set(GLOBAL, scope == Scope::Global);
    set(SHARED, sharing == Sharing::Shared);
    set(ACCESSED, leaf.accessed);
    set(DIRTY, leaf.dirty);
    bits
}

macro_rules! implement {
    ($type:ty, $name:literal, $top:literal, $sign:literal) => {
        impl Format for $type {
            const NAME: &'static str = $name;
            const TOP: Level = Level::new($top);
            const SHARE_MODE: ShareMode = ShareMode::LeafProtect;
            // Svade: the CPU faults if A or D is clear. One that sets them by itself (Svadu) only saves the faults.
            const MARKS_ACCESSED: bool = false;
            const MARKS_DIRTY: bool = false;
            const FAULT_EVICTS: bool = false;
            const BREAK_BEFORE_MAKE: bool = false;
            const PHYSICAL_END: u64 = 1 << 56;
            // PBMT 3 is reserved.
            const MEMORY_TYPES: u8 = 3;

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
            fn leaf(_level: Level, page: Leaf) -> u64 {
                leaf(page)
            }

            #[inline]
            fn table(frame: Frame, _stores: Stores) -> u64 {
                frame.address() >> 12 << NUMBER | VALID
            }
        }
    };
}

implement!(Sv39, "RISC-V Sv39", 3, 38);
implement!(Sv48, "RISC-V Sv48", 4, 47);
