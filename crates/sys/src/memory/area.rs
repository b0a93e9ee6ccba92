//! The addresses of a live mapping, and operations on it that do not depend on its contents.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::error::MapError;
use crate::caller::Process;

/// What a forked child gets of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFork {
    /// The mapping: the same memory if shared, a copy if private.
    Inherit,
    /// Nothing at these addresses (`MADV_DONTFORK`).
    Omit,
    /// The addresses, filled with zeros (`MADV_WIPEONFORK`; private anonymous memory only).
    Wipe,
}

/// The addresses of a live mapping. Owners that deref to it: [`Mapping`](crate::Mapping),
/// [`PlacedMapping`](crate::PlacedMapping).
#[derive(Debug)]
pub struct Area {
    /// # Invariants
    ///
    /// 1. `base..base + len` is mapped as long as the owner lives, and belongs only to the owner; but it is not mapped
    ///    in a forked child that does not get the mapping.
    /// 2. Both are multiples of the page size.
    base: NonNull<u8>,
    len: usize,
    /// The only [`Process`] that has the mapping, if forked children do not get it; zero if they do. Written by the
    /// thread that asks the kernel for either, read by threads that use the mapping.
    omitted_from_children_of: AtomicU32,
}

// SAFETY: an area is an address range; reading and writing through it is unsafe code elsewhere.
unsafe impl Send for Area {}
// SAFETY: as above; the methods only pass the range to the kernel.
unsafe impl Sync for Area {}

impl Area {
    /// Creates the area of a mapping.
    ///
    /// # Safety
    ///
    /// 1. `base..base + len` is mapped, page-aligned, and stays so until the owner of this value is dropped.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, omitted_from_children_of: AtomicU32::new(0) }
    }

    /// Returns whether the mapping exists: it does not in a child that did not get it, where other memory may lie by
    /// now.
    pub(crate) fn is_mapped_here(&self) -> bool {
        // Relaxed: set long before any fork that matters.
        match self.omitted_from_children_of.load(Ordering::Relaxed) {
            0 => true,
            owner => Process::from_word(owner).is(Process::current()),
        }
    }

    /// Returns the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the first address.
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: the kernel maps no empty range.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the addresses.
    pub fn range(&self) -> Range<usize> {
        self.address()..self.address() + self.len
    }

    /// Tells the kernel what a forked child gets of this area.
    ///
    /// # Errors
    ///
    /// [`MapError::Kernel`]: `EINVAL` for [`OnFork::Wipe`] of shared memory, or before Linux 4.14.
    pub fn on_fork(&self, what: OnFork) -> Result<(), MapError> {
        let advice = match what {
            OnFork::Inherit => Advice::LinuxDoFork,
            OnFork::Omit => Advice::LinuxDontFork,
            OnFork::Wipe => Advice::LinuxWipeOnFork,
        };
        self.advise(advice)?;
        let owner = if what == OnFork::Omit { Process::current().to_word() } else { 0 };
        self.omitted_from_children_of.store(owner, Ordering::Relaxed);
        Ok(())
    }

    /// Asks for transparent huge pages at the first touch (`MADV_HUGEPAGE`).
    ///
    /// # Errors
    ///
    /// [`MapError::Kernel`]: `EINVAL` where the kernel has none.
    pub fn prefer_huge_pages(&self) -> Result<(), MapError> {
        self.advise(Advice::LinuxHugepage)
    }

    /// Allocates every page now, as a write to each would (`MADV_POPULATE_WRITE`).
    ///
    /// # Errors
    ///
    /// [`MapError::Kernel`]: `EINVAL` before Linux 5.14, and for memory that is not writable.
    pub fn populate(&self) -> Result<(), MapError> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    fn advise(&self, advice: Advice) -> Result<(), MapError> {
        // SAFETY: the range is mapped (invariant 1); none of the advices above drops this process's contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }
            .map_err(|errno| MapError::diagnose("madvise", self.len, errno))
    }

    pub(crate) fn set_protection(&self, protection: MprotectFlags) -> Result<(), MapError> {
        // SAFETY: the range is mapped (invariant 1); callers in this crate never combine write and execute rights, and
        // hold no reference into it.
        unsafe { rustix::mm::mprotect(self.base.as_ptr().cast(), self.len, protection) }
            .map_err(|errno| MapError::diagnose("mprotect", self.len, errno))
    }
}

/// Reserves exactly `len` bytes of inaccessible address space at a multiple of `align`.
pub(crate) fn reserve_aligned(len: usize, align: usize) -> Result<Area, MapError> {
    let page = rustix::param::page_size();
    let padded = if align > page { len.saturating_add(align - page) } else { len };
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
    }
    .map_err(|errno| MapError::diagnose("mmap", padded, errno))?
    .cast::<u8>();
    let head = start.addr().next_multiple_of(align) - start.addr();
    let base = start.wrapping_add(head);
    trim(start, head);
    trim(base.wrapping_add(len), padded - head - len);
    let base = NonNull::new(base).ok_or(MapError::Kernel {
        call: "mmap",
        len,
        source: io::Error::from(io::ErrorKind::AddrNotAvailable),
    })?;
    // SAFETY: 1. the range was mapped above, start and length are page multiples, and it is handed to its owner here.
    Ok(unsafe { Area::new(base, len) })
}

fn trim(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the range is part of the mapping that `reserve_aligned` has just made and that nobody else knows. If
        // the call fails, some address space stays reserved and unused.
        let _ = unsafe { rustix::mm::munmap(start.cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::in_pid_namespace;

    /// Fails on: process ids that stand for processes. Both of these are number 1.
    #[test]
    fn a_child_in_a_nested_pid_namespace_lacks_what_it_does_not_get() {
        let status = in_pid_namespace(|| {
            let page = rustix::param::page_size();
            let [omitted, inherited] = [OnFork::Omit, OnFork::Inherit].map(|what| {
                let area = reserve_aligned(page, page).unwrap();
                area.on_fork(what).unwrap();
                area
            });
            let is_there = |area: &Area| area.is_mapped_here();
            let nested = || in_pid_namespace(|| !is_there(&omitted) && is_there(&inherited));
            is_there(&omitted) && is_there(&inherited) && nested() == Some(0)
        });
        assert!(matches!(status, None | Some(0)), "{status:?}");
    }
}
