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
//! Children do not inherit the mirror's mappings, which are shared (`MADV_DONTFORK` is copied with a mapping): where
//! they lie the child has holes, which its handler reserves again. In a child of a bare `clone`, for which no handler
//! runs, something else may lie there. So a [wiped](Wiped) word tells whose mirror it is.

use std::sync::atomic::{AtomicI32, Ordering};

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::memory::file::MemoryFile;
use palimpsest_sys::memory::remap;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;

use super::segments::Segments;
use super::{PIECE, files};
use crate::hazards::wiped::{Slot, Wiped};

/// A former mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aside {
    /// Its file, which cannot be sealed while it is mapped shared.
    file: MemoryFile,
    /// Bytes from its start that are still mapped.
    len: usize,
}

/// Where former mappings go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mirror {
    /// The memory that it is for, and how many bytes above that it lies.
    mirrored: Span,
    distance: usize,
    /// Whose it is; nobody's if there is none.
    owner: Option<Process>,
    /// Segments that have a former mapping.
    used: usize,
}

/// A process among its own forefathers: its number is higher than theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process(i32);

/// This process's number; 0 in a new child. Relaxed here and below: only the number itself matters, and whoever reads
/// it twice in one process reads the same.
// SAFETY: 1. the only one with this slot.
static THIS: Wiped<AtomicI32> = unsafe { Wiped::new(Slot::Aside) };
/// The last number given, in this process or one of its forefathers.
static LAST: AtomicI32 = AtomicI32::new(0);

impl Process {
    /// Returns this process; `None` where children cannot be told from it.
    fn this() -> Option<Self> {
        let this = THIS.get()?;
        let known = this.load(Ordering::Relaxed);
        if known != 0 {
            return Some(Self(known));
        }
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // Another thread's number may have come first.
        let settled = this.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
        Some(Self(settled.map_or_else(|first| first, |_| next)))
    }
}

impl Mirror {
    /// No place for former mappings.
    pub(super) const NONE: Self = Self { mirrored: Span::new(0, 0), distance: 0, owner: None, used: 0 };

    /// Makes the mirror of memory at `mirrored`, from address space that is reserved so many bytes above it.
    pub(super) fn above(mirrored: Span, distance: usize) -> Self {
        Self { mirrored, distance, owner: Process::this(), used: 0 }
    }

    /// Whether it is this process's.
    pub(super) fn is_ours(&self) -> bool {
        self.owner.is_some() && self.owner == Process::this()
    }

    fn of(&self, span: Span) -> Span {
        Span::new(span.start + self.distance, span.end + self.distance)
    }
}

impl Segments {
    /// Moves the page tables of a shared segment to the mirror. Returns whether it did: if not, nothing has changed.
    pub(super) fn set_aside(&mut self, index: usize, file: MemoryFile) -> bool {
        let segment = self.all()[index];
        let span = Span::from(segment.range());
        if !self.mirror.is_ours() || self.mirror.mirrored.intersection(span) != span {
            return false;
        }
        // SAFETY: 1. memory of the arena, which shows the same bytes afterwards; the mirror's part is reserved for it.
        if unsafe { calls::duplicate_over(span, self.mirror.of(span).start) }.is_err() {
            // The kernel may have unmapped that part, so that anybody may map something there: never use it again.
            self.let_go(usize::MAX);
            self.mirror = Mirror::NONE;
            return false;
        }
        self.all_mut()[index].aside = Some(Aside { file, len: segment.len });
        self.mirror.used += 1;
        true
    }

    /// Unmaps up to this many [`PIECE`]s of former mappings, and seals and closes the files of those that are gone.
    pub(super) fn let_go(&mut self, mut pieces: usize) {
        if self.mirror.used > 0 && !self.mirror.is_ours() {
            self.forget_asides();
        }
        while pieces > 0
            && self.mirror.used > 0
            && let Some(index) = self.all().iter().position(|segment| segment.aside.is_some())
            && let Some(unmapped) = self.unmap(index, pieces)
        {
            pieces -= unmapped;
            if let Some(Aside { file, len: 0 }) = self.all()[index].aside {
                self.all_mut()[index].aside = None;
                self.mirror.used -= 1;
                self.retire(file);
            }
        }
    }

    /// Unmaps the former mapping of a segment whose file is still needed.
    pub(super) fn take_back(&mut self, index: usize) {
        if self.all()[index].aside.is_some() && self.unmap(index, usize::MAX).is_some() {
            self.all_mut()[index].aside = None;
            self.mirror.used -= 1;
        }
    }

