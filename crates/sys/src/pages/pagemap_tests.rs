//! Both ways of querying, on memory of known state.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

const PAGES: usize = 600;

/// Private memory of `PAGES` pages, unmapped when dropped.
struct Memory {
    start: usize,
    page: usize,
}

impl Memory {
    /// Maps memory without huge pages, which some kernels use unasked: then more pages would exist than were touched.
    fn anonymous() -> Self {
        let memory = Self::map(-1, libc::MAP_ANONYMOUS);
        // Kernels without huge pages refuse.
        memory.advise(0..PAGES, libc::MADV_NOHUGEPAGE);
        memory
    }

    /// Creates a private mapping of a file in memory, all of whose pages have contents.
    fn of_file() -> Self {
        let page = rustix::param::page_size();
        let file = rustix::fs::memfd_create(c"palimpsest-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        file.write_all_at(&vec![1; PAGES * page], 0).unwrap();
        Self::map(file.as_raw_fd(), 0)
    }

    fn map(file: i32, flags: i32) -> Self {
        let page = rustix::param::page_size();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel picks.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGES * page, rights, flags | libc::MAP_PRIVATE, file, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        Self { start: memory.expose_provenance(), page }
    }

    fn at(&self, index: usize) -> *mut u8 {
        assert!(index < PAGES);
        std::ptr::with_exposed_provenance_mut(self.start + index * self.page)
    }

    fn write(&self, pages: Range<usize>) {
        for index in pages {
            // SAFETY: the page is mapped writable and nobody else knows it.
            unsafe { self.at(index).write_volatile(7) };
        }
    }

    fn read(&self, pages: Range<usize>) {
        for index in pages {
            // SAFETY: the page is mapped readable.
            let _ = unsafe { self.at(index).read_volatile() };
        }
    }

    fn advise(&self, pages: Range<usize>, advice: i32) -> i32 {
        // SAFETY: the range is this test's own; all advice given here at most drops its contents.
        unsafe { libc::madvise(self.at(pages.start).cast(), pages.len() * self.page, advice) }
    }

    /// Returns the wanted runs as numbers of pages.
    fn runs(&self, pagemap: &Pagemap, wanted: Wanted) -> Vec<Range<usize>> {
        let mut all = Vec::new();
        let index = |address: usize| (address - self.start) / self.page;
        let range = self.start..self.start + PAGES * self.page;
        pagemap
            .scan(range, wanted, &mut |run| {
                all.push(index(run.start)..index(run.end));
                ControlFlow::Continue(())
            })
            .unwrap();
        all
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value.
        unsafe { libc::munmap(self.at(0).cast(), PAGES * self.page) };
    }
}

fn ways() -> Vec<Pagemap> {
    let mut ways = vec![Pagemap::with_way(ScanWay::Entries).unwrap()];
    match Pagemap::with_way(ScanWay::Ioctl) {
        Ok(pagemap) => ways.push(pagemap),
        Err(error) => println!("skipped: the ioctl, since {error}"),
    }
    ways
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of runs that is one run")]
fn runs_are_maximal_also_across_buffers() {
    let memory = Memory::anonymous();
    memory.write(3..4);
    memory.write(10..590);
    for pagemap in ways() {
        assert_eq!(memory.runs(&pagemap, Wanted::Present), [3..4, 10..590], "{:?}", pagemap.way());
        assert_eq!(memory.runs(&pagemap, Wanted::Written), [3..4, 10..590], "{:?}", pagemap.way());
    }
    memory.write(0..PAGES);
    for pagemap in ways() {
        assert_eq!(memory.runs(&pagemap, Wanted::Present), [0..PAGES], "{:?}", pagemap.way());
    }
}

#[test]
fn more_runs_than_one_call_returns() {
    let memory = Memory::anonymous();
    (0..PAGES).step_by(2).for_each(|index| memory.write(index..index + 1));
    for pagemap in ways() {
        let runs = memory.runs(&pagemap, Wanted::Present);
        assert!(runs.iter().cloned().eq((0..PAGES).step_by(2).map(|index| index..index + 1)), "{:?}", pagemap.way());
    }
}

#[test]
fn the_zero_page_is_told_by_the_ioctl() {
    let memory = Memory::anonymous();
    memory.read(0..8);
    memory.write(4..5);
    for pagemap in ways() {
        let expected = match pagemap.way() {
            ScanWay::Ioctl => 4..5,
            ScanWay::Entries => 0..8,
        };
        assert_eq!(memory.runs(&pagemap, Wanted::Present), [expected], "{:?}", pagemap.way());
    }
}

#[test]
fn a_written_page_of_a_file_is_told_from_a_read_one() {
    let memory = Memory::of_file();
    memory.read(0..20);
    memory.write(5..7);
    memory.write(599..600);
    for pagemap in ways() {
        assert_eq!(memory.runs(&pagemap, Wanted::Written), [5..7, 599..600], "{:?}", pagemap.way());
        let present = memory.runs(&pagemap, Wanted::Present);
        // A read fault maps neighbours too.
        assert!(present[0].start == 0 && present[0].end >= 20, "{present:?}");
    }
    assert_eq!(memory.advise(5..6, libc::MADV_DONTNEED), 0);
    for pagemap in ways() {
        assert_eq!(memory.runs(&pagemap, Wanted::Written), [6..7, 599..600], "{:?}", pagemap.way());
    }
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of runs that is one run")]
fn pages_that_were_paged_out_are_still_written() {
    let memory = Memory::of_file();
    memory.write(0..64);
    memory.advise(0..64, libc::MADV_PAGEOUT);
    let entries = File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; ENTRY];
    entries.read_exact_at(&mut entry, (memory.start / memory.page * ENTRY) as u64).unwrap();
    if u64::from_ne_bytes(entry) & PM_SWAP == 0 {
        println!("skipped: MADV_PAGEOUT left the pages where they are, there is no swap; the bits are tested below");
    }
    for pagemap in ways() {
        assert_eq!(memory.runs(&pagemap, Wanted::Written), [0..64], "{:?}", pagemap.way());
    }
}

#[test]
fn entries_are_read_bit_by_bit() {
    for wanted in [Wanted::Present, Wanted::Written] {
        assert!(is_wanted(PM_PRESENT, wanted) && is_wanted(PM_SWAP | 0x1234, wanted), "{wanted:?}");
        assert!(!is_wanted(0, wanted) && !is_wanted(PM_SWAP | PM_GUARD_REGION, wanted), "{wanted:?}");
    }
    for present in [PM_PRESENT, PM_SWAP] {
        assert!(is_wanted(present | PM_FILE, Wanted::Present));
        assert!(!is_wanted(present | PM_FILE, Wanted::Written));
    }
}

#[test]
fn guard_markers_are_not_pages() {
    const MADV_GUARD_INSTALL: i32 = 102;
    let memory = Memory::anonymous();
    memory.write(0..8);
    if memory.advise(2..4, MADV_GUARD_INSTALL) != 0 {
        return println!("skipped: MADV_GUARD_INSTALL needs Linux 6.13");
    }
    let has_guards = |pagemap: &Pagemap, pages: Range<usize>| {
        pagemap.has_guards(memory.start + pages.start * memory.page..memory.start + pages.end * memory.page)
    };
    for mut pagemap in ways() {
        if matches!(pagemap.way, Way::Ioctl { unwanted } if unwanted & PAGE_IS_GUARD == 0) {
            println!("skipped: this kernel does not tell guard markers");
            continue;
        }
        assert_eq!(memory.runs(&pagemap, Wanted::Present), [0..2, 4..8], "{:?}", pagemap.way());
        let guards = 2..4;
        assert_eq!(memory.runs(&pagemap, Wanted::Guards), [guards], "{:?}", pagemap.way());
        let among = [0..2, 0..3, 0..8, 3..8, 4..8].map(|pages| has_guards(&pagemap, pages));
        assert_eq!(among, [false, true, true, true, false], "{:?}", pagemap.way());
        pagemap.close();
        assert!(has_guards(&pagemap, 0..2), "unknown");
    }
}

#[test]
fn breaking_ends_the_scan() {
    let memory = Memory::anonymous();
    memory.write(0..1);
    memory.write(2..3);
    for pagemap in ways() {
        let mut calls = 0;
        let range = memory.start..memory.start + PAGES * memory.page;
        pagemap
            .scan(range, Wanted::Present, &mut |_| {
                calls += 1;
                ControlFlow::Break(())
            })
            .unwrap();
        assert_eq!(calls, 1, "{:?}", pagemap.way());
    }
}

#[test]
fn ranges_of_parts_of_pages_are_refused() {
    for pagemap in ways() {
        let error = pagemap.scan(1..0x10_0000, Wanted::Present, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().starts_with("0x1..0x100000 is not a range of whole pages"), "{error}");
    }
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of runs that is one run")]
fn pages_that_a_child_shows_are_shared_until_it_writes_or_goes() {
    let memory = Memory::anonymous();
    memory.write(0..64);
    let pagemaps = ways();
    let shared = |pages: &[Range<usize>]| {
        for pagemap in &pagemaps {
            assert_eq!(memory.runs(pagemap, Wanted::Shared), pages, "{:?}", pagemap.way());
        }
    };
    shared(&[]);
    let (mut told, teller) = io::pipe().unwrap();
    // SAFETY: the child makes system calls only, until it ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(teller);
        let _ = io::Read::read(&mut told, &mut [0]);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    shared(&[0..64]);
    memory.write(10..20);
    shared(&[0..10, 20..64]);
    drop(teller);
    let mut status = 0;
    // SAFETY: the child is ours; the status goes to a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    shared(&[]);
}

#[test]
fn a_huge_page_is_told_by_the_ioctl_until_it_is_split() {
    const HUGE: usize = 512;
    let memory = Memory::map(-1, libc::MAP_ANONYMOUS);
    let room = Memory::map(-1, libc::MAP_ANONYMOUS);
    let whole = std::cmp::min(memory.start, room.start)..std::cmp::max(memory.start, room.start);
    let start = whole.start.next_multiple_of(HUGE * memory.page);
    if memory.page != 4096 || start + HUGE * 4096 > whole.start + 2 * PAGES * 4096 || whole.len() != PAGES * 4096 {
        return println!("skipped: no room for a huge page between two mappings side by side");
    }
    let at = std::ptr::with_exposed_provenance_mut::<u8>(start);
    (0..HUGE).for_each(|page| {
        // SAFETY: in these two mappings, which are this test's own.
        unsafe { at.wrapping_add(page * 4096).write_volatile(7) };
    });
    let huge = |pagemap: &Pagemap| {
        let mut bytes = 0;
        pagemap
            .scan(start..start + HUGE * 4096, Wanted::Huge, &mut |run| {
                bytes += run.len();
                ControlFlow::Continue(())
            })
            .unwrap();
        bytes
    };
    // SAFETY: a collapse keeps contents.
    if unsafe { libc::madvise(at.cast(), HUGE * 4096, libc::MADV_COLLAPSE) } != 0 {
        return println!("skipped: no huge page can be had: {}", io::Error::last_os_error());
    }
    for pagemap in ways() {
        let told = if pagemap.way() == ScanWay::Ioctl { HUGE * 4096 } else { 0 };
        assert_eq!(huge(&pagemap), told, "{:?}", pagemap.way());
    }
    // SAFETY: this test's own memory.
    assert_eq!(unsafe { libc::madvise(at.cast(), 4096, libc::MADV_DONTNEED) }, 0);
    for pagemap in ways() {
        assert_eq!(huge(&pagemap), 0, "{:?}", pagemap.way());
    }
}
