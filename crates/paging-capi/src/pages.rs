//! Mapping, changing and finding a space's pages; faults.

use core::ops::Range;

use palimpsest_paging::format::Leaf;
use palimpsest_paging::{
    Access, AccessKind, Attributes, Fault, Frame, Mapping, MemoryType, Node, PageSize, PageSizes, Privilege, Rights,
    Scope, Sharing, VirtAddr,
};

use crate::result::palimpsest_paging_result::{
    self, PALIMPSEST_PAGING_DENIED, PALIMPSEST_PAGING_INVALID, PALIMPSEST_PAGING_NOT_MAPPED,
    PALIMPSEST_PAGING_PHYSICAL, PALIMPSEST_PAGING_RANGE,
};
use crate::result::{Answer, code, of_change, of_fault, of_map};
use crate::space::{each_format, live, palimpsest_paging_space, size_of_out};

/// Loads.
pub const PALIMPSEST_PAGING_READ: u32 = 1;
/// Stores.
pub const PALIMPSEST_PAGING_WRITE: u32 = 2;
/// Instruction fetches.
pub const PALIMPSEST_PAGING_EXECUTE: u32 = 4;
/// For a page: only the kernel may use it. For an access: the kernel makes it.
pub const PALIMPSEST_PAGING_KERNEL: u32 = 8;
/// The translation is the same in all spaces, and survives a switch. Only with PALIMPSEST_PAGING_SHARED.
pub const PALIMPSEST_PAGING_GLOBAL: u32 = 16;
/// After a fork, both spaces store to the same page. Without this, the first store gives a space its own copy.
pub const PALIMPSEST_PAGING_SHARED: u32 = 32;
/// This times a number from 0 to 255 gives the memory type: an index into the CPU's own table (PAT, MAIR_EL1), or PBMT.
pub const PALIMPSEST_PAGING_MEMORY_TYPE: u32 = 256;

/// Pages of 4 KiB.
pub const PALIMPSEST_PAGING_4K: u32 = 0;
/// Pages of up to 2 MiB: at each address the largest that fits and is aligned in both virtual and physical memory.
pub const PALIMPSEST_PAGING_UP_TO_2M: u32 = 1;
/// Pages of up to 1 GiB, chosen in the same way.
pub const PALIMPSEST_PAGING_UP_TO_1G: u32 = 2;
/// Pages of 2 MiB, or an error.
pub const PALIMPSEST_PAGING_ONLY_2M: u32 = 3;
/// Pages of 1 GiB, or an error.
pub const PALIMPSEST_PAGING_ONLY_1G: u32 = 4;

/// Changes user mode's pages; a range that has a page of the kernel is refused.
pub const PALIMPSEST_PAGING_USERS_ONLY: u32 = 0;
/// Also changes pages of the kernel. The caller must not use those that it takes away or restricts: not as code, stack
/// or data.
pub const PALIMPSEST_PAGING_ALSO_KERNEL: u32 = 1;

/// The page was used since its mark was last cleared.
pub const PALIMPSEST_PAGING_ACCESSED: u32 = 1;
/// The page was written since its mark was last cleared.
pub const PALIMPSEST_PAGING_DIRTY: u32 = 2;

/// A page as a space maps it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct palimpsest_paging_mapping {
    /// `sizeof(struct palimpsest_paging_mapping)`, set by the caller.
    pub size: usize,
    /// The page's first virtual address.
    pub start: u64,
    /// Its length.
    pub len: u64,
    /// Its first physical address.
    pub physical: u64,
    /// As for palimpsest_paging_map. They have the right to write also while a store faults because the page must first
    /// be copied.
    pub attributes: u32,
    /// PALIMPSEST_PAGING_ACCESSED and PALIMPSEST_PAGING_DIRTY, or neither.
    pub marks: u32,
}

/// How a fault was resolved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct palimpsest_paging_resolution {
    /// `sizeof(struct palimpsest_paging_resolution)`, set by the caller.
    pub size: usize,
    /// How many shared tables were copied.
    pub tables_copied: u32,
    /// 1 if the page was copied.
    pub page_copied: u32,
    /// 1 if only this space still had the page, which it now writes in place.
    pub page_reused: u32,
    /// Zero.
    pub reserved: u32,
}

pub(crate) fn range_of(start: u64, len: u64) -> Answer<Range<VirtAddr>> {
    let end = start.checked_add(len).ok_or(PALIMPSEST_PAGING_RANGE)?;
    Ok(VirtAddr(start)..VirtAddr(end))
}

pub(crate) fn rights_of(bits: u32) -> Answer<Rights> {
    u8::try_from(bits).ok().and_then(Rights::from_bits).ok_or(PALIMPSEST_PAGING_INVALID)
}

