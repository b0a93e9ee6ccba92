//! The kernel's calls on memory that is mapped, by [`Span`]: for code that owns address space by other means than the
//! types of this crate. None of them allocates.

use std::ptr;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::extent::{Commit, protection};
use super::span::Span;
use crate::pages::maps::Permissions;

/// Maps fresh private zeros at an address of the kernel's choice.
///
/// # Errors
///
/// The kernel's answer.
pub fn map(len: usize, permissions: Permissions, commit: Commit) -> Result<Span, Errno> {
    let counted = if commit == Commit::Uncounted { MapFlags::NORESERVE } else { MapFlags::empty() };
    let rights = ProtFlags::from_bits_retain(protection(permissions).cast_unsigned());
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE | counted) }?;
    let start = start.expose_provenance();
    Ok(Span::new(start, start + len))
}

/// Unmaps `span`.
///
/// # Safety
///
/// 1. It is the caller's, who uses it no more.
///
/// # Errors
///
/// The kernel's answer: ENOMEM where a mapping would be split and there are too many (`vm.max_map_count`).
pub unsafe fn unmap(span: Span) -> Result<(), Errno> {
    // SAFETY: (1).
    unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(span.start), span.len()) }
}

/// Gives memory these rights.
///
/// # Safety
///
/// 1. Nobody relies on rights that are taken away, and what may be written from now on is not meant to be constant.
///
/// # Errors
///
/// The kernel's answer.
pub unsafe fn protect(span: Span, permissions: Permissions) -> Result<(), Errno> {
    let rights = MprotectFlags::from_bits_retain(protection(permissions).cast_unsigned());
    // SAFETY: (1).
    unsafe { rustix::mm::mprotect(ptr::with_exposed_provenance_mut(span.start), span.len(), rights) }
}

/// How memory is given back to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// Pages of this process alone (`MADV_DONTNEED`): anonymous memory reads as zeros, a private mapping shows its
    /// file.
    Private,
    /// The pages of the file that is mapped shared (`MADV_REMOVE`), which read as zeros.
    File,
}

/// Gives the pages of `span` back.
///
/// # Safety
///
/// 1. Nobody needs the bytes that are lost.
///
/// # Errors
///
/// The kernel's answer: EINVAL for locked memory.
pub unsafe fn discard(span: Span, what: Discard) -> Result<(), Errno> {
    let advice = match what {
        Discard::Private => Advice::LinuxDontNeed,
        Discard::File => Advice::LinuxRemove,
    };
    // SAFETY: (1).
    unsafe { rustix::mm::madvise(ptr::with_exposed_provenance_mut(span.start), span.len(), advice) }
}

/// The program break. The C library's `sbrk(0)` answers from a variable.
pub fn program_break() -> usize {
    // SAFETY: 0 is below every program break, which is then only told (`mm/mmap.c`, `brk`).
    unsafe { libc::syscall(libc::SYS_brk, 0_usize) as usize }
}

/// Moves the program break to `wanted`, past the C library, which remembers where it was.
///
/// # Safety
///
/// 1. Nobody needs the memory that is unmapped by that, and the C library's own variable is made to agree.
///
/// # Errors
///
/// [`Errno::NOMEM`]: it stays where it is.
pub unsafe fn set_program_break(wanted: usize) -> Result<(), Errno> {
    // SAFETY: (1).
    let answer = unsafe { libc::syscall(libc::SYS_brk, wanted) } as usize;
    if answer == wanted { Ok(()) } else { Err(Errno::NOMEM) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extent::is_mapped;

    const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);

    #[test]
    fn memory_comes_and_goes() {
        let page = rustix::param::page_size();
        let span = map(2 * page, READ_WRITE, Commit::Counted).unwrap();
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
        // Another test's memory may lie there by now, but nothing is lost if it does.
        let _ = is_mapped(span.range());
    }

    #[test]
    fn the_break_is_that_of_the_kernel() {
        let now = program_break();
        // SAFETY: 1. it stays where it is.
        unsafe { set_program_break(now) }.unwrap();
        assert_ne!(now, 0);
    }
}
