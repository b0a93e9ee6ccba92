//! How the hardware reads entries, written a second time from the manuals, so that the machine that tests a format does
//! not repeat its mistakes.

use crate::access::Access;
use crate::address::{Level, VirtAddr};
use crate::attributes::{Privilege, Rights};
use crate::format::{AArch64, AArch64Upper, Entry, Format, Sv39, Sv48, X86_64, X86_64La57};

/// An entry, as a walker reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Descriptor {
    /// The walk ends in a fault.
    Invalid,
    /// The walk continues.
    Table { address: u64, allowed: Allowed },
    /// The walk is done. `accessed` and `dirty` are what the hardware considers such marks.
    Page { address: u64, allowed: Allowed, accessed: bool, dirty: bool },
}

/// What each mode may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Allowed {
    pub(super) user: Rights,
    pub(super) kernel: Rights,
}

impl Allowed {
    pub(super) const ALL: Self = Self { user: Rights::all(), kernel: Rights::all() };

    /// Returns what both allow.
    pub(super) fn and(self, other: Self) -> Self {
        Self { user: self.user & other.user, kernel: self.kernel & other.kernel }
    }

    /// Returns whether `other` allows everything that this does.
    pub(super) fn is_within(self, other: Self) -> bool {
        other.user.contains(self.user) && other.kernel.contains(self.kernel)
    }

    pub(super) fn allows(self, access: Access) -> bool {
        let rights = match access.from {
            Privilege::User => self.user,
            Privilege::Kernel => self.kernel,
        };
        rights.contains(access.right())
    }
}

/// Who sets the marks of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marks {
    /// The walker: these bits, accessed and dirty.
    Walker { accessed: u64, dirty: u64 },
    /// The kernel: an access that would set one faults.
    Kernel,
}

/// What happens to a translation when an access that it does not allow faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterFault {
    /// It leaves the TLB (Intel SDM volume 3, 5.10.4.1).
    Evicted,
    /// It stays.
    Kept,
}

/// A memory management unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mmu {
    pub(super) top: Level,
    pub(super) marks: Marks,
    /// The marks of a walker that marks pages by itself, if such walkers exist.
    pub(super) walker_marks: Option<Marks>,
    pub(super) after_fault: AfterFault,
    pub(super) is_valid: fn(VirtAddr) -> bool,
    pub(super) read: fn(u8, u64) -> Descriptor,
    /// The crate's own decoder, for references that the hardware does not see.
    pub(super) decode: fn(Level, u64) -> Entry,
}

/// A format that the software machine can walk.
pub trait Hardware: Format {
    /// Returns its MMU.
    #[doc(hidden)]
    fn mmu() -> HardwareMmu;
}

/// An MMU, opaque.
#[derive(Clone, Copy, Debug)]
pub struct HardwareMmu(pub(super) Mmu);

const fn bit(bits: u64, number: u32) -> bool {
    bits >> number & 1 != 0
}

/// Returns the address in bits 51:12 or fewer, cut to what the level maps.
const fn address(bits: u64, mask: u64, level: u8) -> u64 {
    bits & mask & !((1 << (12 + 9 * (level as u32 - 1))) - 1)
}

fn rights(write: bool, execute: bool) -> Rights {
    let mut rights = Rights::READ;
    rights.set(Rights::WRITE, write);
    rights.set(Rights::EXECUTE, execute);
    rights
}

/// Decodes by Intel SDM volume 3, figure 5-11.
fn x86_64(level: u8, bits: u64) -> Descriptor {
    const MASK: u64 = ((1 << 52) - 1) & !0xfff;
    if !bit(bits, 0) {
        return Descriptor::Invalid;
    }
    let rights = rights(bit(bits, 1), !bit(bits, 63));
    // With SMEP, and without SMAP, which a kernel lifts on purpose.
    let user = bit(bits, 2);
    let is_table = !(level == 1 || matches!(level, 2 | 3) && bit(bits, 7));
    let kernel = if user && !is_table { rights - Rights::EXECUTE } else { rights };
    let allowed = Allowed { user: if user { rights } else { Rights::empty() }, kernel };
    match level {
        2 | 3 if bit(bits, 7) => {}
        1 => {}
        // PS is reserved above.
        _ if level > 3 && bit(bits, 7) => return Descriptor::Invalid,
        _ => return Descriptor::Table { address: bits & MASK, allowed },
    }
    Descriptor::Page { address: address(bits, MASK, level), allowed, accessed: bit(bits, 5), dirty: bit(bits, 6) }
}

