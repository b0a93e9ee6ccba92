//! The codes that functions return, and their texts.

use core::ffi::{CStr, c_char};

use palimpsest_paging::{ChangeError, FaultError, ForkError, MapError};

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub enum palimpsest_paging_result {
    /// Done.
    PALIMPSEST_PAGING_OK = 0,
    /// A pointer is null or not aligned, a callback is missing, a `size` is wrong, or an argument has no such value.
    PALIMPSEST_PAGING_INVALID = 1,
    /// The space was not made, was dropped, or was copied to another address.
    PALIMPSEST_PAGING_STALE = 2,
    /// The memory for a space is not zero: it holds a space, or was never cleared.
    PALIMPSEST_PAGING_IN_USE = 3,
    /// There is no memory for tables.
    PALIMPSEST_PAGING_NO_MEMORY = 4,
    /// A page must be copied, and there is no memory for the copy.
    PALIMPSEST_PAGING_NO_PAGE = 5,
    /// The range of virtual addresses is empty, not of whole pages, not canonical, includes the very last page, or
    /// overlaps the range that pages would move to.
    PALIMPSEST_PAGING_RANGE = 6,
    /// The physical address is no multiple of 4096, or beyond what the machine or the format has.
    PALIMPSEST_PAGING_PHYSICAL = 7,
    /// An address or the length is no multiple of the one page size that was allowed, or a large page would move to an
    /// address that is no multiple of its size.
    PALIMPSEST_PAGING_ALIGNMENT = 8,
    /// Entries cannot express the attributes: the right to read is missing, there is no such memory type, or the pages
    /// are global and private.
    PALIMPSEST_PAGING_ATTRIBUTES = 9,
    /// Something is mapped there; unmap it first.
    PALIMPSEST_PAGING_MAPPED = 10,
    /// Nothing is mapped there.
    PALIMPSEST_PAGING_NOT_MAPPED = 11,
    /// The page does not allow this access.
    PALIMPSEST_PAGING_DENIED = 12,
    /// A page there is the kernel's, and the caller may be running on it; `PALIMPSEST_PAGING_ALSO_KERNEL` changes it.
    PALIMPSEST_PAGING_KERNELS = 13,
}

use palimpsest_paging_result::*;

/// Returns a text that says what `result` means, an enum palimpsest_paging_result; other numbers have a text, too.
/// Never null.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_paging_message(result: u32) -> *const c_char {
    const TEXTS: [&CStr; 14] = [
        c"done",
        c"a pointer is null or not aligned, a callback is missing, a size is wrong, or an argument has no such value",
        c"the space was not made, was dropped, or was copied to another address",
        c"the memory for the space is not zero: drop the space that it holds, or clear it",
        c"there is no memory for tables",
        c"there is no memory for the copy of a page",
        c"a range of addresses is empty, not of whole pages, not canonical, has the last page, or overlaps another",
        c"the physical address is no multiple of 4096, or beyond what the machine or the format has",
        c"an address or the length is no multiple of the page size that was allowed, or of a large page that moves",
        c"entries cannot express the attributes: no right to read, no such memory type, or both global and private",
        c"something is mapped there; unmap it first",
        c"nothing is mapped there",
        c"the page does not allow this access",
        c"a page there is the kernel's; PALIMPSEST_PAGING_ALSO_KERNEL changes it",
    ];
    TEXTS.get(result as usize).copied().unwrap_or(c"no result of this library").as_ptr()
}

/// Returns the version of this interface: major, minor and patch, one byte each, from bit 16 down, as
/// `PALIMPSEST_PAGING_VERSION` was when the kernel was compiled. Programs compiled against the same major version (and,
/// while that is 0, the same minor one) work with this library.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_paging_version() -> u32 {
    const {
        part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
            | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
            | part(env!("CARGO_PKG_VERSION_PATCH"))
    }
}

/// Reads a part of a version, of one byte.
const fn part(text: &str) -> u32 {
    match u8::from_str_radix(text, 10) {
        Ok(number) => number as u32,
        Err(_) => panic!("a part of the version is no number below 256"),
    }
}

/// A value, or the code that C gets in its place.
pub(crate) type Answer<T = ()> = Result<T, palimpsest_paging_result>;

pub(crate) fn code(answer: Answer) -> palimpsest_paging_result {
    answer.err().unwrap_or(PALIMPSEST_PAGING_OK)
}

pub(crate) fn of_map(error: &MapError) -> palimpsest_paging_result {
    match error {
        MapError::Range(_) => PALIMPSEST_PAGING_RANGE,
        MapError::NoMemory(_) => PALIMPSEST_PAGING_NO_MEMORY,
        MapError::Mapped { .. } => PALIMPSEST_PAGING_MAPPED,
        MapError::Physical { .. } => PALIMPSEST_PAGING_PHYSICAL,
        MapError::Rights(_) | MapError::MemoryType { .. } | MapError::PrivateGlobal { .. } => {
            PALIMPSEST_PAGING_ATTRIBUTES
        }
        MapError::Size { .. } => PALIMPSEST_PAGING_ALIGNMENT,
    }
}

pub(crate) fn of_change(error: &ChangeError) -> palimpsest_paging_result {
    match error {
        ChangeError::Range(_) => PALIMPSEST_PAGING_RANGE,
        ChangeError::NoMemory(_) => PALIMPSEST_PAGING_NO_MEMORY,
        ChangeError::Rights(_) => PALIMPSEST_PAGING_ATTRIBUTES,
        ChangeError::Kernel { .. } => PALIMPSEST_PAGING_KERNELS,
        ChangeError::Mapped { .. } => PALIMPSEST_PAGING_MAPPED,
        ChangeError::NotMapped { .. } => PALIMPSEST_PAGING_NOT_MAPPED,
        ChangeError::Overlap { .. } => PALIMPSEST_PAGING_RANGE,
        ChangeError::Misaligned { .. } => PALIMPSEST_PAGING_ALIGNMENT,
        // No function for C pins or replicates pages.
        ChangeError::Pinned { .. } | ChangeError::Replicated { .. } => PALIMPSEST_PAGING_INVALID,
    }
}

pub(crate) fn of_fork(error: &ForkError) -> palimpsest_paging_result {
    match error {
        ForkError::NoMemory(_) => PALIMPSEST_PAGING_NO_MEMORY,
        ForkError::NoPage { .. } => PALIMPSEST_PAGING_NO_PAGE,
    }
}

pub(crate) fn of_fault(error: &FaultError) -> palimpsest_paging_result {
    match error {
        FaultError::NoMemory(_) => PALIMPSEST_PAGING_NO_MEMORY,
        FaultError::NoPage { .. } => PALIMPSEST_PAGING_NO_PAGE,
    }
}
