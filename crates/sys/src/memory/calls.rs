//! The memory calls that change what is at an address, one by one: for whoever stands between a program and the kernel.
//!
//! Each goes to the kernel past the C library's function of that name, which may be interposed. None allocates. A
//! program that is confined by a filter and makes such calls itself may make these.

use std::ptr;

use rustix::io::Errno;

use super::extent::{Commit, protection};
use super::span::Span;
use crate::last_errno;
use crate::pages::maps::Permissions;

/// `MREMAP_DONTUNMAP` of `include/uapi/linux/mman.h`.
const DONT_UNMAP: i32 = 4;

/// Gives advice.
///
/// # Safety
///
/// 1. The caller may give it: advice can discard contents.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn advise(span: Span, advice: i32) -> Result<(), Errno> {
    // SAFETY: (1).
    answer(unsafe { libc::syscall(libc::SYS_madvise, span.start, span.len(), advice) })
}

/// Whether all of `span` is mapped. Changes nothing: `MADV_WILLNEED` only reads ahead, and says ENOMEM for a hole
/// (`madvise(2)`).
pub fn is_all_mapped(span: Span) -> bool {
    // SAFETY: 1. changes no contents.
    let told = unsafe { advise(span, libc::MADV_WILLNEED) };
    told != Err(Errno::NOMEM)
}

/// Changes rights.
///
/// # Safety
///
/// 1. The memory is the caller's, and who uses it can do with these rights.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn protect(span: Span, permissions: Permissions) -> Result<(), Errno> {
    // SAFETY: (1).
    answer(unsafe { libc::syscall(libc::SYS_mprotect, span.start, span.len(), protection(permissions)) })
}

/// Unmaps; nothing if the span is empty.
///
/// # Safety
///
/// 1. The memory is the caller's to unmap.
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

/// Moves memory to `to`, in the place of what is there.
///
/// # Safety
///
/// 1. The memory is the caller's to move, and so is what lies at `to`.
///
/// # Errors
///
/// The kernel's; EFAULT if it is of several mappings, before Linux 6.17.
pub unsafe fn relocate(span: Span, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: (1).
    answer(unsafe { libc::syscall(libc::SYS_mremap, span.start, span.len(), span.len(), flags, to) })
}

/// Maps what `span` shows a second time, at an address of the kernel's choice. Pages that were written go there.
///
/// # Safety
///
/// 1. The memory is the caller's.
///
/// # Errors
///
/// The kernel's; EINVAL before Linux 5.13.
pub unsafe fn duplicate(span: Span) -> Result<usize, Errno> {
    let flags = libc::MREMAP_MAYMOVE | DONT_UNMAP;
    // SAFETY: (1).
    let made = unsafe { libc::syscall(libc::SYS_mremap, span.start, span.len(), span.len(), flags, 0) };
    if made == -1 { Err(last_errno()) } else { Ok(made.cast_unsigned() as usize) }
}

/// Maps zeros at an address of the kernel's choice.
///
/// # Errors
///
/// The kernel's.
pub fn map_zeros(len: usize, permissions: Permissions, commit: Commit) -> Result<usize, Errno> {
    let flags = anonymous(commit);
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, protection(permissions), flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(last_errno()) } else { Ok(mapped.expose_provenance()) }
}

/// Maps zeros at `span` if nothing is there.
pub fn fill_hole(span: Span, permissions: Permissions, commit: Commit) -> bool {
    let flags = anonymous(commit) | libc::MAP_FIXED_NOREPLACE;
    let at = ptr::with_exposed_provenance_mut(span.start);
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; kernels before 4.17 take it for a hint, checked below.
    let mapped = unsafe { libc::mmap(at, span.len(), protection(permissions), flags, -1, 0) };
    if mapped == libc::MAP_FAILED || mapped == at {
        return mapped == at;
    }
    // SAFETY: 1. made this instant, and nobody else's.
    let _ = unsafe { unmap(Span::new(mapped.addr(), mapped.addr() + span.len())) };
    false
}

const fn anonymous(commit: Commit) -> i32 {
    let counted = match commit {
        Commit::Counted => 0,
        Commit::Uncounted => libc::MAP_NORESERVE,
    };
    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | counted
}

fn answer(answer: i64) -> Result<(), Errno> {
    if answer == -1 { Err(last_errno()) } else { Ok(()) }
}