pub(crate) fn attributes_of(bits: u32) -> Answer<Attributes> {
    const RIGHTS: u32 = PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_WRITE | PALIMPSEST_PAGING_EXECUTE;
    const OTHERS: u32 = PALIMPSEST_PAGING_KERNEL | PALIMPSEST_PAGING_GLOBAL | PALIMPSEST_PAGING_SHARED;
    let memory = bits / PALIMPSEST_PAGING_MEMORY_TYPE;
    let memory = MemoryType(u8::try_from(memory).map_err(|_| PALIMPSEST_PAGING_INVALID)?);
    let flags = bits % PALIMPSEST_PAGING_MEMORY_TYPE;
    if flags & !(RIGHTS | OTHERS) != 0 {
        return Err(PALIMPSEST_PAGING_INVALID);
    }
    let has = |flag| flags & flag != 0;
    Ok(Attributes {
        rights: rights_of(flags & RIGHTS)?,
        privilege: if has(PALIMPSEST_PAGING_KERNEL) { Privilege::Kernel } else { Privilege::User },
        scope: if has(PALIMPSEST_PAGING_GLOBAL) { Scope::Global } else { Scope::Local },
        sharing: if has(PALIMPSEST_PAGING_SHARED) { Sharing::Shared } else { Sharing::Private },
        memory,
    })
}

fn bits_of(attributes: Attributes) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let memory = u32::from(attributes.memory.0) * PALIMPSEST_PAGING_MEMORY_TYPE;
    u32::from(attributes.rights.bits())
        | flag(attributes.privilege == Privilege::Kernel, PALIMPSEST_PAGING_KERNEL)
        | flag(attributes.scope == Scope::Global, PALIMPSEST_PAGING_GLOBAL)
        | flag(attributes.sharing == Sharing::Shared, PALIMPSEST_PAGING_SHARED)
        | memory
}

fn marks_of(leaf: &Leaf) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    flag(leaf.accessed, PALIMPSEST_PAGING_ACCESSED) | flag(leaf.dirty, PALIMPSEST_PAGING_DIRTY)
}

/// Describes a page in a structure of `size` bytes.
pub(crate) fn mapping_of(found: &Mapping, size: usize) -> palimpsest_paging_mapping {
    palimpsest_paging_mapping {
        size,
        start: found.address.0,
        len: found.size.bytes(),
        physical: found.leaf.frame.address(),
        attributes: bits_of(found.leaf.attributes),
        marks: marks_of(&found.leaf),
    }
}

fn sizes_of(sizes: u32) -> Answer<PageSizes> {
    match sizes {
        PALIMPSEST_PAGING_4K => Ok(PageSizes::Only(PageSize::Small)),
        PALIMPSEST_PAGING_UP_TO_2M => Ok(PageSizes::UpTo(PageSize::Large)),
        PALIMPSEST_PAGING_UP_TO_1G => Ok(PageSizes::UpTo(PageSize::Giant)),
        PALIMPSEST_PAGING_ONLY_2M => Ok(PageSizes::Only(PageSize::Large)),
        PALIMPSEST_PAGING_ONLY_1G => Ok(PageSizes::Only(PageSize::Giant)),
        _ => Err(PALIMPSEST_PAGING_INVALID),
    }
}

/// Whose pages an operation may change.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    UsersOnly,
    AlsoKernel,
}

pub(crate) fn reach_of(reach: u32) -> Answer<Reach> {
    match reach {
        PALIMPSEST_PAGING_USERS_ONLY => Ok(Reach::UsersOnly),
        PALIMPSEST_PAGING_ALSO_KERNEL => Ok(Reach::AlsoKernel),
        _ => Err(PALIMPSEST_PAGING_INVALID),
    }
}

/// Maps `len` bytes from `start` on to the physical memory from `physical` on. Nothing may be mapped there.
/// `attributes` are PALIMPSEST_PAGING_READ, _WRITE, _EXECUTE, _KERNEL, _GLOBAL, _SHARED and _MEMORY_TYPE times a
/// number; `sizes` is PALIMPSEST_PAGING_4K, _UP_TO_2M and so on. Does not call `page_retain`: you hand over one
/// reference to each page, which `page_release` takes back when the page is unmapped. New pages are marked as used and
/// written.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. You have a reference to each page, or the memory is not counted. Unless there is an error, the space then owns
///    the reference.
/// 3. All programs that run in this space may use the memory as `attributes` say, as long as it is mapped. User mode
///    gets no right to write to code, stacks and data of your own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_map(
    space: *const palimpsest_paging_space,
    start: u64,
    physical: u64,
    len: u64,
    attributes: u32,
    sizes: u32,
) -> palimpsest_paging_result {
    let mapped = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (attributes, sizes, range) = (attributes_of(attributes)?, sizes_of(sizes)?, range_of(start, len)?);
        let first = Frame::new(physical).ok_or(PALIMPSEST_PAGING_PHYSICAL)?;
        each_format!(space, space => {
            // SAFETY: contracts 2 and 3.
            unsafe { space.map(range, first, attributes, sizes) }.map_err(|error| of_map(&error))
        })
    };
    code(mapped())
}

