//! AArch64, stage 1, 4 KiB granule, 48 bits. Arm ARM (DDI 0487), D8.3 ("Translation table descriptor formats").

use super::{Entry, Format, Leaf, ShareMode};
use crate::address::{Frame, Level, VirtAddr};
use crate::attributes::{Attributes, MemoryType, Privilege, Rights, Scope, Sharing, Stores};

/// Four levels, which Arm counts from 0 (our level 4) to 3 (our level 1), for the lower half of addresses: tables under
/// TTBR0_EL1 with TCR_EL1.HPD0 clear.
#[derive(Clone, Copy, Debug)]
pub enum AArch64 {}

/// The same for the upper half: tables under TTBR1_EL1 with TCR_EL1.HPD1 clear. Each half has its own root, in which
/// the same indices translate it, so that a space of one format must refuse addresses of the other half.
#[derive(Clone, Copy, Debug)]
pub enum AArch64Upper {}

const VALID: u64 = 1;
/// Marks a table above the last level, a page at the last; clear in a block.
const TABLE_OR_PAGE: u64 = 1 << 1;
const TYPE: u32 = 2;
/// AP[1]: unprivileged access.
const USER: u64 = 1 << 6;
/// AP[2]: stores fault.
const READ_ONLY: u64 = 1 << 7;
/// SH: inner shareable.
const INNER_SHAREABLE: u64 = 3 << 8;
/// AF; a page without it faults, unless the CPU sets it (FEAT_HAFDBS, which is not used here).
const ACCESSED: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const PRIVILEGED_NO_EXECUTE: u64 = 1 << 53;
const USER_NO_EXECUTE: u64 = 1 << 54;
// Bits 58:55 are for software.
/// The page is writable by its rights.
const MAY_WRITE: u64 = 1 << 55;
/// The page was written since the mark was last cleared; while it is clear, stores fault.
const DIRTY: u64 = 1 << 56;
/// A write after a fork does not copy the page.
const SHARED: u64 = 1 << 57;
/// Stores fault because the page or the table is shared.
const MUST_COPY: u64 = 1 << 58;
/// A page without rights, whose VALID is clear, so that the CPU ignores all other bits.
const INACCESSIBLE: u64 = MAY_WRITE;
/// APTable[1]: no stores to anything below.
const TABLE_READ_ONLY: u64 = 1 << 62;
/// Bits 47:12.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

#[inline]
fn decode(level: Level, bits: u64) -> Entry {
    if bits & (VALID | INACCESSIBLE) == 0 {
        return Entry::Empty;
    }
    if level != Level::LAST && bits & TABLE_OR_PAGE != 0 {
        let stores = if bits & TABLE_READ_ONLY == 0 { Stores::Pass } else { Stores::Fault };
        return Entry::Table { frame: Frame::containing(bits & ADDRESS), stores };
    }
    let user = bits & USER != 0;
    let no_execute = if user { USER_NO_EXECUTE } else { PRIVILEGED_NO_EXECUTE };
    let mut rights = Rights::empty();
    if bits & VALID != 0 {
        rights |= Rights::READ;
        rights.set(Rights::WRITE, bits & MAY_WRITE != 0);
        rights.set(Rights::EXECUTE, bits & no_execute == 0);
    }
    Entry::Leaf(Leaf {
        frame: Frame::containing(bits & ADDRESS & !(level.entry_bytes() - 1)),
        attributes: Attributes {
            rights,
            privilege: if user { Privilege::User } else { Privilege::Kernel },
            scope: if bits & NOT_GLOBAL == 0 { Scope::Global } else { Scope::Local },
            sharing: if bits & SHARED != 0 { Sharing::Shared } else { Sharing::Private },
            memory: MemoryType((bits >> TYPE & 7) as u8),
        },
        stores: if bits & MUST_COPY != 0 { Stores::Fault } else { Stores::Pass },
        accessed: bits & ACCESSED != 0,
        dirty: bits & DIRTY != 0,
    })
}

#[inline]
fn leaf(level: Level, leaf: Leaf) -> u64 {
    let Attributes { rights, privilege, scope, sharing, memory } = leaf.attributes;
    let mut bits = leaf.frame.address() | INNER_SHAREABLE | u64::from(memory.0 & 7) << TYPE;
    let mut set = |bit: u64, when: bool| bits |= if when { bit } else { 0 };
    let user = privilege == Privilege::User;
    let writable = rights.contains(Rights::WRITE);
    let executable = rights.contains(Rights::EXECUTE);
    set(VALID, !rights.is_empty());
    set(INACCESSIBLE, rights.is_empty());
    set(TABLE_OR_PAGE, level == Level::LAST);
    set(USER, user);
    set(MAY_WRITE, writable);
    set(SHARED, sharing == Sharing::Shared);
    set(MUST_COPY, writable && leaf.stores == Stores::Fault);
    set(DIRTY, leaf.dirty);
    set(READ_ONLY, !writable || leaf.stores == Stores::Fault || !leaf.dirty);
    // The kernel never executes what user mode can reach, and vice versa.
    set(PRIVILEGED_NO_EXECUTE, user || !executable);
    set(USER_NO_EXECUTE, !user || !executable);
    set(NOT_GLOBAL, scope == Scope::Local);
    set(ACCESSED, leaf.accessed);
    bits
}

#[inline]
fn table(frame: Frame, stores: Stores) -> u64 {
    let protect = if stores == Stores::Pass { 0 } else { TABLE_READ_ONLY };
    frame.address() | VALID | TABLE_OR_PAGE | protect
}

macro_rules! implement {
    ($type:ty, $name:literal, $first:literal) => {
        impl Format for $type {
            const NAME: &'static str = $name;
            const TOP: Level = Level::new(4);
            const SHARE_MODE: ShareMode = ShareMode::TableProtect;
            const MARKS_ACCESSED: bool = false;
            const MARKS_DIRTY: bool = false;
            const FAULT_EVICTS: bool = false;
            const BREAK_BEFORE_MAKE: bool = true;
            const PHYSICAL_END: u64 = 1 << 48;
            const MEMORY_TYPES: u8 = 8;

            #[inline]
            fn is_valid(address: VirtAddr) -> bool {
                address.0 >> 48 == $first
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

implement!(AArch64, "AArch64 with 4 KiB pages, lower half", 0);
implement!(AArch64Upper, "AArch64 with 4 KiB pages, upper half", 0xffff);
