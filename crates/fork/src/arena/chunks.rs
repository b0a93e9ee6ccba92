//! The pieces of address space that have memory: where it comes from, and its way from shared to frozen.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::extent::{self, Extent, View};
use super::{Backing, PIECE};

/// Chunks that an arena can have. Growth makes at most a few hundred; the rest is for pieces that were frozen again on their own.
pub(super) const MOST: usize = 4096;

/// Chunks that growth leaves to be cut.
const SPARE: usize = 512;

/// What a chunk's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
    /// A shared mapping of a file of its own: being filled. Forked children do not get it.
    Shared,
    /// A private mapping of that file. What the process wrote since are private copies of pages.
    Frozen,
    /// Anonymous memory, because files were refused.
    #[default]
    Anonymous,
}

/// A range of whole [`PIECE`]s with one mapping.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) state: State,
    /// The file and the offset of the chunk in it. A frozen chunk of one piece has given the descriptor up, and one of more if there were too many.
    pub(super) file: Option<(Extent, usize)>,
}

impl Chunk {
    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// What a freeze did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flipped {
    pub(super) bytes: usize,
    /// Still shared, because the program closed the file or the kernel refused the mapping.
    pub(super) stranded: usize,
    /// Files that a device could still write to.
    pub(super) unsealed: usize,
    pub(super) refused: Option<Errno>,
}

/// All chunks, ascending by address.
pub(super) struct Chunks {
    /// # Invariants
    ///
    /// Valid as long as the arena's own mapping, which the chunks do not outlive. The first `count` are initialised.
    table: &'static mut [MaybeUninit<Chunk>],
    count: usize,
    backing: Backing,
    /// Why the last chunk that should have had a file has none.
    pub(super) refused: Option<Errno>,
}

impl Chunks {
    pub(super) fn new(table: &'static mut [MaybeUninit<Chunk>], backing: Backing) -> Self {
        Self { table, count: 0, backing, refused: None }
    }

    /// The chunks.
    pub(super) fn all(&self) -> &[Chunk] {
        // SAFETY: so many are initialised.
        unsafe { self.table[..self.count].assume_init_ref() }
    }

    fn all_mut(&mut self) -> &mut [Chunk] {
        // SAFETY: so many are initialised.
        unsafe { self.table[..self.count].assume_init_mut() }
    }

    /// Bytes of all chunks in `state`.
    pub(super) fn bytes(&self, state: State) -> usize {
        self.all().iter().filter(|chunk| chunk.state == state).map(|chunk| chunk.len).sum()
    }

    /// Puts memory at `start..start + len`, zeroed.
    ///
    /// # Safety
    ///
    /// 1. The range is whole pieces, belongs to the arena, has no chunk yet, and nobody accesses it.
    pub(super) unsafe fn add(&mut self, start: usize, len: usize) -> Result<(), Errno> {
        if self.count + SPARE >= MOST {
            return Err(Errno::NOMEM);
        }
        // SAFETY: passed on.
        let chunk = unsafe { self.place(start, len) }?;
        self.insert(chunk);
        Ok(())
    }

