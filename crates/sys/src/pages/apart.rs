//! The flags of a mapping, without a walk of its page tables.
//!
//! The kernel tells flags in `/proc/PID/smaps` alone, whose records it makes in the order of addresses, each by a walk
//! of all page tables of the mapping (`show_smap` in `fs/proc/task_mmu.c`): 11 to 14 µs for each MiB of base pages. So
//! one page of the mapping is moved below all others for a moment. That divides the mapping and keeps the flags of both
//! parts; the first record of the list is then that of one page. A second page without rights lies behind it, for
//! which the kernel makes a record, too, if the first is shorter than what is read.
//!
//! When the page comes back, the kernel joins the mapping again. It does not if a userfaultfd watches it: a page that
//! is moved leaves that (`mremap_userfaultfd_prep` in `fs/userfaultfd.c`), so that its flag is not told here. So who
//! asks looks afterwards whether the mapping is whole.

use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::vmas::Vma;
use crate::brief_file::BriefFile;
use crate::memory::calls::{self, Commit};
use crate::memory::remap;
use crate::memory::span::Span;
use crate::pages::maps::Permissions;

/// Bytes read at a time: more than a record has today, fewer than two.
const AT_ONCE: usize = 1 << 10;

/// Nothing is put below this address: the kernel's own limit is no higher by default (`mmap_min_addr`).
const LOWEST: usize = 64 << 10;

/// Tells flags. Allocates nothing.
#[derive(Debug)]
pub struct FlagReader {
    smaps: BriefFile,
    /// Where the page goes, and the page behind it.
    place: Span,
    page: usize,
}

impl FlagReader {
    /// Makes one for a process whose lowest mapping begins at `lowest`.
    ///
    /// # Errors
    ///
    /// The kernel's; [`Errno::NOMEM`] if there is no room below that, [`Errno::EXIST`] if something is there by now.
    pub fn below(lowest: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        // With a gap, so that nothing is joined with it.
        let place = lowest.checked_sub(4 * page).filter(|start| *start >= LOWEST).ok_or(Errno::NOMEM)?;
        let place = Span::new(place, place + 2 * page);
        let smaps = BriefFile::open(c"/proc/thread-self/smaps", OFlags::RDONLY)?;
        if !calls::fill_hole(place, Permissions::default(), Commit::Uncounted) {
            return Err(Errno::EXIST);
        }
        Ok(Self { smaps, place, page })
    }

    /// Returns the mapping of the page at `start` as that page alone: with its flags and its key.
    ///
    /// # Safety
    ///
    /// 1. It is a page of a private mapping, and nobody uses it meanwhile: no thread, no signal handler, not the kernel
    ///    on behalf of earlier requests, and not this function.
    /// 2. Nobody else maps or unmaps anything meanwhile.
    ///
    /// # Errors
    ///
    /// The kernel's: EPERM for sealed memory. [`Errno::INVAL`] if the list has another form. Memory is as before, but
    /// for what a userfaultfd watches.
    pub unsafe fn read(&self, start: usize) -> Result<Vma, Errno> {
        let span = Span::new(start, start + self.page);
        let aside = Span::new(self.place.start, self.place.start + self.page);
        let mut text = [0; 4 * AT_ONCE];
        // SAFETY: 1. by (1); the place is this value's.
        unsafe { calls::relocate(span, aside.start) }?;
        let told = self.record(&mut text);
        // If it cannot come back, memory of the program is lost, and it ends. SAFETY: 1. the place is this value's, and
        // nothing is where the page was. 2. is (2).
        unsafe { remap::replace_by(aside, span) }?;
        let vma = Vma::parse_first(told?).ok_or(Errno::INVAL)?;
        if vma.start == aside.start { Ok(vma) } else { Err(Errno::INVAL) }
    }

    /// Reads the first record.
    fn record<'a>(&self, text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let mut filled = 0;
        while filled < text.len() && Vma::parse_first(&text[..filled]).is_none() {
            let end = text.len().min(filled + AT_ONCE);
            match rustix::io::pread(self.smaps.as_fd(), &mut text[filled..end], filled as u64) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(&text[..filled])
    }
}

impl Drop for FlagReader {
    fn drop(&mut self) {
        // SAFETY: 1. this value's, and nothing of anybody else.
        let _ = unsafe { calls::unmap(self.place) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::vmas::{Detail, Vmas};
    use crate::threads::child;

    const PAGES: usize = 64;

    /// Asks for the flags of pages of new memory with this advice, and compares what the whole list says. Returns 0, or
    /// what was wrong. Runs in a process of one thread, and uses no heap.
    fn ask(advice: i32) -> i32 {
        let page = rustix::param::page_size();
        let Ok(memory) = calls::map((PAGES + 2) * page, Permissions::default(), Commit::Uncounted) else { return 1 };
        // Alone, so that nothing is joined with it.
        let span = Span::new(memory.start + page, memory.end - page);
        let byte = |number: usize| std::ptr::with_exposed_provenance_mut::<u8>(span.start + number * page);
        // SAFETY: 1. made just now.
        if unsafe { calls::protect(span, Permissions::READ_WRITE) }.is_err() {
            return 1;
        }
        // SAFETY: of the memory made above.
        (0..PAGES).for_each(|number| unsafe { byte(number).write_volatile(number as u8 + 1) });
        // SAFETY: 1. the same; the advice changes no contents here.
        if unsafe { calls::advise(span, advice) }.is_err() {
            return 1;
        }
        let Ok(mut list) = Vmas::with_capacity(1 << 12) else { return 1 };
        let found = |list: &Vmas| list.iter().find(|vma| vma.range().contains(&span.start)).copied();
        if list.read(Detail::Figures).is_err() {
            return 1;
        }
        let (Some(before), lowest) = (found(&list), list[0].start) else { return 1 };
        let Ok(reader) = FlagReader::below(lowest) else { return 2 };
        for number in [0, PAGES / 2, PAGES - 1] {
            // SAFETY: 1. and 2. this process has one thread, which does not use it.
            let Ok(told) = (unsafe { reader.read(span.start + number * page) }) else { return 3 };
            if told.flags != before.flags || told.protection_key != before.protection_key {
                return 4;
            }
            // SAFETY: of the memory made above.
            if unsafe { byte(number).read_volatile() } != number as u8 + 1 {
                return 5;
            }
        }
        drop(reader);
        let _ = list.read(Detail::Figures);
        let is_as_before = found(&list).is_some_and(|vma| vma.range() == before.range() && vma.flags == before.flags);
        if is_as_before && list[0].start == lowest { 0 } else { 6 }
    }

    /// Fails on: flags of another mapping; a page that does not come back; a mapping that stays divided; a place that
    /// stays mapped.
    #[test]
    fn one_page_tells_the_flags_of_all() {
        let advice = [libc::MADV_NORMAL, libc::MADV_DONTFORK, libc::MADV_WIPEONFORK, libc::MADV_DONTDUMP];
        for advice in advice.into_iter().chain([libc::MADV_SEQUENTIAL]) {
            // SAFETY: 1. system calls, and memory by `mmap`.
            let child = unsafe { child::spawn(&[], || ask(advice)) }.expect("a child");
            assert_eq!(child.wait(), Ok(0), "{advice}");
        }
    }

    #[test]
    fn there_must_be_room_below_all_mappings() {
        assert_eq!(FlagReader::below(LOWEST).map(drop), Err(Errno::NOMEM));
    }
}
