//! The pages of a part: brought in before they are read, and mapped by huge pages of their own file.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::ptr;

use super::{MEMORY, Part};
use crate::memory::area::reserve_aligned;
use crate::memory::calls;
use crate::memory::huge::HUGE_PAGE;
use crate::memory::mapping::{Recovered, recover_from};
use crate::memory::span::Span;
use crate::pages::pagemap::{Pagemap, PagemapError, ScanWay, Wanted};
use crate::pages::smaps;

/// Bytes that one fault maps, if they are cached (`fault_around_bytes` in `mm/memory.c`). If a kernel maps fewer,
/// [`bring_in`] asks for the others.
const AROUND: usize = 64 << 10;

/// How much huge pages of the file itself map, and what is left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InPlace {
    /// Bytes that are mapped by huge pages of the file itself.
    pub huge: usize,
    /// Runs that are not.
    pub rest: Vec<Span>,
}

impl Part {
    /// Has the kernel map runs of huge pages by huge pages of the file itself, where it can. All processes that execute
    /// the file use these; nothing is copied, and perf and uprobes see the file as always. Threads may execute the runs
    /// meanwhile; no byte changes.
    ///
    /// The kernel can if the file is cached in huge pages: because this reads it for the first time (file systems with
    /// large folios: ext4, xfs and btrfs of recent kernels), or because this collapses it (tmpfs; others if the kernel
    /// has `CONFIG_READ_ONLY_THP_FOR_FS`).
    pub fn huge_in_place(&self, runs: &[Span]) -> InPlace {
        let mut found = InPlace::default();
        let pagemap = Pagemap::open();
        for run in runs {
            if !self.can_be_huge_in_place(*run) {
                found.rest.push(*run);
                continue;
            }
            // Each of these calls may fail. What is not huge afterwards is left for a copy.
            let _ = advise(*run, Advice::HugePages);
            map_first_pages(*run);
            let mut huge = huge_in(*run, pagemap.as_ref().ok());
            if len_of(&huge) < run.len() && advise(*run, Advice::Collapse).is_ok() {
                map_first_pages(*run);
                huge = huge_in(*run, pagemap.as_ref().ok());
            }
            found.huge += len_of(&huge);
            found.rest.extend(without(*run, &huge));
        }
        found
    }

    /// Has the kernel drop from its cache the small pages of runs of huge pages, except those that a process maps. Then
    /// [`huge_in_place`](Self::huge_in_place) has it read again, into huge pages.
    ///
    /// # Errors
    ///
    /// The kernel's errors; or another file has the name by now.
    pub fn forget_small(&self, runs: &[Span]) -> io::Result<()> {
        let mut runs = runs.iter().filter(|run| self.can_be_huge_in_place(**run)).peekable();
        if runs.peek().is_none() {
            return Ok(());
        }
        let file = self.open_file()?;
        let pagemap = Pagemap::open().ok();
        for run in runs {
            // Looks through a mapping of its own, since pages that this process maps stay cached.
            let area = reserve_aligned(run.len(), HUGE_PAGE).map_err(io::Error::other)?;
            let view = Span::new(area.address(), area.address() + run.len());
            let at = ptr::with_exposed_provenance_mut(view.start);
            let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED;
            let offset = self.offset_of(run.start);
            // SAFETY: reserved just now, for nobody else.
            let mapped = unsafe { rustix::mm::mmap(at, view.len(), rustix::mm::ProtFlags::READ, flags, &file, offset) };
            let small = mapped.is_ok().then(|| {
                let _ = advise(view, Advice::HugePages);
                map_first_pages(view);
                without(view, &huge_in(view, pagemap.as_ref()))
            });
            if mapped.err().is_none_or(|errno| recover_from(errno, view) == Recovered::Ours) {
                // SAFETY: 1. mapped or reserved just now, and not used any more.
                unsafe { calls::unmap(view) }?;
            }
            mapped?;
            for piece in small.into_iter().flatten() {
                let from = offset + (piece.start - view.start) as u64;
                let len = NonZeroU64::new(piece.len() as u64);
                rustix::fs::fadvise(&file, from, len, rustix::fs::Advice::DontNeed)?;
            }
        }
        Ok(())
    }

    /// Whether huge pages of the file could map a run: it is whole huge pages, and no copy, which has no such file.
    fn can_be_huge_in_place(&self, run: Span) -> bool {
        self.is_aligned_as_its_file() && !self.is_copy() && is_whole(run)
    }

