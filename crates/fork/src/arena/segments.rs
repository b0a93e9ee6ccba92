//! Segments: address space that has memory; where it comes from, and its way from shared to frozen.

use std::mem::MaybeUninit;
use std::ops::Range;

use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::memory::calls::{self, Commit, Discard};
use palimpsest_sys::memory::file::{MemoryFile, Sharing};
use palimpsest_sys::memory::remap;
use palimpsest_sys::pages::maps::Permissions;
use rustix::io::Errno;

use super::mirror::{Aside, Mirror};
use super::{Backing, PIECE, files};

/// Most segments of an arena. Growth makes a few hundred at most; the rest is for pieces that were frozen again by
/// themselves.
pub(super) const MOST: usize = 4096;

/// Segments that growth leaves for cutting.
const SPARE: usize = 512;

/// What a segment's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
    /// A shared mapping of a file of its own, which is being filled. Forked children do not get it.
    Shared,
    /// A private mapping of that file, or perhaps of a snapshot's. What the process has written since is in private
    /// copies of pages.
    Frozen,
    /// Anonymous memory, because files were refused.
    #[default]
    Anonymous,
}

/// A range of whole [`PIECE`]s with one mapping.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Segment {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) state: State,
    /// The file of a shared segment, without which it cannot be made private.
    pub(super) file: Option<MemoryFile>,
    /// Its former, shared mapping, if that still exists.
    pub(super) aside: Option<Aside>,
}

impl Segment {
    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Whether parts of it may be replaced. A former mapping would belong to both halves.
    pub(super) fn may_be_cut(&self) -> bool {
        self.state == State::Frozen && self.aside.is_none()
    }
}

/// How shared memory becomes private.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flip {
    /// The former mapping is unmapped, and the file sealed and closed.
    Whole,
    /// Both are left for [later](super::aside): somebody waits for a fork.
    InHaste,
}

/// What a freeze did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flipped {
    pub(super) bytes: usize,
    /// Bytes still shared, because the program closed the file or the kernel refused the mapping.
    pub(super) stranded: usize,
    pub(super) refused: Option<Errno>,
}

/// All segments, ascending by address.
pub(super) struct Segments {
    /// # Invariants
    ///
    /// Valid as long as the arena's own mapping, which the segments do not outlive. The first `count` are initialised.
    table: &'static mut [MaybeUninit<Segment>],
    count: usize,
    backing: Backing,
    /// Where former mappings go.
    pub(super) mirror: Mirror,
    /// Files that a device could still write to when they were to be sealed.
    pub(super) unsealed: usize,
    /// Why the last segment without a file has none.
    pub(super) refused: Option<Errno>,
}

impl Segments {
    pub(super) fn new(table: &'static mut [MaybeUninit<Segment>], backing: Backing, mirror: Mirror) -> Self {
        Self { table, count: 0, backing, mirror, unsealed: 0, refused: None }
    }

    /// Returns the segments.
    pub(super) fn all(&self) -> &[Segment] {
        // SAFETY: that many are initialised.
        unsafe { self.table[..self.count].assume_init_ref() }
    }

    pub(super) fn all_mut(&mut self) -> &mut [Segment] {
        // SAFETY: that many are initialised.
        unsafe { self.table[..self.count].assume_init_mut() }
    }

    /// Returns the bytes of all segments in `state`.
    pub(super) fn bytes(&self, state: State) -> usize {
        self.all().iter().filter(|segment| segment.state == state).map(|segment| segment.len).sum()
    }

    /// Puts memory at `start..start + len`, zeroed.
    ///
    /// # Safety
    ///
    /// 1. The range is whole pieces, belongs to the arena, has no segment yet, and nobody accesses it.
    pub(super) unsafe fn add(&mut self, start: usize, len: usize) -> Result<(), Errno> {
        if self.count + SPARE >= MOST {
            return Err(Errno::NOMEM);
        }
        // SAFETY: passed on.
        let segment = unsafe { self.place(start, len) }?;
        self.insert(segment);
        Ok(())
    }

