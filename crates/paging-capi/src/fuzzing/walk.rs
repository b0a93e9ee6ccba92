//! What a CPU finds in tables: written from the manuals, apart from the formats of `palimpsest_paging`.
//!
//! x86-64: Intel SDM volume 3, 5.5 and 5.6. AArch64: Arm ARM, D8.2 to D8.4, stage 1, granule of 4 KiB, no hardware
//! update of flags. RISC-V: privileged architecture, "Virtual Address Translation Process", A and D set by software.

use crate::pages::{PALIMPSEST_PAGING_EXECUTE, PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_WRITE};
use crate::space::{
    PALIMPSEST_PAGING_AARCH64, PALIMPSEST_PAGING_AARCH64_UPPER, PALIMPSEST_PAGING_SV39, PALIMPSEST_PAGING_X86_64,
    PALIMPSEST_PAGING_X86_64_LA57,
};

/// What an entry says.
pub(super) enum Entry {
    /// Nothing is there.
    Empty,
    /// The table of the next level, and the rights that the entry leaves to what is below.
    Table(u64, u32),
    /// A page, and what user mode may do with it.
    Page(u64, u32),
}

/// All rights of user mode.
pub(super) const ALL: u32 = PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_WRITE | PALIMPSEST_PAGING_EXECUTE;

pub(super) fn levels(format: u32) -> u32 {
    match format {
        PALIMPSEST_PAGING_X86_64_LA57 => 5,
        PALIMPSEST_PAGING_SV39 => 3,
        _ => 4,
    }
}

/// Returns the length of what an entry of a level maps. Level 1 has pages.
pub(super) fn reach(level: u32) -> u64 {
    1 << (12 + 9 * (level - 1))
}

pub(super) fn index(address: u64, level: u32) -> usize {
    (address / reach(level) % 512) as usize
}

/// Reads an entry of a table of `level`, as CPUs with this format do.
pub(super) fn decode(format: u32, level: u32, entry: u64) -> Entry {
    match format {
        PALIMPSEST_PAGING_X86_64 | PALIMPSEST_PAGING_X86_64_LA57 => x86_64(level, entry),
        PALIMPSEST_PAGING_AARCH64 | PALIMPSEST_PAGING_AARCH64_UPPER => aarch64(level, entry),
        _ => riscv(level, entry),
    }
}

fn bit(entry: u64, number: u32) -> bool {
    entry >> number & 1 != 0
}

/// Returns the rights of user mode: those to read, write and execute that `has` names, if the page is its own.
fn rights(is_users: bool, has: [bool; 3]) -> u32 {
    let rights = [PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_WRITE, PALIMPSEST_PAGING_EXECUTE];
    rights.into_iter().zip(has).filter(|(_, has)| is_users && *has).map(|(right, _)| right).sum()
}

fn x86_64(level: u32, entry: u64) -> Entry {
    if !bit(entry, 0) {
        return Entry::Empty;
    }
    let (frame, left) = (entry & 0x000f_ffff_ffff_f000, rights(bit(entry, 2), [true, bit(entry, 1), !bit(entry, 63)]));
    if level == 1 || (level <= 3 && bit(entry, 7)) {
        Entry::Page(frame & !(reach(level) - 1), left)
    } else if bit(entry, 7) {
        // Reserved, in entries above those that can be pages.
        Entry::Empty
    } else {
        Entry::Table(frame, left)
    }
}

fn aarch64(level: u32, entry: u64) -> Entry {
    let frame = entry & 0x0000_ffff_ffff_f000;
    if !bit(entry, 0) {
        return Entry::Empty;
    }
    if level > 1 && bit(entry, 1) {
        // APTable and UXNTable.
        return Entry::Table(frame, rights(!bit(entry, 61), [true, !bit(entry, 62), !bit(entry, 60)]));
    }
    // A block is at lookup level 1 or 2, and a page has bit 1. Without the access flag every access faults.
    if level == 4 || (level == 1 && !bit(entry, 1)) || !bit(entry, 10) {
        return Entry::Empty;
    }
    Entry::Page(frame & !(reach(level) - 1), rights(bit(entry, 6), [true, !bit(entry, 7), !bit(entry, 54)]))
}

fn riscv(level: u32, entry: u64) -> Entry {
    let (read, write, execute) = (bit(entry, 1), bit(entry, 2), bit(entry, 3));
    // Writable and not readable is reserved, and so are bits 60 to 54.
    if !bit(entry, 0) || (write && !read) || entry >> 54 & 0x7f != 0 {
        return Entry::Empty;
    }
    let frame = (entry >> 10 & 0xfff_ffff_ffff) << 12;
    if !read && !execute {
        // U, A and D, and the memory type, are reserved in pointers.
        let is_odd = bit(entry, 4) || bit(entry, 6) || bit(entry, 7) || entry >> 61 != 0;
        return if is_odd { Entry::Empty } else { Entry::Table(frame, ALL) };
    }
    // A large page that is not aligned, and one that was not marked as used.
    if !frame.is_multiple_of(reach(level)) || !bit(entry, 6) {
        return Entry::Empty;
    }
    Entry::Page(frame, rights(bit(entry, 4), [read, write && bit(entry, 7), execute]))
}