    /// Copies the memory from `address` on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read(&self, address: usize, into: &mut [u8]) -> io::Result<()> {
        let wanted = Span::new(address, address.saturating_add(into.len()));
        let is_held = wanted.intersection(self.span) == wanted && self.is_held();
        let by_the_kernel = |at: usize, bytes: &mut [u8]| File::open(MEMORY)?.read_exact_at(bytes, at as u64);
        let Some(pagemap) = Pagemap::open().ok().filter(|_| is_held) else { return by_the_kernel(address, into) };
        for (at, bytes) in (address..).step_by(HUGE_PAGE).zip(into.chunks_mut(HUGE_PAGE)) {
            if bring_in(Span::new(at, at + bytes.len()), &pagemap).is_err() {
                // At a quarter of the speed.
                by_the_kernel(at, bytes)?;
                continue;
            }
            let there = ptr::with_exposed_provenance::<libc::c_void>(at);
            // Not by slices: threads may write to their copies of these pages, which an exchange then detects. SAFETY:
            // `there` belongs to an object that is held, and its pages were all there just now; `bytes` is
            // borrowed mutably, and no text.
            unsafe { libc::memcpy(bytes.as_mut_ptr().cast(), there, bytes.len()) };
        }
        Ok(())
    }
}

/// Maps every page of `piece`, so that loads from it need no fault. Fails where a load would get SIGBUS, for example
/// since the file has become shorter; and before Linux 5.14.
///
/// Asking for one page at a time and leaving its neighbours to the kernel takes two thirds of the time of asking for
/// all, for which the kernel looks up each page once more.
pub(super) fn bring_in(piece: Span, pagemap: &Pagemap) -> io::Result<()> {
    let page = rustix::param::page_size();
    // Whole pages; the end of a piece need not be one.
    let piece = piece.rounded_out(page);
    if pagemap.way() == ScanWay::Entries {
        return populate(piece);
    }
    let first_of = |span: Span| Span::new(span.start, span.start + page);
    populate(first_of(piece))?;
    // More than the neighbours: a huge page, or the pages were there before.
    let start = Span::new(piece.start, piece.end.min(piece.start + 2 * AROUND));
    if !absent(start, pagemap)?.is_empty() {
        piece.cut(AROUND).try_for_each(|window| populate(first_of(window)))?;
    }
    absent(piece, pagemap)?.into_iter().try_for_each(populate)
}

/// Returns what of `piece` is not mapped.
fn absent(piece: Span, pagemap: &Pagemap) -> io::Result<Vec<Span>> {
    Ok(without(piece, &found(piece, Wanted::Present, pagemap).map_err(io::Error::other)?))
}

/// Returns `span` without `parts`, which are ascending and inside it.
fn without(span: Span, parts: &[Span]) -> Vec<Span> {
    let starts = std::iter::once(span.start).chain(parts.iter().map(|part| part.end));
    let ends = parts.iter().map(|part| part.start).chain(std::iter::once(span.end));
    starts.zip(ends).map(|(start, end)| Span::new(start, end)).filter(|gap| !gap.is_empty()).collect()
}