    /// Maps new memory: of a file, if the system grants one.
    ///
    /// # Safety
    ///
    /// 1. The range belongs to the arena, and nobody needs what is there.
    unsafe fn place(&mut self, start: usize, len: usize) -> Result<Segment, Errno> {
        if self.backing == Backing::Memfd {
            // SAFETY: passed on.
            match unsafe { self.shared(start, len) } {
                Ok(file) => return Ok(Segment { start, len, state: State::Shared, file: Some(file), aside: None }),
                Err(errno) => self.refused = Some(errno),
            }
        }
        // SAFETY: 1. is the caller's; 2. the arena's lock is held.
        unsafe { remap::zero((start..start + len).into(), Permissions::READ_WRITE, Commit::Counted) }?;
        Ok(Segment { start, len, state: State::Anonymous, file: None, aside: None })
    }

    /// Uses anonymous memory where the kernel counts every page that could be written (`vm.overcommit_memory` 2): there
    /// it refuses a file's page when it is touched, with SIGBUS, but anonymous memory already when it is mapped.
    pub(super) fn forgo_files_where_memory_is_counted(&mut self) {
        let mut mode = [0];
        if BriefFile::read_short(c"/proc/sys/vm/overcommit_memory", &mut mode) == Ok(b"2") {
            self.forgo_files(Errno::NOMEM);
        }
    }

    /// Uses anonymous memory from now on.
    pub(super) fn forgo_files(&mut self, reason: Errno) {
        self.backing = Backing::Anonymous;
        self.refused = Some(reason);
    }

    /// Makes all shared segments private. Other threads may go on reading and writing: see the arena's module.
    pub(super) fn flip(&mut self, how: Flip) -> Flipped {
        let mut flipped = Flipped::default();
        for index in 0..self.count {
            let segment = self.all()[index];
            let (State::Shared, Some(file)) = (segment.state, segment.file) else { continue };
            let is_aside = how == Flip::InHaste && self.set_aside(index, file);
            // SAFETY: 1. the segment is the arena's, and the old mapping shows the same bytes of the same file;
            // 2. the range is the arena's, whose lock is held.
            match unsafe { remap::show_file(&file, segment.range().into(), 0, Sharing::Private) } {
                Ok(()) => {
                    let segment = &mut self.all_mut()[index];
                    (segment.state, segment.file) = (State::Frozen, None);
                    flipped.bytes += segment.len;
                    if !is_aside {
                        self.unsealed += usize::from(file.seal().is_err());
                        files::close(file);
                    }
                }
                Err(errno) => {
                    flipped.stranded += segment.len;
                    flipped.refused = Some(errno);
                    self.take_back(index);
                }
            }
        }
        flipped
    }

    /// Makes a file constant, and closes it. Waits no longer than the kernel does.
    pub(super) fn retire(&mut self, file: MemoryFile) {
        self.unsealed += usize::from(file.seal_once().is_err());
        files::close(file);
    }

    /// Notes that anonymous memory in `range` is about to become a private mapping of a snapshot's file: from then on
    /// discarding it would not leave zeros.
    pub(super) fn note_snapshot(&mut self, range: &Range<usize>) {
        for segment in self.all_mut() {
            let overlaps = segment.start < range.end && range.start < segment.start + segment.len;
            if segment.state == State::Anonymous && overlaps {
                segment.state = State::Frozen;
            }
        }
    }

    /// Gives back the memory of free bytes where that leaves zeros. Returns how many bytes are zeros now.
    ///
    /// # Safety
    ///
    /// 1. Nobody needs the contents of `range`, which is whole pages of the arena.
    pub(super) unsafe fn discard(&self, range: &Range<usize>) -> usize {
        let mut covered = 0;
        for segment in self.overlapping(range) {
            let what = match segment.state {
                State::Shared => Discard::File,
                State::Anonymous => Discard::Private,
                // Either advice would bring the frozen bytes back, or be refused.
                State::Frozen => continue,
            };
            let (start, end) = (range.start.max(segment.start), range.end.min(segment.start + segment.len));
            // SAFETY: 1. inside a segment, and free by contract 1.
            if unsafe { calls::discard((start..end).into(), what) }.is_ok() {
                covered += end - start;
            }
        }
        covered
    }

