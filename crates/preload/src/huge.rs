//! Asks for huge pages as the program maps memory, if memory is to be gathered: what is huge from the first touch need
//! not be put together later.
//!
//! Such a mapping is one of its own beside a smaller neighbour, with which it would have merged otherwise
//! (`VM_HUGEPAGE` is a flag of the whole mapping): a `mremap` over both is refused, from Linux 6.17 on only if their
//! length changes.
//!
//! Only for large private anonymous mappings that can be written, as allocators make them. What the program says of its
//! memory later (`madvise`) comes after this and counts; a process or a system that wants no huge pages
//! (`PR_SET_THP_DISABLE`, `never`) gets none from the kernel.

use std::ffi::{c_int, c_void};

use libc::size_t;

use crate::settings::Mapped;
use crate::{confined, errno, kernel, started};

/// The size of a huge page on most machines. The kernel begins mappings of this length at a multiple of it.
const PIECE: usize = 2 << 20;

/// Kinds of mappings that are left as they are: stacks, which are used from one end; what has its pages already; and
/// what consists of huge pages anyway.
const LEFT: c_int = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_HUGETLB;

/// Whether a new mapping should consist of huge pages.
fn suits(length: usize, protection: c_int, flags: c_int) -> bool {
    let is_anonymous = flags & (libc::MAP_ANONYMOUS | libc::MAP_TYPE) == libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
    let is_data = protection == libc::PROT_READ | libc::PROT_WRITE;
    length >= PIECE && is_anonymous && is_data && flags & LEFT == 0
}

/// Called with each mapping that the program has just made.
pub(crate) fn mapped(address: *mut c_void, length: size_t, protection: c_int, flags: c_int) {
    // A filter may end the program for a call that it does not make itself.
    if !suits(length, protection, flags) || confined::is_seen() {
        return;
    }
    if started::get().is_some_and(|started| started.settings.mapped == Mapped::Huge) {
        let before = errno::get();
        // If it is refused, there are base pages. SAFETY: 1. of memory that nobody uses yet; changes no contents.
        unsafe { kernel::madvise(address, length, libc::MADV_HUGEPAGE) };
        errno::set(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_private_memory_that_is_written_suits() {
        let (data, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        assert!(suits(PIECE, data, own) && suits(64 * PIECE, data, own | libc::MAP_NORESERVE | libc::MAP_FIXED));
        assert!(!suits(PIECE - 1, data, own), "small");
        for protection in [libc::PROT_NONE, libc::PROT_READ, data | libc::PROT_EXEC] {
            assert!(!suits(PIECE, protection, own), "{protection}");
        }
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, own | libc::MAP_STACK] {
            assert!(!suits(PIECE, data, flags), "{flags:#x}");
        }
        assert!(!suits(PIECE, data, own | libc::MAP_POPULATE) && !suits(PIECE, data, own | libc::MAP_HUGETLB));
    }
}
