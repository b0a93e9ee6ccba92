//! Moving pages to other addresses, and dividing and joining them.

use palimpsest_paging::{PageSize, VirtAddr};

use crate::pages::{PALIMPSEST_PAGING_ONLY_1G, PALIMPSEST_PAGING_ONLY_2M, Reach, range_of, reach_of};
use crate::result::palimpsest_paging_result::{self, PALIMPSEST_PAGING_INVALID};
use crate::result::{code, of_change};
use crate::space::{each_format, live, out, palimpsest_paging_space};

/// Moves everything that is mapped from `from` to before `from + len` to the addresses from `to` on, where nothing may
/// be mapped, and flushes the old addresses. Moves whole tables where it can, also shared ones, so that it costs
/// little. PALIMPSEST_PAGING_RANGE if the two overlap, PALIMPSEST_PAGING_ALIGNMENT if a large page would no longer be
/// aligned: split it first. `reach` is as for palimpsest_paging_unmap.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses none of the kernel's pages in the
///    range, not as code, stack or data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_move(
    space: *const palimpsest_paging_space,
    from: u64,
    len: u64,
    to: u64,
    reach: u32,
) -> palimpsest_paging_result {
    let moved = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (reach, from) = (reach_of(reach)?, range_of(from, len)?);
        each_format!(space, space => {
            let flush = match reach {
                Reach::UsersOnly => space.remap(from, VirtAddr(to)),
                // SAFETY: contract 2.
                Reach::AlsoKernel => unsafe { space.remap_kernel(from, VirtAddr(to)) },
            };
            flush.map_err(|error| of_change(&error))?.finish();
        });
        Ok(())
    };
    code(moved())
}

/// Turns the pages from `start` to before `start + len` into pages of 4 KiB, with the same translation. Pages of user
/// mode are unmapped for a moment: CPUs that fault meanwhile wait in palimpsest_paging_fault. On AArch64 it refuses
/// pages of the kernel (PALIMPSEST_PAGING_KERNELS).
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_split(
    space: *const palimpsest_paging_space,
    start: u64,
    len: u64,
) -> palimpsest_paging_result {
    let split = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let range = range_of(start, len)?;
        each_format!(space, space => space.split(range).map_err(|error| of_change(&error))?.finish());
        Ok(())
    };
    code(split())
}

/// Joins the 512 pages of the next smaller size from `address` on to one page: of 2 MiB with PALIMPSEST_PAGING_ONLY_2M,
/// of 1 GiB with PALIMPSEST_PAGING_ONLY_1G. Writes 1 to `merged` if that was done, and 0 if it cannot be: they are not
/// adjacent in physical memory or not aligned, have different attributes, belong to the kernel, or are shared with a
/// fork.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `merged` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_merge(
    space: *const palimpsest_paging_space,
    address: u64,
    size: u32,
    merged: *mut u32,
) -> palimpsest_paging_result {
    let joined = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let size = match size {
            PALIMPSEST_PAGING_ONLY_2M => PageSize::Large,
            PALIMPSEST_PAGING_ONLY_1G => PageSize::Giant,
            _ => return Err(PALIMPSEST_PAGING_INVALID),
        };
        let merged = out(merged)?;
        let done = each_format!(space, space => space.merge(VirtAddr(address), size));
        let done = done.map_err(|error| of_change(&error))?;
        // SAFETY: contract 2; not null, and aligned.
        unsafe { merged.write(done.into()) };
        Ok(())
    };
    code(joined())
}