    /// Replaces whole frozen pieces in the free `range` by new memory, unless they have a former mapping. Returns what
    /// became zeros.
    ///
    /// # Safety
    ///
    /// 1. Nobody needs the contents of `range`, or accesses it meanwhile.
    pub(super) unsafe fn renew(&mut self, range: &Range<usize>) -> Option<Range<usize>> {
        if !self.has_room_to_cut() {
            return None;
        }
        let (start, end) = self.overlapping(range).filter(|segment| segment.may_be_cut()).find_map(|segment| {
            let start = range.start.max(segment.start).next_multiple_of(PIECE);
            let end = range.end.min(segment.start + segment.len) / PIECE * PIECE;
            (start < end).then_some((start, end))
        })?;
        // SAFETY: inside a segment of the arena, and free by contract 1.
        let fresh = unsafe { self.place(start, end - start) }.ok()?;
        self.replace(fresh);
        Some(start..end)
    }

    /// Returns the segments that share a byte with `range`.
    pub(super) fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = &Segment> {
        let first = self.all().partition_point(|segment| segment.start + segment.len <= range.start);
        let end = range.end;
        self.all()[first..].iter().take_while(move |segment| segment.start < end)
    }

    /// Returns the first segment that ends behind `address`.
    pub(super) fn after(&self, address: usize) -> Option<Segment> {
        self.overlapping(&(address..usize::MAX)).next().copied()
    }

    /// Whether one more [`replace`](Self::replace) fits.
    pub(super) fn has_room_to_cut(&self) -> bool {
        self.count + 2 <= MOST
    }

    /// Puts `new`, whose mapping is made, in place of part of the segment that it lies in, which is not shared.
    pub(super) fn replace(&mut self, new: Segment) {
        let Some(index) = self.all().iter().position(|segment| segment.range().contains(&new.start)) else { return };
        let old = self.all()[index];
        debug_assert!(old.aside.is_none(), "both parts would own its former mapping");
        let (before, after) = (new.start - old.start, (old.start + old.len) - (new.start + new.len));
        self.remove(index);
        let part = |start: usize, len: usize| Segment { start, len, ..old };
        if before > 0 {
            self.insert(part(old.start, before));
        }
        self.insert(new);
        if after > 0 {
            self.insert(part(new.start + new.len, after));
        }
    }

    /// Maps a new file of `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// 1. The range belongs to the arena, and nobody needs what is there.
    unsafe fn shared(&mut self, start: usize, len: usize) -> Result<MemoryFile, Errno> {
        let mut file = match files::create_to_fill(len) {
            Err(Errno::MFILE) if self.let_one_file_go() => files::create_to_fill(len),
            other => other,
        }?;
        // SAFETY: 1. passed on; a new file is zeros.
        match unsafe { file.fill_at((start..start + len).into()) } {
            Ok(()) => Ok(file),
            Err(errno) => {
                files::close(file);
                Err(errno)
            }
        }
    }

    /// Closes all files: the arena ends, or this is a child, which does not have the memory that they belong to.
    pub(super) fn close(&mut self) {
        self.all_mut().iter_mut().filter_map(|segment| segment.file.take()).for_each(files::close);
    }

    fn insert(&mut self, segment: Segment) {
        let index = self.all().partition_point(|other| other.start < segment.start);
        self.table.copy_within(index..self.count, index + 1);
        self.table[index] = MaybeUninit::new(segment);
        self.count += 1;
    }

    fn remove(&mut self, index: usize) {
        self.table.copy_within(index + 1..self.count, index);
        self.count -= 1;
    }
}
