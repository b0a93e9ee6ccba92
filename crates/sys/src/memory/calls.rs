//! The kernel's calls on memory, one by one, by [`Span`]: for code that owns address space without the types of this
//! crate, or that stands between a program and the kernel.
//!
//! Calls that change what is at an address bypass the C library's function of that name, which may be interposed; only
//! `mmap` is called by it. None allocates. They use only system calls that programs under a filter make themselves,
//! except for [`in_memory`] and [`locks_future_memory`].

use std::os::fd::AsFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::span::Span;
use crate::last_errno;
use crate::pages::maps::Permissions;

/// `MREMAP_DONTUNMAP` of `include/uapi/linux/mman.h`.
const DONT_UNMAP: i32 = 4;

/// Whether anonymous memory counts as committed when it is mapped (`vm.overcommit_memory`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Commit {
    /// It counts.
    Counted,
    /// It does not, as far as the kernel allows that (`MAP_NORESERVE`).
    Uncounted,
}

/// Gives advice about `span`.
///
/// # Safety
///
/// 1. The caller may give this advice, which can discard contents.
///
/// # Errors
///
/// The kernel's.
#[inline]
pub unsafe fn advise(span: Span, advice: i32) -> Result<(), Errno> {
    // SAFETY: 1. is this function's own.
    unsafe { madvise(span.start, span.len(), advice) }
}

/// Calls `madvise`, whatever the arguments are.
///
/// # Safety
///
/// 1. The caller may give this advice, which can discard contents.
///
/// # Errors
///
/// The kernel's.
#[inline]
pub unsafe fn madvise(address: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: (1).
    answer(unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) })
}

/// How to give memory back to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// Only this process's pages (`MADV_DONTNEED`): anonymous memory then reads as zeros, a private mapping shows its
    /// file.
    Private,
    /// The pages of the file that is mapped shared (`MADV_REMOVE`), which then read as zeros.
    File,
}

/// Gives back the pages of `span`.
///
/// # Safety
///
/// 1. Nobody needs the bytes that are lost.
///
/// # Errors
///
/// The kernel's: EINVAL for locked memory.
pub unsafe fn discard(span: Span, what: Discard) -> Result<(), Errno> {
    let advice = match what {
        Discard::Private => libc::MADV_DONTNEED,
        Discard::File => libc::MADV_REMOVE,
    };
    // SAFETY: 1. is (1).
    unsafe { advise(span, advice) }
}

/// Returns whether all of `span` is mapped. Changes nothing: `MADV_WILLNEED` only reads ahead, and fails with ENOMEM
/// for a hole (`madvise(2)`).
pub fn is_all_mapped(span: Span) -> bool {
    // SAFETY: 1. changes no contents.
    let told = unsafe { advise(span, libc::MADV_WILLNEED) };
    told != Err(Errno::NOMEM)
}

/// Whether the kernel knows this advice: it looks at that before it sees that there is nothing to do (`do_madvise` in
/// mm/madvise.c).
pub fn knows(advice: i32) -> bool {
    // SAFETY: 1. no memory is concerned.
    unsafe { advise(Span::new(0, 0), advice) }.is_ok()
}

/// Changes the rights of `span`.
///
/// # Safety
///
/// 1. The memory belongs to the caller, and all its users can work with these rights.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn protect(span: Span, permissions: Permissions) -> Result<(), Errno> {
    // SAFETY: (1).
    answer(unsafe { libc::syscall(libc::SYS_mprotect, span.start, span.len(), protection(permissions)) })
}

/// Calls `mprotect`, or `pkey_mprotect` unless `key` is -1, whatever the arguments are: kernels without protection keys
/// lack the second.
///
/// # Safety
///
/// 1. As [`protect`].
///
/// # Errors
///
/// The kernel's.
pub unsafe fn mprotect(address: usize, len: usize, rights: i32, key: i32) -> Result<(), Errno> {
    let number = if key == -1 { libc::SYS_mprotect } else { libc::SYS_pkey_mprotect };
    // SAFETY: (1).
    answer(unsafe { libc::syscall(number, address, len, rights, key) })
}

/// Unmaps `span`. Does nothing if it is empty.
///
/// # Safety
///
/// 1. The caller may unmap the memory.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn unmap(span: Span) -> Result<(), Errno> {
    if span.is_empty() {
        return Ok(());
    }
    // SAFETY: (1).
    answer(unsafe { libc::syscall(libc::SYS_munmap, span.start, span.len()) })
}

