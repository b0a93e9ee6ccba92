//! Former mappings of frozen memory, which a fork has left behind.
//!
//! To unmap filled memory takes the kernel some 50 µs a MiB, since it forgets each page by itself. A fork that freezes
//! does not wait for that: it moves the page tables, whole ones, to the same place in the *mirror*, reserved for the
//! purpose, and maps the file privately where the memory is. The mapping that is left in the mirror is unmapped later,
//! piece by piece, by whoever takes or gives back memory of the arena; its file is sealed and closed after the last
//! piece.
//!
//! The kernel moves page tables and leaves the mapping itself (`MREMAP_DONTUNMAP`, from Linux 5.13 on for files). So
//! there is no hole meanwhile: another thread's access faults, and finds the same page of the same file.
//!
//! A file can be sealed only when its former mapping is gone. The kernel waits up to 150 ms for that if something, a
//! device perhaps, holds one of its pages.

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::memory::file::MemoryFile;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;

use super::mirror::{Aside, Mirror};
use super::segments::Segments;
use super::{PIECE, files};

impl Segments {
    /// Moves the page tables of a shared segment to the mirror. Returns whether it did: if not, nothing has changed.
    pub(super) fn set_aside(&mut self, index: usize, file: MemoryFile) -> bool {
        let segment = self.all()[index];
        let span = Span::from(segment.range());
        let Some(place) = self.mirror.open_place(span).filter(|_| files::has_plenty() && file.is_open()) else {
            return false;
        };
        // SAFETY: 1. memory of the arena, which shows the same bytes afterwards; the place is reserved for it.
        if unsafe { calls::duplicate_over(span, place.start) }.is_err() {
            self.mirror.refused(place);
            return false;
        }
        // Not in core dumps, where frozen memory is not either. If that fails, it is. SAFETY: 1. changes no contents.
        let _ = unsafe { calls::advise(place, libc::MADV_DONTDUMP) };
        self.all_mut()[index].aside = Some(Aside { file, len: segment.len });
        self.mirror.used += 1;
        true
    }

    /// Unmaps up to this many [`PIECE`]s of former mappings, and seals and closes the files of those that are gone.
    pub(super) fn let_go(&mut self, mut pieces: usize) {
        while pieces > 0
            && let Some(index) = self.first_aside()
            && let Some(unmapped) = self.unmap(index, pieces)
        {
            pieces -= unmapped;
        }
    }

    /// Does so for one file, whose descriptor is needed. Returns whether there was one.
    pub(super) fn let_one_file_go(&mut self) -> bool {
        self.first_aside().is_some_and(|index| self.unmap(index, usize::MAX).is_some())
    }

    /// Unmaps the former mapping of a segment whose file is still needed.
    pub(super) fn take_back(&mut self, index: usize) {
        if let Some(Aside { len, .. }) = self.all_mut()[index].aside.take() {
            self.mirror.used -= 1;
            let segment = self.all()[index];
            let _ = self.reserve(Span::new(segment.start, segment.start + len));
        }
    }

    /// Returns a segment that has a former mapping.
    fn first_aside(&mut self) -> Option<usize> {
        if self.mirror.used == 0 {
            return None;
        }
        if !self.mirror.is_ours() {
            self.forget_asides();
            self.mirror = Mirror::NONE;
        }
        self.all().iter().position(|segment| segment.aside.is_some())
    }

    /// Unmaps the last pieces of a former mapping, up to this many, and retires its file when none is left. Returns how
    /// many; `None` if the kernel refuses.
    fn unmap(&mut self, index: usize, pieces: usize) -> Option<usize> {
        let segment = self.all()[index];
        let Aside { file, len } = segment.aside?;
        let left = len - len.min(pieces.saturating_mul(PIECE));
        self.reserve(Span::new(segment.start + left, segment.start + len))?;
        self.all_mut()[index].aside = (left > 0).then_some(Aside { file, len: left });
        if left == 0 {
            self.mirror.used -= 1;
            self.retire(file);
        }
        Some((len - left) / PIECE)
    }