/// Returns the pages of a kind in `span`.
fn found(span: Span, wanted: Wanted, pagemap: &Pagemap) -> Result<Vec<Span>, PagemapError> {
    let mut found = Vec::new();
    pagemap.scan(span.range(), wanted, &mut |run| {
        found.push(Span::new(run.start, run.end));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Returns what of `run` is mapped by huge pages; where the kernel only tells how much, that is all or nothing.
fn huge_in(run: Span, pagemap: Option<&Pagemap>) -> Vec<Span> {
    match pagemap {
        Some(pagemap) if pagemap.way() == ScanWay::Ioctl => found(run, Wanted::Huge, pagemap).unwrap_or_default(),
        _ => {
            let mut huge = 0;
            let told = smaps::each_overlapping(run.range(), &mut |entry| {
                huge += entry.pmd_mapped().min(entry.map.overlap(&run.range()));
            });
            if told.is_ok() && huge == run.len() { vec![run] } else { Vec::new() }
        }
    }
}

fn map_first_pages(run: Span) {
    let page = rustix::param::page_size();
    for start in run.range().step_by(HUGE_PAGE) {
        // If this fails, the page is not huge.
        let _ = populate(Span::new(start, start + page));
    }
}

fn is_whole(run: Span) -> bool {
    run.start.is_multiple_of(HUGE_PAGE) && run.end.is_multiple_of(HUGE_PAGE) && !run.is_empty()
}

fn len_of(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.len()).sum()
}

fn populate(span: Span) -> io::Result<()> {
    advise(span, Advice::Populate)
}

/// Advice that changes no contents, whatever is mapped there.
#[derive(Clone, Copy, Debug)]
enum Advice {
    /// Huge pages are welcome.
    HugePages,
    /// Make huge pages of what is there.
    Collapse,
    /// Map all pages, to read them.
    Populate,
}

fn advise(span: Span, advice: Advice) -> io::Result<()> {
    let advice = match advice {
        Advice::HugePages => libc::MADV_HUGEPAGE,
        Advice::Collapse => libc::MADV_COLLAPSE,
        Advice::Populate => libc::MADV_POPULATE_READ,
    };
    // SAFETY: 1. each of the three changes no contents.
    Ok(unsafe { calls::advise(span, advice) }?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::super::NAME;
    use super::*;
    use crate::memory::area::Area;
    use crate::numa::text::{Branches, identity};
    use crate::pages::maps::Device;
    use crate::pages::maps::Permissions;

    fn spans(spans: &[(usize, usize)]) -> Vec<Span> {
        spans.iter().map(|(start, end)| Span::new(*start, *end)).collect()
    }

    #[test]
    fn what_is_left_of_a_span_is_all_but_its_parts() {
        let all = Span::new(10, 20);
        for (parts, left) in [
            (&[][..], &[(10, 20)][..]),
            (&[(10, 20)], &[]),
            (&[(10, 12), (15, 16)], &[(12, 15), (16, 20)]),
            (&[(12, 15), (15, 20)], &[(10, 12)]),
        ] {
            assert_eq!(without(all, &spans(parts)), spans(left), "{parts:?}");
        }
    }

    /// Attempts at what the kernel may refuse, or undo at once, while it lacks memory.
    const ATTEMPTS: usize = 100;

    /// A part that shows a file at an address.
    fn part_at(address: usize, len: usize, file: &File, path: &Path) -> Part {
        use rustix::mm::{MapFlags, ProtFlags};
        let (at, flags) = (ptr::with_exposed_provenance_mut(address), MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: the caller has reserved it for this.
        unsafe { rustix::mm::mmap(at, len, ProtFlags::READ, flags, file, 0) }.unwrap();
        Part {
            span: Span::new(address, address + len),
            permissions: Permissions::READ,
            file: identity::as_mapped(file).unwrap(),
            offset: 0,
            path: path.to_owned(),
            branches: Branches::Anywhere,
            held: None,
        }
    }

    /// A part that shows a file in memory, `shift` bytes behind the place where huge pages could show it.
    fn part_in_memory(len: usize, shift: usize) -> Option<(Part, Area)> {
        let mut file = match tempfile::Builder::new().tempfile_in("/dev/shm") {
            Ok(file) => file,
            Err(error) => {
                println!("skipped: no file in memory: {error}");
                return None;
            }
        };
        file.write_all(&vec![7; len]).unwrap();
        let area = reserve_aligned(HUGE_PAGE + len, HUGE_PAGE).unwrap();
        let part = part_at(area.address() + shift, len, file.as_file(), file.path());
        // Its name goes.
        Some((part, area))
    }

    /// Whether the kernel makes huge pages of such a file, by its own answer for another one.
    fn are_there_huge_pages(len: usize) -> bool {
        let Some((judge, _area)) = part_in_memory(len, 0) else { return false };
        map_first_pages(judge.span);
        let answer = advise(judge.span, Advice::Collapse);
        if let Err(error) = &answer {
            println!("skipped: MADV_COLLAPSE of a file in memory: {error}");
        }
        answer.is_ok()
    }

    /// Fails on: huge pages that are not made, not seen or seen where there are none; a copy whose file is looked for.
    #[test]
    fn a_file_gets_huge_pages_where_it_is_if_they_fit_its_addresses() {
        let len = 2 * HUGE_PAGE;
        let Some((shifted, _other)) = part_in_memory(len, 64 << 10) else { return };
        let whole = Span::new(shifted.span.start.next_multiple_of(HUGE_PAGE), shifted.span.end & !(HUGE_PAGE - 1));
        assert_eq!(shifted.huge_in_place(&[whole]), InPlace { huge: 0, rest: vec![whole] });
        let mut found = None;
        for _ in 0..ATTEMPTS {
            if !are_there_huge_pages(len) {
                return;
            }
            let Some((part, area)) = part_in_memory(len, 0) else { return };
            let huge = part.huge_in_place(&[part.span]);
            // Without the ioctl the kernel tells only how much.
            let told = (huge_in(part.span, None), huge_in(whole, None));
            if (huge, told) == (InPlace { huge: len, rest: Vec::new() }, (vec![part.span], Vec::new())) {
                found = Some((part, area));
                break;
            }
        }
        let (mut part, _area) = found.expect("the kernel makes huge pages of other files");
        let mut bytes = vec![0; len];
        part.read(part.span.start, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        assert!(part.forget_small(&[part.span]).is_err(), "the file has no name any more");
        part.path = NAME.into();
        part.forget_small(&[part.span]).expect("a copy has no file that could be read anew");
    }

    /// As on btrfs, where `fstat` tells the device of a subvolume, and the lists of mappings that of the file system.
    ///
    /// Fails on: a file that is looked for by what `fstat` tells of it.
    #[test]
    fn a_file_is_found_again_by_the_device_of_its_mappings() {
        let page = rustix::param::page_size();
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(&vec![7; page]).unwrap();
        let area = reserve_aligned(page, HUGE_PAGE).unwrap();
        let mut part = part_at(area.address(), page, named.as_file(), named.path());
        let mut bytes = vec![0; page];
        part.read_from_file(area.address(), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        let is_mapped_as = part.file;
        part.file.device = Device { major: 0, minor: u32::MAX };
        let known = part.file;
        part.open_known_by(|_| Ok(known)).expect("it is the one that is mapped");
        for other in [is_mapped_as, crate::memory::file::FileId { inode: known.inode + 1, ..known }] {
            part.open_known_by(|_| Ok(other)).expect_err("another one has the name");
        }
        part.open_file().expect_err("nothing is mapped from such a device");
    }

    #[test]
    fn what_is_cached_in_small_pages_is_forgotten() {
        let (len, page) = (2 * HUGE_PAGE, rustix::param::page_size());
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(&vec![7; len]).unwrap();
        let file = named.as_file();
        file.sync_all().unwrap();
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random).unwrap();
        let area = reserve_aligned(len, HUGE_PAGE).unwrap();
        let part = part_at(area.address(), len, file, named.path());
        let cached = || {
            let mut pages = vec![0_u8; len / page];
            let at = ptr::with_exposed_provenance_mut(part.span.start);
            // SAFETY: a byte for each page of this test's own mapping.
            assert_eq!(unsafe { libc::mincore(at, len, pages.as_mut_ptr()) }, 0);
            pages.iter().filter(|page| **page & 1 != 0).count()
        };
        if cached() != 0 {
            return println!("skipped: the files of {} stay in memory", named.path().display());
        }
        let mut bytes = vec![0; page];
        let mut read_all = || {
            (0..len).step_by(page).for_each(|offset| file.read_exact_at(&mut bytes, offset as u64).unwrap());
            cached() == len / page
        };
        assert!((0..ATTEMPTS).any(|_| read_all()), "reading caches the file");
        let forget = || {
            part.forget_small(&[part.span]).unwrap();
            cached() == 0
        };
        assert!((0..ATTEMPTS).any(|_| forget()), "{} pages are left", cached());
        part.read(part.span.start, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn all_pages_are_there_afterwards_and_those_behind_the_end_of_a_file_are_an_error() {
        use rustix::mm::{MapFlags, ProtFlags};
        let page = rustix::param::page_size();
        let len = HUGE_PAGE + 5 * page;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; len]).unwrap();
        // SAFETY: new memory.
        let at =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.unwrap();
        let all = Span::new(at.expose_provenance(), at.expose_provenance() + len);
        for way in [ScanWay::Ioctl, ScanWay::Entries] {
            let pagemap = match Pagemap::with_way(way) {
                Ok(pagemap) => pagemap,
                Err(why) => {
                    println!("skipped: {why}");
                    continue;
                }
            };
            let brings_all = || {
                // SAFETY: 1. pages of a file that nobody writes.
                unsafe { calls::discard(all, calls::Discard::Private) }.unwrap();
                bring_in(all, &pagemap).unwrap();
                found(all, Wanted::Present, &pagemap).unwrap() == [all]
            };
            assert!((0..ATTEMPTS).any(|_| brings_all()), "{:?}", found(all, Wanted::Present, &pagemap));
        }
        file.set_len((len - 3 * page) as u64).unwrap();
        assert!(bring_in(all, &Pagemap::open().unwrap()).is_err());
        // SAFETY: 1. this test's own mapping.
        unsafe { calls::unmap(all) }.unwrap();
    }
}
