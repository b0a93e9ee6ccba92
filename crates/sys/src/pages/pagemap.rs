//! Which pages of a range are populated, and which are this process's own copies: `/proc/thread-self/pagemap`.
//!
//! There are two ways: the `PAGEMAP_SCAN` ioctl (Linux 6.7), which walks page tables in the kernel and returns runs,
//! and reading the file's entry of 8 bytes for every page. They differ for the zero page, which a read fault maps into
//! untouched anonymous memory: only the ioctl tells it from a populated page. Entries show it as present, since frame
//! numbers need `CAP_SYS_ADMIN`.
//!
//! Pages that were swapped out count as present: a scan that forgot them would lose their contents. Other non-present
//! entries (migration, userfaultfd's write-protect markers) count as swapped too; guard markers do not, if the kernel
//! reports them (6.15).
//!
//! Sources: `Documentation/admin-guide/mm/pagemap.rst`, `fs/proc/task_mmu.c` (`pagemap_page_category`,
//! `pte_to_pagemap_entry`), `include/uapi/linux/fs.h`.

use std::ffi::CStr;
use std::io;
use std::ops::{ControlFlow, Range};

use rustix::fd::AsRawFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::brief_file::BriefFile;
use crate::memory::file::FileId;

/// The kind of pages to look for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wanted {
    /// Pages with contents: present or swapped, and not the zero page (the module says which way can tell).
    Present,
    /// Pages that are private to this process: present or swapped, not the zero page, and not a page of a file. In a
    /// private mapping of a file these are the pages written since it was made.
    Written,
    /// Guard markers (`MADV_GUARD_INSTALL`), which are no pages: code that replaces a mapping must make them again.
    /// Kernels 6.13 and 6.14 have them but do not report them; there they look like swapped pages, and reading one
    /// fails.
    Guards,
    /// Pages that one entry maps as a whole huge page. Only the ioctl reports them; the other way finds none.
    Huge,
    /// Present pages of no file that another process may show too, such as a child since its fork; includes the zero
    /// page.
    Shared,
}

/// How to query a pagemap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScanWay {
    /// `ioctl(PAGEMAP_SCAN)`, Linux 6.7.
    Ioctl,
    /// Reading each page's entry; works on every kernel, and takes time even for absent pages.
    Entries,
}