    /// Unmaps the last pieces of a former mapping, up to this many. Returns how many; `None` if the kernel refuses.
    fn unmap(&mut self, index: usize, pieces: usize) -> Option<usize> {
        let segment = self.all()[index];
        let Aside { len, .. } = segment.aside?;
        let left = len - len.min(pieces.saturating_mul(PIECE));
        let part = self.mirror.of(Span::new(segment.start + left, segment.start + len));
        // SAFETY: 1. the mirror's part of this segment, which nobody uses; it is this process's, as the callers have
        // seen. 2. as the arena's lock is held, and all of the mirror is reserved.
        unsafe { remap::zero(part, Permissions::default(), Commit::Uncounted) }.ok()?;
        if let Some(aside) = &mut self.all_mut()[index].aside {
            aside.len = left;
        }
        Some(part.len() / PIECE)
    }

    /// Forgets all former mappings and the mirror, and closes their files: they are another process's.
    pub(super) fn forget_asides(&mut self) {
        self.all_mut().iter_mut().filter_map(|segment| segment.aside.take()).for_each(|aside| files::close(aside.file));
        self.mirror = Mirror::NONE;
    }

    /// Forgets what a child does not have, which this is, alone and just forked: reserves its holes in the mirror.
    pub(super) fn begin_mirror_in_child(&mut self) {
        let Mirror { mirrored, distance, owner, used } = self.mirror;
        let mut is_whole = owner.is_some();
        let mut hole = Span::default();
        let mut reserve = |hole: Span| {
            is_whole &= hole.is_empty() || calls::fill_hole(hole, Permissions::default(), Commit::Uncounted);
        };
        for segment in self.all().iter().filter(|_| used > 0) {
            let Some(aside) = segment.aside else { continue };
            let next = self.mirror.of(Span::new(segment.start, segment.start + aside.len));
            if hole.end == next.start {
                hole.end = next.end;
            } else {
                reserve(std::mem::replace(&mut hole, next));
            }
        }
        reserve(hole);
        self.forget_asides();
        if is_whole {
            self.mirror = Mirror::above(mirrored, distance);
        }
    }

    /// Returns the bytes of former mappings.
    pub(super) fn aside_bytes(&self) -> usize {
        self.all().iter().filter_map(|segment| segment.aside).map(|aside| aside.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use palimpsest_sys::threads::child;

    use super::*;
    use crate::arena::Backing;
    use crate::arena::core::Core;

    /// Runs `test` on an arena that a fork has frozen in haste, if this kernel can.
    fn frozen_in_haste(prepare: impl FnOnce(&mut Segments), test: impl FnOnce(&mut Segments)) {
        let core = Core::create(Backing::Memfd, Ok(())).expect("memory");
        // SAFETY: made above, and destroyed below.
        let this = unsafe { core.as_ref() };
        assert!(this.allocate(9 << 20, 16).is_some());
        prepare(&mut this.space().lock().segments);
        this.before_fork();
        this.after_fork();
        test(&mut this.space().lock().segments);
        // SAFETY: nobody uses it any more.
        unsafe { Core::destroy(core) };
    }

    /// Fails on: a child for which no handler ran, and that unmaps, or maps over, what it has where its parent has
    /// former mappings.
    #[test]
    fn a_child_that_no_handler_saw_leaves_its_parents_mirror_alone() {
        frozen_in_haste(
            |_| {},
            |segments| {
                let Some(segment) = segments.all().iter().find(|segment| segment.aside.is_some()).copied() else {
                    return println!("skipped: a kernel before 5.13");
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
            },
        );
    }

    /// Fails on: holes in a child's mirror, where anybody may map something that the mirror then replaces.
    #[test]
    fn a_child_reserves_the_holes_in_its_mirror() {
        frozen_in_haste(
            |_| {},
            |segments| {
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
            },
        );
    }

    /// Fails on: a mirror that is used on after the kernel has refused it once: by then anybody may have mapped
    /// something there.
    #[test]
    fn a_refused_mirror_is_not_used_again_and_memory_is_frozen_all_the_same() {
        frozen_in_haste(
            // Page tables do not move there.
            |segments| segments.mirror.distance += 1,
            |segments| {
                assert!(segments.all().iter().all(|segment| segment.file.is_none() && segment.aside.is_none()));
                assert!(!segments.mirror.is_ours());
            },
        );
    }

    /// Fails on: a child that is taken for its parent.
    #[test]
    fn a_child_is_another_process_than_its_forefathers() {
        let Some(this) = Process::this() else { return println!("skipped: no memory is wiped in children") };
        assert_eq!(Process::this(), Some(this));
        // SAFETY: 1. atomic accesses.
        let child = unsafe { child::spawn(&[], || i32::from(Process::this() == Some(this))) }.expect("a child");
        assert_eq!(child.wait(), Ok(0));
    }
}