    /// Maps new memory: of a file if there is one to be had.
    ///
    /// # Safety
    ///
    /// 1. The range belongs to the arena, and nobody needs what is there.
    unsafe fn place(&mut self, start: usize, len: usize) -> Result<Chunk, Errno> {
        if self.backing == Backing::Memfd {
            // SAFETY: passed on.
            match unsafe { self.shared(start, len) } {
                Ok(extent) => return Ok(Chunk { start, len, state: State::Shared, file: Some((extent, 0)) }),
                Err(errno) => self.refused = Some(errno),
            }
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let place = ptr::with_exposed_provenance_mut(start);
        // SAFETY: contract 1 is the caller's.
        unsafe { rustix::mm::mmap_anonymous(place, len, rights, MapFlags::PRIVATE | MapFlags::FIXED) }?;
        Ok(Chunk { start, len, state: State::Anonymous, file: None })
    }

    /// Where the kernel counts every page that could be written (`vm.overcommit_memory` 2), it refuses a page of a file when it is touched, with
    /// SIGBUS, and of anonymous memory when it is mapped: there, anonymous memory it is.
    pub(super) fn forgo_files_where_memory_is_counted(&mut self) {
        let mut mode = [0];
        let read = rustix::fs::open(c"/proc/sys/vm/overcommit_memory", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::io::read(&file, &mut mode));
        if read == Ok(1) && mode == *b"2" {
            self.forgo_files(Errno::NOMEM);
        }
    }

    /// Uses anonymous memory from now on.
    pub(super) fn forgo_files(&mut self, reason: Errno) {
        self.backing = Backing::Anonymous;
        self.refused = Some(reason);
    }

    /// Makes all shared chunks private. Other threads may go on reading and writing: see the module of the arena.
    pub(super) fn flip(&mut self) -> Flipped {
        let mut flipped = Flipped::default();
        for chunk in self.all_mut() {
            let (State::Shared, Some((extent, offset))) = (chunk.state, chunk.file) else { continue };
            // SAFETY: 1. the chunk is the arena's. 2. the mapping that goes shows the same bytes of the same file.
            match unsafe { extent.map(chunk.start, chunk.len, offset, View::Private) } {
                Ok(()) => {
                    chunk.state = State::Frozen;
                    flipped.bytes += chunk.len;
                    flipped.unsealed += usize::from(extent.seal().is_err());
                    if chunk.len <= PIECE || !extent::may_stay_open() {
                        extent.close();
                        chunk.file = None;
                    }
                }
                Err(errno) => {
                    flipped.stranded += chunk.len;
                    flipped.refused = Some(errno);
                }
            }
        }
        flipped
    }

    /// Gives the memory of free bytes back where that leaves zeros. Returns how many bytes are zeros now.
    ///
    /// # Safety
    ///
    /// 1. Nobody needs the contents of `range`, which is whole pages of the arena.
    pub(super) unsafe fn discard(&self, range: &Range<usize>) -> usize {
        let mut covered = 0;
        for chunk in self.overlapping(range) {
            let advice = match chunk.state {
                State::Shared => Advice::LinuxRemove,
                State::Anonymous => Advice::LinuxDontNeed,
                // Either advice would bring the frozen bytes back, or be refused.
                State::Frozen => continue,
            };
            let (start, end) = (range.start.max(chunk.start), range.end.min(chunk.start + chunk.len));
            let place = ptr::with_exposed_provenance_mut(start);
            // SAFETY: inside a chunk, and free by contract 1.
            if unsafe { rustix::mm::madvise(place, end - start, advice) }.is_ok() {
                covered += end - start;
            }
        }
        covered
    }

    /// Replaces whole frozen pieces inside the free `range` by new memory. Returns what became zeros.
    ///
    /// # Safety
    ///
    /// 1. Nobody needs the contents of `range`, nor accesses it meanwhile.
    pub(super) unsafe fn renew(&mut self, range: &Range<usize>) -> Option<Range<usize>> {
        if !self.has_room_to_cut() {
            return None;
        }
        let (start, end) = self.overlapping(range).filter(|chunk| chunk.state == State::Frozen).find_map(|chunk| {
            let start = range.start.max(chunk.start).next_multiple_of(PIECE);
            let end = range.end.min(chunk.start + chunk.len) / PIECE * PIECE;
            (start < end).then_some((start, end))
        })?;
        // SAFETY: inside a chunk of the arena, and free by contract 1.
        let fresh = unsafe { self.place(start, end - start) }.ok()?;
        self.replace(fresh);
        Some(start..end)
    }

    /// The chunks that have a byte in common with `range`.
    pub(super) fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = &Chunk> {
        let first = self.all().partition_point(|chunk| chunk.start + chunk.len <= range.start);
        let end = range.end;
        self.all()[first..].iter().take_while(move |chunk| chunk.start < end)
    }

    /// The first chunk that ends behind `address`.
    pub(super) fn after(&self, address: usize) -> Option<Chunk> {
        self.overlapping(&(address..usize::MAX)).next().copied()
    }

    /// Whether one more [`replace`](Self::replace) fits.
    pub(super) fn has_room_to_cut(&self) -> bool {
        self.count + 2 <= MOST
    }

    /// Puts `new`, whose mapping is made, in place of a part of the chunk that it lies in.
    pub(super) fn replace(&mut self, new: Chunk) {
        let Some(index) = self.all().iter().position(|chunk| chunk.range().contains(&new.start)) else { return };
        let old = self.all()[index];
        let (before, after) = (new.start - old.start, (old.start + old.len) - (new.start + new.len));
        self.remove(index);
        let part = |start: usize, len: usize| Chunk {
            start,
            len,
            state: old.state,
            file: old.file.map(|(extent, offset)| (extent, offset + (start - old.start))),
        };
        if before > 0 {
            self.insert(part(old.start, before));
        }
        self.insert(new);
        if after > 0 {
            self.insert(part(new.start + new.len, after));
        }
        if let Some((extent, _)) = old.file
            && !self.uses(extent)
        {
            extent.close();
        }
    }

    /// Makes a file of `len` bytes, for which frozen chunks give up their descriptors if there are too many: what is being filled needs its own, and they do not.
    pub(super) fn new_file(&mut self, len: usize) -> Result<Extent, Errno> {
        match Extent::create(len) {
            Err(Errno::MFILE) if self.give_up_files() => Extent::create(len),
            made => made,
        }
    }

    /// Closes the files of frozen chunks; false if none has one.
    fn give_up_files(&mut self) -> bool {
        let mut gave_up = false;
        while let Some((extent, _)) =
            self.all().iter().filter(|chunk| chunk.state == State::Frozen).find_map(|chunk| chunk.file)
        {
            // Parts of what was one chunk have the same file.
            for chunk in self.all_mut().iter_mut().filter(|chunk| chunk.file.is_some_and(|(other, _)| other == extent))
            {
                chunk.file = None;
            }
            extent.close();
            gave_up = true;
        }
        gave_up
    }

    /// Maps a new file of `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// 1. The range belongs to the arena, and nobody needs what is there.
    unsafe fn shared(&mut self, start: usize, len: usize) -> Result<Extent, Errno> {
        let extent = self.new_file(len)?;
        // SAFETY: passed on; a new file is zeros.
        match unsafe { extent.map(start, len, 0, View::Shared) } {
            Ok(()) => Ok(extent),
            Err(errno) => {
                extent.close();
                Err(errno)
            }
        }
    }

    /// Closes all files.
    pub(super) fn close(&mut self) {
        while let Some(last) = self.count.checked_sub(1) {
            let file = self.all()[last].file;
            self.count = last;
            if let Some((extent, _)) = file
                && !self.uses(extent)
            {
                extent.close();
            }
        }
    }

    fn uses(&self, extent: Extent) -> bool {
        self.all().iter().any(|chunk| chunk.file.is_some_and(|(other, _)| other == extent))
    }

    fn insert(&mut self, chunk: Chunk) {
        let index = self.all().partition_point(|other| other.start < chunk.start);
        self.table.copy_within(index..self.count, index + 1);
        self.table[index] = MaybeUninit::new(chunk);
        self.count += 1;
    }

    fn remove(&mut self, index: usize) {
        self.table.copy_within(index + 1..self.count, index);
        self.count -= 1;
    }
}