/// Why a pagemap cannot be queried.
#[derive(Debug, thiserror::Error)]
pub enum PagemapError {
    /// It cannot be opened.
    #[error("cannot open /proc/thread-self/pagemap; is /proc mounted?")]
    Open(#[source] io::Error),
    /// The way asked for is refused here.
    #[error("PAGEMAP_SCAN is refused here: it needs Linux 6.7; use ScanWay::Entries")]
    NoIoctl(#[source] io::Error),
    /// The range is not whole pages.
    #[error("{start:#x}..{end:#x} is not a range of whole pages; round it to pages of {page} bytes")]
    Unaligned {
        /// First address.
        start: usize,
        /// One past the last address.
        end: usize,
        /// Size of a page in bytes.
        page: usize,
    },
    /// A query was refused.
    #[error("cannot tell which pages of {start:#x}..{end:#x} are in use ({way:?})")]
    Scan {
        /// First address.
        start: usize,
        /// One past the last address.
        end: usize,
        /// The way of asking.
        way: ScanWay,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// The page tables of the process that opened it: a forked child must open its own, or it sees its parent's pages.
///
/// Nothing here allocates from the heap, so that a heap can be examined while it is remapped.
#[derive(Debug)]
pub struct Pagemap {
    /// `None` once it is [closed](Self::close).
    file: Option<BriefFile>,
    way: Way,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    /// With the categories to exclude that the kernel knows.
    Ioctl {
        unwanted: u64,
    },
    Entries,
}

impl Pagemap {
    /// Opens this process's pagemap and picks the best way that works. Forked children inherit the file: its owner
    /// closes it there.
    ///
    /// # Errors
    ///
    /// [`PagemapError::Open`].
    pub fn open() -> Result<Self, PagemapError> {
        let file = rustix::fs::openat(CWD, PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| PagemapError::Open(errno.into()))?;
        Ok(Self::of(BriefFile::lasting(file)))
    }

    /// The same for a moment: [forked children close it](crate::brief_file).
    ///
    /// # Errors
    ///
    /// [`PagemapError::Open`].
    pub fn open_briefly() -> Result<Self, PagemapError> {
        open().map(Self::of)
    }

    fn of(file: BriefFile) -> Self {
        let way = probe_ioctl(&file).unwrap_or(Way::Entries);
        Self { file: Some(file), way }
    }

    /// Opens this process's pagemap, to be queried in this way.
    ///
    /// # Errors
    ///
    /// [`PagemapError::Open`], [`PagemapError::NoIoctl`].
    pub fn with_way(way: ScanWay) -> Result<Self, PagemapError> {
        let file = open()?;
        let way = match way {
            ScanWay::Ioctl => probe_ioctl(&file).map_err(|errno| PagemapError::NoIoctl(errno.into()))?,
            ScanWay::Entries => Way::Entries,
        };
        Ok(Self { file: Some(file), way })
    }

    /// Returns how it is queried.
    pub const fn way(&self) -> ScanWay {
        match self.way {
            Way::Ioctl { .. } => ScanWay::Ioctl,
            Way::Entries => ScanWay::Entries,
        }
    }

    /// Calls `found` with each maximal run of wanted pages in `range`, ascending, until it breaks. Unmapped addresses
    /// are no pages; `range` may contain any number of mappings.
    ///
    /// Pages that change during the scan may count either way.
    ///
    /// # Errors
    ///
    /// [`PagemapError::Unaligned`], [`PagemapError::Scan`]; `found` may have been called before.
    pub fn scan(
        &self,
        range: Range<usize>,
        wanted: Wanted,
        found: &mut dyn FnMut(Range<usize>) -> ControlFlow<()>,
    ) -> Result<(), PagemapError> {
        let page = rustix::param::page_size();
        if !range.start.is_multiple_of(page) || !range.end.is_multiple_of(page) || range.end < range.start {
            return Err(PagemapError::Unaligned { start: range.start, end: range.end, page });
        }
        let mut runs = Joiner { pending: range.start..range.start, found };
        let ended = match self.way {
            Way::Ioctl { unwanted } if wanted != Wanted::Shared => {
                self.by_ioctl(range.clone(), wanted, unwanted, &mut runs)
            }
            // The ioctl does not tell who else maps a page.
            Way::Ioctl { .. } | Way::Entries => self.by_entries(range.clone(), wanted, page, &mut runs),
        };
        let ended = ended.map_err(|errno| PagemapError::Scan {
            start: range.start,
            end: range.end,
            way: self.way(),
            source: errno.into(),
        })?;
        if ended.is_continue() {
            // Nothing is behind the last run, so it does not matter whether the caller breaks there.
            let _ = runs.flush();
        }
        Ok(())
    }

    /// Returns whether a page of `range`, which is whole pages, is a guard marker, or the kernel does not answer. Reads
    /// each page's entry: entries show guards since Linux 6.15, and the ioctl may come later.
    pub fn has_guards(&self, range: Range<usize>) -> bool {
        let mut has = false;
        let mut found = |_: Range<usize>| {
            has = true;
            ControlFlow::Break(())
        };
        let mut runs = Joiner { pending: range.start..range.start, found: &mut found };
        let read = self.by_entries(range, Wanted::Guards, rustix::param::page_size(), &mut runs);
        // Whoever is told breaks.
        let _ = runs.flush();
        has || read.is_err()
    }

    fn by_ioctl(
        &self,
        range: Range<usize>,
        wanted: Wanted,
        unwanted: u64,
        runs: &mut Joiner<'_>,
    ) -> Result<ControlFlow<()>, Errno> {
        let mut regions = [Region::default(); REGIONS];
        // An inverted and required category is one that the page must not have.
        let (required, inverted) = match wanted {
            Wanted::Present => (unwanted, unwanted),
            Wanted::Written => (unwanted | PAGE_IS_FILE, unwanted | PAGE_IS_FILE),
            Wanted::Guards if unwanted & PAGE_IS_GUARD == 0 => return Ok(ControlFlow::Continue(())),
            Wanted::Guards => (PAGE_IS_GUARD, 0),
            Wanted::Huge => (unwanted | PAGE_IS_HUGE, unwanted),
            Wanted::Shared => return Ok(ControlFlow::Continue(())),
        };
        let mut start = range.start;
        while start < range.end {
            let (count, end) = scan_once(self.file()?, start..range.end, (required, inverted), &mut regions)?;
            for region in &regions[..count] {
                #[expect(clippy::cast_possible_truncation, reason = "addresses of this process, of 64 bits")]
                let run = region.start as usize..region.end as usize;
                if runs.add(run).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if end <= start {
                // A kernel that makes no progress would keep the loop here for ever.
                return Err(Errno::IO);
            }
            start = end;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn by_entries(
        &self,
        range: Range<usize>,
        wanted: Wanted,
        page: usize,
        runs: &mut Joiner<'_>,
    ) -> Result<ControlFlow<()>, Errno> {
        let mut buffer = [0_u8; ENTRY * ENTRIES];
        let mut address = range.start;
        while address < range.end {
            let want = ((range.end - address) / page).min(ENTRIES) * ENTRY;
            let offset = (address / page * ENTRY) as u64;
            let got = match rustix::io::pread(self.file()?, &mut buffer[..want], offset) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if got < ENTRY {
                // Behind the end of user space.
                break;
            }
            for entry in buffer[..got].as_chunks::<ENTRY>().0 {
                if is_wanted(u64::from_ne_bytes(*entry), wanted) && runs.add(address..address + page).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                address += page;
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Pagemap {
    /// Closes the file: all later queries fail.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// Returns the identity of the queried file; `None` once it is closed.
    pub fn id(&self) -> Option<FileId> {
        rustix::fs::fstat(self.file.as_ref()?).ok().map(|stat| FileId::of(&stat))
    }

    fn file(&self) -> Result<&BriefFile, Errno> {
        self.file.as_ref().ok_or(Errno::BADF)
    }
}

/// Joins neighbouring runs before it passes them on.
struct Joiner<'a> {
    pending: Range<usize>,
    found: &'a mut dyn FnMut(Range<usize>) -> ControlFlow<()>,
}

impl Joiner<'_> {
    fn add(&mut self, run: Range<usize>) -> ControlFlow<()> {
        if self.pending.end == run.start && !self.pending.is_empty() {
            self.pending.end = run.end;
            return ControlFlow::Continue(());
        }
        self.flush()?;
        self.pending = run;
        ControlFlow::Continue(())
    }

    fn flush(&mut self) -> ControlFlow<()> {
        if self.pending.is_empty() { ControlFlow::Continue(()) } else { (self.found)(self.pending.clone()) }
    }
}

/// Bytes of an entry of the pagemap.
const ENTRY: usize = size_of::<u64>();
/// Entries read at a time: one page of 4 KiB, which is also the kernel's own buffer.
const ENTRIES: usize = 512;
const PM_MMAP_EXCLUSIVE: u64 = 1 << 56;
const PM_GUARD_REGION: u64 = 1 << 58;
const PM_FILE: u64 = 1 << 61;
const PM_SWAP: u64 = 1 << 62;
const PM_PRESENT: u64 = 1 << 63;

/// Returns whether the page with this entry is wanted.
const fn is_wanted(entry: u64, wanted: Wanted) -> bool {
    let refused = match wanted {
        Wanted::Present => PM_GUARD_REGION,
        Wanted::Written => PM_GUARD_REGION | PM_FILE,
        Wanted::Guards => return entry & PM_GUARD_REGION != 0,
        Wanted::Huge => return false,
        Wanted::Shared => return entry & (PM_PRESENT | PM_FILE | PM_MMAP_EXCLUSIVE | PM_GUARD_REGION) == PM_PRESENT,
    };
    entry & (PM_PRESENT | PM_SWAP) != 0 && entry & refused == 0
}

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// Mapped by one huge entry.
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Known since Linux 6.15.
const PAGE_IS_GUARD: u64 = 1 << 8;

/// Runs taken from the kernel at a time: 3 KiB, so that the scan fits a small signal stack.
const REGIONS: usize = 128;

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`, which has the same layout on x86-64 and AArch64
/// (`include/uapi/asm-generic/ioctl.h`).
pub(crate) const PAGEMAP_SCAN: u32 = 3 << 30 | (size_of::<ScanArg>() as u32) << 16 | (b'f' as u32) << 8 | 16;

const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610);

/// Of the thread, since the process's name leads to its first one, which has no memory once it has ended.
const PATH: &CStr = c"/proc/thread-self/pagemap";

fn open() -> Result<BriefFile, PagemapError> {
    BriefFile::open(PATH, OFlags::RDONLY).map_err(|errno| PagemapError::Open(errno.into()))
}

/// Tries the ioctl on a page of the stack, with and without the newest category; an unknown one is EINVAL.
fn probe_ioctl(file: &BriefFile) -> Result<Way, Errno> {
    let page = rustix::param::page_size();
    let mut regions = [Region::default(); 1];
    let start = regions.as_ptr().addr() & !(page - 1);
    let with_guards = PAGE_IS_PFNZERO | PAGE_IS_GUARD;
    if scan_once(file, start..start + page, (with_guards, with_guards), &mut regions).is_ok() {
        return Ok(Way::Ioctl { unwanted: with_guards });
    }
    scan_once(file, start..start + page, (PAGE_IS_PFNZERO, PAGE_IS_PFNZERO), &mut regions)?;
    Ok(Way::Ioctl { unwanted: PAGE_IS_PFNZERO })
}

/// Fills `regions` with runs of pages that are present or swapped and, after the categories of `inverted` were
/// inverted, in all `required` ones. Returns their number and where the scan stopped.
fn scan_once(
    file: &BriefFile,
    range: Range<usize>,
    (required, inverted): (u64, u64),
    regions: &mut [Region],
) -> Result<(usize, usize), Errno> {
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start: range.start as u64,
        end: range.end as u64,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        category_inverted: inverted,
        category_mask: required,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_PRESENT,
        ..ScanArg::default()
    };
    // SAFETY: the kernel reads and writes `arg`, of the size that it states, and writes at most `vec_len` regions to
    // `vec`; both are borrowed mutably here. Without PM_SCAN_WP_MATCHING the ioctl changes no page.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) };
    #[expect(clippy::cast_possible_truncation, reason = "an address of this process, of 64 bits")]
    match usize::try_from(answer) {
        Ok(count) => Ok((count.min(regions.len()), arg.walk_end as usize)),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
#[path = "pagemap_tests.rs"]
mod tests;
