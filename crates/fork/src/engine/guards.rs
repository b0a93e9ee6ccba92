//! Guard regions (`MADV_GUARD_INSTALL`, Linux 6.13): pages that look unpopulated and would be lost in a replacement.

use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::span::Span;

/// `PM_GUARD_REGION` of `/proc/PID/pagemap` (`fs/proc/task_mmu.c`, Linux 6.15). In 6.13 and 6.14 guards show as
/// swapped, and reading one fails.
const GUARD: u64 = 1 << 58;
const ENTRY: usize = size_of::<u64>();

/// The process's page tables, to find guard regions.
#[derive(Debug)]
pub(crate) struct Guards {
    file: BriefFile,
    page: usize,
}

impl Guards {
    pub(crate) fn open() -> Result<Self, PagemapError> {
        let file = BriefFile::open(c"/proc/thread-self/pagemap", OFlags::RDONLY)
            .map_err(|errno| PagemapError::Open(errno.into()))?;
        Ok(Self { file, page: rustix::param::page_size() })
    }

    /// Whether a page of `span` is a guard, or the kernel cannot tell.
    pub(crate) fn any_in(&self, span: Span) -> bool {
        let mut buffer = [0_u8; 512 * ENTRY];
        let mut at = span.start;
        while at < span.end {
            let want = ((span.end - at) / self.page * ENTRY).min(buffer.len());
            let got = match rustix::io::pread(&self.file, &mut buffer[..want], (at / self.page * ENTRY) as u64) {
                Err(Errno::INTR) => continue,
                Ok(got) if got >= ENTRY => got / ENTRY,
                _ => return true,
            };
            let (entries, _) = buffer[..got * ENTRY].as_chunks::<ENTRY>();
            if entries.iter().any(|entry| u64::from_ne_bytes(*entry) & GUARD != 0) {
                return true;
            }
            at += got * self.page;
        }
        false
    }
}

/// Opens both views of the page tables, for a moment.
pub(crate) fn open_pages() -> Result<(Pagemap, Guards), PagemapError> {
    Ok((Pagemap::open_briefly()?, Guards::open()?))
}