/// Decodes by Arm ARM D8.3.1; hierarchical permissions by D8.4.3.
fn aarch64(level: u8, bits: u64) -> Descriptor {
    const MASK: u64 = ((1 << 48) - 1) & !0xfff;
    let page = match (bits & 3, level) {
        (3, 1) => true,
        (1, 2 | 3) => true,
        (3, _) => false,
        _ => return Descriptor::Invalid,
    };
    if !page {
        let kernel = rights(!bit(bits, 62), true);
        // APTable[0]: user mode reaches nothing below.
        let user = if bit(bits, 61) { Rights::empty() } else { kernel };
        return Descriptor::Table { address: bits & MASK, allowed: Allowed { user, kernel } };
    }
    // A kernel lifts PAN on purpose.
    let write = !bit(bits, 7);
    let user = if bit(bits, 6) { rights(write, !bit(bits, 54)) } else { Rights::empty() };
    let kernel = rights(write, !bit(bits, 53));
    Descriptor::Page {
        address: address(bits, MASK, level),
        allowed: Allowed { user, kernel },
        accessed: bit(bits, 10),
        // Without FEAT_HAFDBS the hardware has no such mark.
        dirty: true,
    }
}

/// Decodes by the RISC-V privileged architecture, 12.3.2 ("Virtual Address Translation Process").
fn riscv(level: u8, bits: u64) -> Descriptor {
    let at = (bits >> 10 & ((1 << 44) - 1)) << 12;
    let (read, write, execute) = (bit(bits, 1), bit(bits, 2), bit(bits, 3));
    if !bit(bits, 0) || write && !read || bit(bits, 63) {
        return Descriptor::Invalid;
    }
    if !read && !execute {
        // A, D and U are reserved in pointers, and a last-level entry cannot be one.
        let reserved = bits & 0xd0 != 0 || level == 1;
        return if reserved { Descriptor::Invalid } else { Descriptor::Table { address: at, allowed: Allowed::ALL } };
    }
    if level > 3 || at != address(at, !0xfff, level) {
        return Descriptor::Invalid;
    }
    // With SUM set, as a kernel does on purpose. It never runs a page of user mode.
    let rights = rights(write, execute);
    let allowed = match bit(bits, 4) {
        true => Allowed { user: rights, kernel: rights - Rights::EXECUTE },
        false => Allowed { user: Rights::empty(), kernel: rights },
    };
    Descriptor::Page { address: at, allowed, accessed: bit(bits, 6), dirty: bit(bits, 7) }
}

macro_rules! hardware {
    ($($format:ty, $read:ident, $marks:expr, $walker:expr, $after:ident;)*) => {$(
        impl Hardware for $format {
            fn mmu() -> HardwareMmu {
                HardwareMmu(Mmu {
                    top: Self::TOP,
                    marks: $marks,
                    walker_marks: $walker,
                    after_fault: AfterFault::$after,
                    is_valid: Self::is_valid,
                    read: $read,
                    decode: Self::decode,
                })
            }
        }
    )*};
}

const X86_64_MARKS: Marks = Marks::Walker { accessed: 1 << 5, dirty: 1 << 6 };
/// Svadu.
const RISCV_MARKS: Marks = Marks::Walker { accessed: 1 << 6, dirty: 1 << 7 };

hardware! {
    X86_64, x86_64, X86_64_MARKS, Some(X86_64_MARKS), Evicted;
    X86_64La57, x86_64, X86_64_MARKS, Some(X86_64_MARKS), Evicted;
    AArch64, aarch64, Marks::Kernel, None, Kept;
    AArch64Upper, aarch64, Marks::Kernel, None, Kept;
    Sv39, riscv, Marks::Kernel, Some(RISCV_MARKS), Kept;
    Sv48, riscv, Marks::Kernel, Some(RISCV_MARKS), Kept;
}