/// Moves `span` to `to`, and replaces what is there.
///
/// # Safety
///
/// 1. The caller may move the memory, and replace what lies at `to`.
///
/// # Errors
///
/// The kernel's; EFAULT for several mappings, before Linux 6.17.
pub unsafe fn relocate(span: Span, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: 1. (1).
    unsafe { remap(span, span.len(), flags, to) }.map(drop)
}

/// Maps what `span` shows a second time, at an address that the kernel chooses. Written pages move there.
///
/// # Safety
///
/// 1. The memory belongs to the caller.
///
/// # Errors
///
/// The kernel's; EINVAL before Linux 5.13.
pub unsafe fn duplicate(span: Span) -> Result<usize, Errno> {
    let flags = libc::MREMAP_MAYMOVE | DONT_UNMAP;
    // SAFETY: 1. (1).
    unsafe { remap(span, span.len(), flags, 0) }
}

/// As [`duplicate`], at `to`, in place of what is there.
///
/// # Safety
///
/// 1. The memory belongs to the caller, who may replace what lies at `to`.
///
/// # Errors
///
/// The kernel's; EINVAL before Linux 5.13.
pub unsafe fn duplicate_over(span: Span, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONT_UNMAP;
    // SAFETY: 1. (1).
    unsafe { remap(span, span.len(), flags, to) }.map(drop)
}

/// Calls `mremap(2)` directly, past interposed functions: resizes or moves memory, and returns its new address.
///
/// # Safety
///
/// 1. The caller may resize and move the memory; with `MREMAP_FIXED` it may also replace what lies at `to`.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn remap(span: Span, new_len: usize, flags: i32, to: usize) -> Result<usize, Errno> {
    // SAFETY: 1. is this function's own.
    unsafe { mremap(span.start, span.len(), new_len, flags, to) }
}

/// Calls `mremap`, whatever the arguments are. Returns the new address.
///
/// # Safety
///
/// 1. As [`remap`].
///
/// # Errors
///
/// The kernel's.
pub unsafe fn mremap(address: usize, len: usize, new_len: usize, flags: i32, to: usize) -> Result<usize, Errno> {
    // SAFETY: (1).
    let made = unsafe { libc::syscall(libc::SYS_mremap, address, len, new_len, flags, to) };
    if made == -1 { Err(last_errno()) } else { Ok(made.cast_unsigned() as usize) }
}

/// Maps the first `len` bytes of `file` for reading and executing, at an address that the kernel chooses. The mapping
/// stays: nobody learns the address, so that nobody can unmap, write or enter it.
///
/// # Errors
///
/// The kernel's: EPERM if the file system is mounted `noexec`.
pub fn map_for_onlookers(file: impl AsFd, len: usize) -> Result<(), Errno> {
    let rights = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, MapFlags::PRIVATE, file, 0) }.map(drop)
}

/// Maps fresh private zeros at an address that the kernel chooses.
///
/// # Errors
///
/// The kernel's.
#[inline]
pub fn map(len: usize, permissions: Permissions, commit: Commit) -> Result<Span, Errno> {
    let flags = anonymous(commit);
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, protection(permissions), flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(last_errno());
    }
    let start = mapped.expose_provenance();
    Ok(Span::new(start, start + len))
}

/// Maps zeros at `span` if nothing is mapped there.
pub fn fill_hole(span: Span, permissions: Permissions, commit: Commit) -> bool {
    let flags = anonymous(commit) | libc::MAP_FIXED_NOREPLACE;
    let at = ptr::with_exposed_provenance_mut(span.start);
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; kernels before 4.17 take it for a hint, checked below.
    let mapped = unsafe { libc::mmap(at, span.len(), protection(permissions), flags, -1, 0) };
    if mapped == libc::MAP_FAILED || mapped == at {
        return mapped == at;
    }
    // SAFETY: 1. made just now, and only known here.
    let _ = unsafe { unmap(Span::new(mapped.addr(), mapped.addr() + span.len())) };
    false
}

/// Returns the program break. The C library's `sbrk(0)` returns a variable instead.
pub fn program_break() -> usize {
    // SAFETY: 0 is below every program break, so the call only returns it (`mm/mmap.c`, `brk`).
    unsafe { libc::syscall(libc::SYS_brk, 0_usize) as usize }
}

/// Moves the program break to `wanted`, past the C library, which remembers the old one.
///
/// # Safety
///
/// 1. Nobody needs the memory that this unmaps, and the caller updates the C library's own variable.
///
/// # Errors
///
/// [`Errno::NOMEM`]: it stays where it was.
pub unsafe fn set_program_break(wanted: usize) -> Result<(), Errno> {
    // SAFETY: (1).
    let answer = unsafe { libc::syscall(libc::SYS_brk, wanted) } as usize;
    if answer == wanted { Ok(()) } else { Err(Errno::NOMEM) }
}

