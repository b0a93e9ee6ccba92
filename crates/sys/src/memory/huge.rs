//! Huge pages by request: `MADV_COLLAPSE`.

use std::io;
use std::ops::Range;

use rustix::mm::Advice;

use crate::memory::area::Area;
use crate::proc::thp;

/// The size of a huge page for packs, in bytes: 2 MiB, which a page middle directory entry maps if the base page is 4
/// KiB (x86-64; AArch64 with the 4 KiB granule).
pub const HUGE_PAGE: usize = 2 << 20;

/// Number of attempts, if a collapse loses a race.
const ATTEMPTS: usize = 4;

/// Why a range was not collapsed into huge pages. It can be used all the same.
#[derive(Debug, thiserror::Error)]
pub enum CollapseError {
    /// The kernel's huge page has another size than a pack.
    #[error("this kernel's huge page has {found} bytes, not {HUGE_PAGE}; packs stay in base pages")]
    PageSize {
        /// `hpage_pmd_size`, in bytes.
        found: usize,
    },
    /// `EINVAL`: no kernel support, or the range is not eligible.
    #[error(
        "MADV_COLLAPSE is refused here: it needs Linux 6.1, a PR_SET_THP_DISABLE that is off and, for shared memory, \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled other than \"deny\""
    )]
    Ineligible(#[source] io::Error),
    /// There is no 2 MiB of contiguous free physical memory, or none within the cgroup's limit.
    #[error("no free huge page; free some memory or run `echo 1 > /proc/sys/vm/compact_memory`")]
    NoMemory(#[source] io::Error),
    /// Pages were busy in every attempt.
    #[error("pages stayed busy in {ATTEMPTS} attempts to collapse them")]
    Busy(#[source] io::Error),
}

/// Makes `area` (2 MiB-aligned; at least one page of each 2 MiB present) consist of huge pages, mapped as such in this
/// view. Keeps the contents; threads that access it meanwhile wait.
///
/// Works for shared memory even if `shmem_enabled` is `never`, and without privileges (`mm/khugepaged.c`, `mm/shmem.c`:
/// a forced collapse only respects `deny`).
///
/// # Errors
///
/// See [`CollapseError`]; the area stays usable in smaller pages.
pub fn collapse(area: &Area) -> Result<(), CollapseError> {
    collapse_part(area, 0..area.len())
}

/// Does what [`collapse`] does for a part of the area, which is whole huge pages.
pub(crate) fn collapse_part(area: &Area, part: Range<usize>) -> Result<(), CollapseError> {
    let len = part.end.min(area.len()).saturating_sub(part.start);
    let start = area.as_ptr().wrapping_add(part.start);
    match thp::hpage_pmd_size() {
        Ok(found) if found != HUGE_PAGE => return Err(CollapseError::PageSize { found }),
        // Without sysfs the size is unknown; the kernel refuses what it cannot do.
        _ => {}
    }
    map_first_pages(start, len);
    for attempt in 1.. {
        // SAFETY: the range is mapped for the life of `area`; a collapse keeps contents and rights.
        let answer = unsafe { libc::madvise(start.cast(), len, libc::MADV_COLLAPSE) };
        if answer == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EAGAIN) if attempt < ATTEMPTS => {}
            Some(libc::EBUSY | libc::EAGAIN) => return Err(CollapseError::Busy(error)),
            Some(libc::ENOMEM) => return Err(CollapseError::NoMemory(error)),
            _ => return Err(CollapseError::Ineligible(error)),
        }
    }
    unreachable!("the loop ends by returning")
}

/// Gives this view a page table for every huge page: Linux before 6.2 refuses a range of shared memory without one
/// (`find_pmd_or_thp_or_none` in `mm/khugepaged.c`).
fn map_first_pages(start: *mut u8, len: usize) {
    let page = rustix::param::page_size();
    for offset in (0..len).step_by(HUGE_PAGE) {
        let at = start.wrapping_add(offset).cast();
        // SAFETY: the page is part of the caller's area; populating changes no contents. It fails only where it is not
        // needed: Linux before 5.14 has neither this advice nor collapse.
        let _ = unsafe { rustix::mm::madvise(at, page, Advice::LinuxPopulateRead) };
    }
}