/// Unmaps everything from `start` to before `start + len`, and flushes it; then gives back the references to pages, and
/// tables that have become empty. Splits large pages that lie only partly in the range; skips gaps. `reach` is
/// PALIMPSEST_PAGING_USERS_ONLY or PALIMPSEST_PAGING_ALSO_KERNEL.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses none of the kernel's pages in the
///    range, not as code, stack or data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_unmap(
    space: *const palimpsest_paging_space,
    start: u64,
    len: u64,
    reach: u32,
) -> palimpsest_paging_result {
    let unmapped = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (reach, range) = (reach_of(reach)?, range_of(start, len)?);
        each_format!(space, space => {
            let flush = match reach {
                Reach::UsersOnly => space.unmap(range),
                // SAFETY: contract 2.
                Reach::AlsoKernel => unsafe { space.unmap_kernel(range) },
            };
            flush.map_err(|error| of_change(&error))?.finish();
        });
        Ok(())
    };
    code(unmapped())
}

/// Gives all pages from `start` to before `start + len` these rights (PALIMPSEST_PAGING_READ, _WRITE, _EXECUTE), and
/// flushes them. With 0, the pages stay mapped and every access faults. Splits large pages that lie only partly in the
/// range, copies shared tables, and skips gaps. `reach` is as for palimpsest_paging_unmap.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses the kernel's pages in the range
///    only as the rights allow; on AArch64, during the call, it uses no large page that must be split.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_protect(
    space: *const palimpsest_paging_space,
    start: u64,
    len: u64,
    rights: u32,
    reach: u32,
) -> palimpsest_paging_result {
    let protected = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (rights, reach, range) = (rights_of(rights)?, reach_of(reach)?, range_of(start, len)?);
        each_format!(space, space => {
            let flush = match reach {
                Reach::UsersOnly => space.protect(range, rights),
                // SAFETY: contract 2.
                Reach::AlsoKernel => unsafe { space.protect_kernel(range, rights) },
            };
            flush.map_err(|error| of_change(&error))?.finish();
        });
        Ok(())
    };
    code(protected())
}

/// Finds the page that contains `address`, and describes it in `mapping`, whose `size` the caller has set.
/// PALIMPSEST_PAGING_NOT_MAPPED if there is none, or the address is not canonical.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `mapping` is null, or points to as many bytes as its `size` says, which can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_query(
    space: *const palimpsest_paging_space,
    address: u64,
    mapping: *mut palimpsest_paging_mapping,
) -> palimpsest_paging_result {
    let found = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        // SAFETY: contract 2.
        let size = unsafe { size_of_out(mapping.cast(), size_of::<palimpsest_paging_mapping>()) }?;
        let found = each_format!(space, space => space.query(VirtAddr(address)));
        let found = found.ok_or(PALIMPSEST_PAGING_NOT_MAPPED)?;
        // SAFETY: contract 2; aligned, and long enough.
        unsafe { mapping.write(mapping_of(&found, size)) };
        Ok(())
    };
    code(found())
}

/// Resolves a page fault at `address`: copies what is shared and must be written, sets the marks that the CPU does not
/// set, and flushes what is necessary. `access` is PALIMPSEST_PAGING_READ, _WRITE or _EXECUTE, with
/// PALIMPSEST_PAGING_KERNEL if the kernel made the access. After PALIMPSEST_PAGING_OK, repeat the access.
/// PALIMPSEST_PAGING_NOT_MAPPED and PALIMPSEST_PAGING_DENIED are yours to handle. `resolution` may be null; else the
/// caller has set its `size`.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `resolution` is null, or points to as many bytes as its `size` says, which can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_fault(
    space: *const palimpsest_paging_space,
    address: u64,
    access: u32,
    resolution: *mut palimpsest_paging_resolution,
) -> palimpsest_paging_result {
    let resolved = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let size = if resolution.is_null() {
            0
        } else {
            // SAFETY: contract 2.
            unsafe { size_of_out(resolution.cast(), size_of::<palimpsest_paging_resolution>()) }?
        };
        let kind = match access & !PALIMPSEST_PAGING_KERNEL {
            PALIMPSEST_PAGING_READ => AccessKind::Read,
            PALIMPSEST_PAGING_WRITE => AccessKind::Write,
            PALIMPSEST_PAGING_EXECUTE => AccessKind::Execute,
            _ => return Err(PALIMPSEST_PAGING_INVALID),
        };
        let from = if access & PALIMPSEST_PAGING_KERNEL == 0 { Privilege::User } else { Privilege::Kernel };
        let fault = each_format!(space, space => space.fault(VirtAddr(address), Access { kind, from }, Node(0)));
        let done = match fault.map_err(|error| of_fault(&error))? {
            Fault::Resolved(done) => done,
            Fault::NotMapped => return Err(PALIMPSEST_PAGING_NOT_MAPPED),
            Fault::Denied => return Err(PALIMPSEST_PAGING_DENIED),
        };
        if !resolution.is_null() {
            let told = palimpsest_paging_resolution {
                size,
                tables_copied: done.unshared,
                page_copied: done.copied.into(),
                page_reused: done.reused.into(),
                reserved: 0,
            };
            // SAFETY: contract 2; aligned, and long enough.
            unsafe { resolution.write(told) };
        }
        Ok(())
    };
    code(resolved())
}