/// Maps fresh zeros privately over `span`, and replaces what is there. If the call fails, the kernel may have unmapped
/// that already.
///
/// # Safety
///
/// 1. `span` is whole pages, and the caller may replace what is mapped there.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn map_zeros_over(span: Span, permissions: Permissions, commit: Commit) -> Result<(), Errno> {
    let at = ptr::with_exposed_provenance_mut(span.start);
    let flags = anonymous(commit) | libc::MAP_FIXED;
    // SAFETY: (1).
    let mapped = unsafe { libc::mmap(at, span.len(), protection(permissions), flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(last_errno()) } else { Ok(()) }
}

/// Returns whether all future mappings are locked in memory (`mlockall(MCL_FUTURE)`). Allocates nothing.
pub fn locks_future_memory() -> bool {
    let page = rustix::param::page_size();
    // SAFETY: a new mapping replaces nothing.
    let place = unsafe { libc::mmap(ptr::null_mut(), page, libc::PROT_NONE, anonymous(Commit::Counted), -1, 0) };
    if place == libc::MAP_FAILED {
        // The answer is EAGAIN if a limit forbids locking any more (`mlock_future_ok` in mm/mmap.c).
        return last_errno() == Errno::AGAIN;
    }
    // MS_INVALIDATE is refused for locked memory, and does nothing to anonymous memory (msync(2), mm/msync.c).
    // SAFETY: this function's own mapping.
    let is_locked =
        unsafe { libc::msync(place, page, libc::MS_INVALIDATE | libc::MS_ASYNC) } == -1 && last_errno() == Errno::BUSY;
    // SAFETY: this function's own mapping, which only it knows.
    unsafe { libc::munmap(place, page) };
    is_locked
}

/// Returns how many pages of `span`, at most 512 pages, are in memory (`mincore(2)`); `None` if not all are mapped.
/// Changes `errno`.
pub fn in_memory(span: Span) -> Option<usize> {
    let mut answers = [0_u8; 512];
    if span.len() / rustix::param::page_size() > answers.len() {
        return None;
    }
    // SAFETY: the kernel writes one byte for each page, of which there are no more than entries in `answers`.
    let answer =
        unsafe { libc::mincore(ptr::with_exposed_provenance_mut(span.start), span.len(), answers.as_mut_ptr()) };
    // The other bits are reserved.
    (answer == 0).then(|| answers.iter().filter(|page| **page & 1 != 0).count())
}

/// Returns the rights for `mmap` that stand for `permissions`: those that the program itself has given to its memory.
#[inline]
pub(crate) const fn protection(permissions: Permissions) -> i32 {
    let mut protection = libc::PROT_NONE;
    if permissions.contains(Permissions::READ) {
        protection |= libc::PROT_READ;
    }
    if permissions.contains(Permissions::WRITE) {
        protection |= libc::PROT_WRITE;
    }
    if permissions.contains(Permissions::EXECUTE) {
        protection |= libc::PROT_EXEC;
    }
    protection
}

#[inline]
const fn anonymous(commit: Commit) -> i32 {
    let counted = match commit {
        Commit::Counted => 0,
        Commit::Uncounted => libc::MAP_NORESERVE,
    };
    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | counted
}

#[inline]
fn answer(answer: i64) -> Result<(), Errno> {
    if answer == -1 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_and_goes() {
        let page = rustix::param::page_size();
        let span = map(2 * page, Permissions::READ_WRITE, Commit::Counted).unwrap();
        let at = ptr::with_exposed_provenance_mut::<u8>(span.start);
        // SAFETY: mapped writable just now.
        unsafe { at.write(7) };
        // SAFETY: 1. this test's own memory.
        unsafe { protect(span, Permissions::READ) }.unwrap();
        let maps = crate::pages::maps::Maps::read().unwrap();
        assert_eq!(maps.at(span.start).unwrap().permissions, Permissions::READ);
        // SAFETY: 1. this test's own memory.
        unsafe { discard(span, Discard::Private) }.unwrap();
        // SAFETY: still mapped readable.
        assert_eq!(unsafe { at.read() }, 0);
        // SAFETY: 1. as above.
        unsafe { unmap(span) }.unwrap();
        // Another test's memory may lie there by now, but the check does no harm.
        let _ = in_memory(span);
    }

    #[test]
    fn the_break_is_that_of_the_kernel() {
        let now = program_break();
        // SAFETY: 1. the break stays where it is.
        unsafe { set_program_break(now) }.unwrap();
        assert_ne!(now, 0);
    }
}