    /// Reserves the place of memory at `span` in the mirror again, and so unmaps what is there. `None` if the kernel
    /// refuses.
    fn reserve(&mut self, span: Span) -> Option<()> {
        let place = self.mirror.of(span);
        // SAFETY: 1. the mirror's part of a segment, which nobody uses; it is this process's, as the callers have seen.
        if unsafe { calls::map_zeros_over(place, Permissions::default(), Commit::Uncounted) }.is_err() {
            if calls::is_all_mapped(place) {
                return None;
            }
            self.mirror.lose(place);
        }
        Some(())
    }

    /// Forgets all former mappings, and closes their files.
    pub(super) fn forget_asides(&mut self) {
        self.all_mut().iter_mut().filter_map(|segment| segment.aside.take()).for_each(|aside| files::close(aside.file));
        self.mirror.used = 0;
    }

    /// Forgets what a child does not have, which this is, alone and just forked.
    pub(super) fn begin_mirror_in_child(&mut self) {
        let asides = self
            .all()
            .iter()
            .filter_map(|segment| segment.aside.map(|aside| Span::new(segment.start, segment.start + aside.len)));
        self.mirror = self.mirror.of_child(asides);
        self.forget_asides();
    }

    /// Returns the bytes of former mappings.
    pub(super) fn aside_bytes(&self) -> usize {
        self.all().iter().filter_map(|segment| segment.aside).map(|aside| aside.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{self, NonNull};

    use palimpsest_sys::brief_file::BriefFile;
    use palimpsest_sys::threads::child;

    use super::*;
    use crate::arena::Backing;
    use crate::arena::core::Core;
    use crate::arena::segments::Segment;

    /// Makes an arena that a fork has frozen in haste, if the kernel lets it. The caller destroys it.
    fn made() -> Option<NonNull<Core>> {
        let core = Core::create(Backing::Memfd, Ok(())).ok()?;
        // SAFETY: made above.
        let this = unsafe { core.as_ref() };
        this.allocate(9 << 20, 16)?;
        this.before_fork();
        this.after_fork();
        Some(core)
    }

    /// Runs `test` on such an arena.
    fn frozen_in_haste(test: impl FnOnce(&mut Segments)) {
        let core = made().expect("memory");
        // SAFETY: made above, and destroyed below.
        test(&mut unsafe { core.as_ref() }.space().lock().segments);
        // SAFETY: nobody uses it any more.
        unsafe { Core::destroy(core) };
    }

    /// Fails on: a child for which no handler ran, and that unmaps, or maps over, what it has where its parent has
    /// former mappings.
    #[test]
    fn a_child_that_no_handler_saw_leaves_its_parents_mirror_alone() {
        frozen_in_haste(|segments| {
            let Some(segment) = segments.all().iter().find(|segment| segment.aside.is_some()).copied() else {
                return println!("skipped: page tables are not moved here");
            };
            let place = segments.mirror.of(segment.range().into());
            let errand = || {
                if !calls::fill_hole(place, Permissions::READ_WRITE, Commit::Counted) {
                    return 1;
                }
                let byte = ptr::with_exposed_provenance_mut::<u8>(place.start);
                // SAFETY: mapped just now.
                unsafe { byte.write_volatile(7) };
                segments.let_go(usize::MAX);
                // SAFETY: still mapped, or this child ends by a signal.
                if unsafe { byte.read_volatile() } == 7 && !segments.mirror.is_ours() { 0 } else { 2 }
            };
            // SAFETY: 1. system calls and memory.
            let child = unsafe { child::spawn(&[], errand) }.expect("a child");
            assert_eq!(child.wait(), Ok(0));
        });
    }

    /// Fails on: holes in a child's mirror, where anybody may map something that the mirror then replaces.
    #[test]
    fn a_child_reserves_the_holes_in_its_mirror() {
        frozen_in_haste(|segments| {
            // So that there are two.
            if let Some(Aside { file, .. }) = segments.all()[1].aside {
                segments.take_back(1);
                files::close(file);
            }
            let asides = segments.all().iter().filter(|segment| segment.aside.is_some());
            let places: Vec<Span> = asides.map(|segment| segments.mirror.of(segment.range().into())).collect();
            let errand = || {
                segments.begin_mirror_in_child();
                let is_free = |place: &Span| calls::fill_hole(*place, Permissions::default(), Commit::Uncounted);
                i32::from(places.iter().any(is_free) || !segments.mirror.is_ours())
            };
            // SAFETY: 1. system calls and memory.
            let child = unsafe { child::spawn(&[], errand) }.expect("a child");
            assert_eq!(child.wait(), Ok(0));
        });
    }

    /// Fails on: a child's hole that somebody else has, used or unmapped with the arena; the rest of the mirror, left.
    #[test]
    fn what_a_child_cannot_reserve_it_leaves_alone() {
        let errand = || {
            let Some(core) = made() else { return 1 };
            // SAFETY: made above, and destroyed below.
            let mut space = unsafe { core.as_ref() }.space().lock();
            let segments = &mut space.segments;
            let Some(index) = segments.first_aside() else { return 0 };
            let range = Span::from(segments.all()[index].range());
            let place = segments.mirror.of(range);
            // As in a child, of whose other handlers one has mapped something.
            // SAFETY: 1. the mirror's.
            if unsafe { calls::unmap(place) }.is_err()
                || !calls::fill_hole(place, Permissions::READ_WRITE, Commit::Counted)
            {
                return 2;
            }
            let byte = ptr::with_exposed_provenance_mut::<u8>(place.start);
            // SAFETY: mapped just now.
            unsafe { byte.write_volatile(7) };
            segments.begin_mirror_in_child();
            if segments.mirror.open_place(range).is_some() {
                return 3;
            }
            drop(space);
            let far = Span::new(place.end + (32 << 30), place.end + (32 << 30) + PIECE);
            // SAFETY: nobody uses it any more.
            unsafe { Core::destroy(core) };
            // SAFETY: still mapped, or this child ends by a signal.
            let is_left = unsafe { byte.read_volatile() } == 7;
            if is_left && !calls::is_all_mapped(far) { 0 } else { 4 }
        };
        // SAFETY: 1. system calls and memory.
        let child = unsafe { child::spawn(&[], errand) }.expect("a child");
        assert_eq!(child.wait(), Ok(0));
    }

    /// Makes the kernel refuse to move memory, as one before 5.13 does. Returns whether it can be made to.
    fn refuse_mremap() -> bool {
        let statement = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let mut program = [
            // The call's number.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_mremap as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: takes numbers.
        let is_asked = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
        // SAFETY: the kernel reads the filter, which outlives the call.
        is_asked && unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) } == 0
    }

    /// Fails on: a mirror that is used on after the kernel has refused it once: by then anybody may have mapped
    /// something there; address space that arenas leave when they are dropped.
    #[test]
    fn a_refused_mirror_is_not_used_again_and_memory_is_frozen_all_the_same() {
        let errand = || {
            let size = || {
                let mut text = [0; 160];
                let text = BriefFile::read_short(c"/proc/self/statm", &mut text).unwrap_or_default();
                str::from_utf8(text).ok().and_then(|text| text.split(' ').next()?.parse::<usize>().ok()).unwrap_or(0)
            };
            if !refuse_mremap() {
                return 0;
            }
            let before = size();
            for _ in 0..3 {
                let Some(core) = made() else { return 1 };
                // SAFETY: made above, and destroyed below.
                let space = unsafe { core.as_ref() }.space().lock();
                let is_frozen = |segment: &Segment| segment.file.is_none() && segment.aside.is_none();
                let segment = Span::from(space.segments.all()[0].range());
                if !space.segments.all().iter().all(is_frozen) || space.segments.mirror.open_place(segment).is_some() {
                    return 2;
                }
                drop(space);
                // SAFETY: nobody uses it any more.
                unsafe { Core::destroy(core) };
            }
            let grown = size().saturating_sub(before) * rustix::param::page_size();
            if grown < 1 << 30 { 0 } else { 3 }
        };
        // SAFETY: 1. system calls and memory.
        let child = unsafe { child::spawn(&[], errand) }.expect("a child");
        assert_eq!(child.wait(), Ok(0));
    }
}
