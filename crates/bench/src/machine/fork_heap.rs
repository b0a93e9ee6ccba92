//! The heap of a forking process: memory that is written and read page by page.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use palimpsest_fork::arena::Arena;
use palimpsest_sys::HUGE_PAGE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// The pages that a heap asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeapPages {
    /// Pages of the base size, for good.
    Base,
    /// What the system gives unasked; it may be put into huge pages later.
    Unadvised,
    /// Transparent huge pages (`MADV_HUGEPAGE`).
    Huge,
}

/// Memory that stays until the process ends.
///
/// # Invariants
///
/// `start..start + len` is readable and writable, whole pages, and accessed only through this value.
#[derive(Debug)]
pub(crate) struct Heap {
    start: NonNull<u8>,
    len: usize,
    page: usize,
}

impl Heap {
    /// Maps `len` bytes, rounded up to pages, on a boundary of huge pages.
    pub(crate) fn map(len: usize, pages: HeapPages) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let len = len.next_multiple_of(page);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so the kernel chooses one where nothing is mapped.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len + HUGE_PAGE, rights, MapFlags::PRIVATE) }?;
        let skipped = mapped.addr().next_multiple_of(HUGE_PAGE) - mapped.addr();
        let start = mapped.wrapping_byte_add(skipped);
        let advice = match pages {
            HeapPages::Base => Some(Advice::LinuxNoHugepage),
            HeapPages::Unadvised => None,
            HeapPages::Huge => Some(Advice::LinuxHugepage),
        };
        if let Some(advice) = advice {
            // SAFETY: inside the new mapping; the advice changes no contents.
            let advised = unsafe { madvise(start, len, advice) };
            // Kernels without huge pages refuse either; they have only base pages anyway.
            if pages == HeapPages::Huge {
                advised?;
            }
        }
        Self::over(start.cast(), len, page)
    }

    /// Takes `len` bytes, rounded up to pages, from `arena`.
    pub(crate) fn allocate(len: usize, arena: &'static Arena) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let len = len.next_multiple_of(page);
        Self::over(arena.allocate(len, HUGE_PAGE), len, page)
    }

    fn over(start: *mut u8, len: usize, page: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len, page })
    }

    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.len / self.page
    }

    /// Returns the addresses of `pages`.
    pub(crate) fn addresses(&self, pages: Range<usize>) -> Range<usize> {
        let start = self.start.addr().get();
        start + pages.start * self.page..start + pages.end * self.page
    }

    /// Writes to page `page`, counted from 0.
    #[inline]
    pub(crate) fn write(&self, page: usize, value: u64) {
        // SAFETY: `word` returns a word of the heap.
        unsafe { self.word(page).write_volatile(value) };
    }

    /// Reads from page `page`, counted from 0.
    #[inline]
    pub(crate) fn read(&self, page: usize) -> u64 {
        // SAFETY: `word` returns a word of the heap; untouched memory is zeros.
        unsafe { self.word(page).read_volatile() }
    }

    fn word(&self, page: usize) -> *mut u64 {
        assert!(page < self.pages(), "page {page} of a heap of {}", self.pages());
        // In range by the check.
        self.start.as_ptr().wrapping_add(page * self.page).cast()
    }

    /// Turns all of it into untouched zeros again.
    pub(crate) fn discard(&self) -> io::Result<()> {
        // SAFETY: the memory belongs to this value, and nobody has a reference into it.
        Ok(unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontNeed) }?)
    }
}
