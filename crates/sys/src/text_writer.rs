//! Writes to program text: mappings of files that this process may only execute.

use std::mem;
use std::ops::Range;
use std::ptr;

use rustix::io::Errno;

use crate::arch::{MERGED_WRITES, flush_instruction_cache};
use crate::causes::Causes;
use crate::memory::calls;
use crate::memory::error::MapError;
use crate::memory::mapping::{Mapping, Protection, Source};
use crate::memory::remap;
use crate::memory::span::Span;
use crate::pages::maps::Permissions;
use crate::proc_mem::{ProcMem, ProcMemError};

/// Writes to executable memory that has no other view.
///
/// No mapping is ever writable and executable. The first write to a page of a file gives the process a private copy;
/// the file and other processes keep theirs.
///
/// Keeps no descriptor between writes: with one of `/proc/self/mem`, forked children could write to their parent's
/// memory, whatever rights they have given up.
#[derive(Debug, Default)]
pub struct TextWriter {
    /// How text is written. Found when needed: programs in packs are written without it.
    way: Option<TextWay>,
    /// Why the better way is not in use, until somebody asks.
    refused: Option<ProcMemError>,
}

/// How a [`TextWriter`] writes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextWay {
    /// Through `/proc/self/mem`: no mapping changes (measured: 0.9 to 2.3 µs per write of up to a page).
    ProcMem,
    /// By replacing the pages with a changed copy at once (`mremap`; measured: 19 to 26 µs per page), if
    /// `/proc/self/mem` is refused. Then the pages are anonymous memory, so that profilers lose their names.
    Exchange,
}

/// What a piece of code lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Text of the program or of a library.
    Text,
    /// A program in private memory, that starts at this address. Its neighbours are others', who write there at any
    /// time; so it is only written through `/proc/self/mem`, and byte by byte.
    Program(usize),
}

/// Bytes to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'b> {
    /// Where.
    pub address: usize,
    /// What.
    pub bytes: &'b [u8],
    /// What is there.
    pub within: Within,
}

impl<'b> Piece<'b> {
    /// Returns a piece of text.
    pub fn of_text(address: usize, bytes: &'b [u8]) -> Self {
        Self { address, bytes, within: Within::Text }
    }
}

/// Why text was not written.
#[derive(Debug, thiserror::Error)]
pub enum TextWriteError {
    /// A write through `/proc/self/mem` was refused.
    #[error(transparent)]
    ProcMem(#[from] ProcMemError),
    /// Pages could not be exchanged.
    #[error("cannot exchange the pages of {len} bytes of text at {address:#x}")]
    Exchange {
        /// First address.
        address: usize,
        /// Number of bytes.
        len: usize,
        /// The reason.
        #[source]
        source: MapError,
    },
    /// Neither way works.
    #[error(
        "text can be written in no way: {}; and pages cannot be exchanged, does MDWE or SELinux forbid it?",
        Causes(.proc_mem)
    )]
    NoWay {
        /// Why `/proc/self/mem` is of no use.
        proc_mem: ProcMemError,
        /// Why pages cannot be exchanged.
        #[source]
        exchange: MapError,
    },
    /// There is no page to try it on.
    #[error("no page to find out how text can be written")]
    Trial(#[source] MapError),
}

impl TextWriter {
    /// Creates a writer for the calling process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a writer that writes text only in one way.
    pub fn with_way(way: TextWay) -> Self {
        Self { way: Some(way), refused: None }
    }

    /// Finds and returns the way to write text, by trying it on a page of its own.
    ///
    /// # Errors
    ///
    /// [`TextWriteError`] if there is no way, or if only a lack of descriptors or memory keeps it from being found.
    pub fn prepare(&mut self) -> Result<TextWay, TextWriteError> {
        match self.way {
            Some(way) => Ok(way),
            None => {
                let (way, refused) = find_way()?;
                self.refused = refused;
                Ok(*self.way.insert(way))
            }
        }
    }

    /// Returns, once, why text is not written in the better way.
    pub fn take_refusal(&mut self) -> Option<ProcMemError> {
        self.refused.take()
    }

    /// Stores `pieces`, which are sorted by address and do not overlap. Returns the number of system calls. See
    /// [`plan`](Self::plan).
    ///
    /// # Safety
    ///
    /// As for [`TextPlan::store`], from this call on.
    ///
    /// # Errors
    ///
    /// [`TextWriteError`]; some of the pieces may have been stored, but none if [`prepare`](Self::prepare) has not
    /// succeeded before.
    pub unsafe fn write<'b>(&mut self, pieces: impl Iterator<Item = Piece<'b>>) -> Result<u64, TextWriteError> {
        // SAFETY: 1. by the caller.
        let mut plan = unsafe { self.plan(pieces) }?;
        // SAFETY: 1., 2. by the caller.
        Ok(unsafe { plan.store() }?)
    }

    /// Prepares to store `pieces`, which are sorted by address and do not overlap, in as few system calls as the ISA
    /// allows: one for each run of pieces that lie in the same text or program and touch the same pages, since a call
    /// costs more than copying a page. [`TextPlan::store`] stores the bytes between the pieces of a run again, as they
    /// are immediately before: what somebody else writes there meanwhile is lost. Between those of a program nobody
    /// does. In text it cannot hit a debugger, which stops the process, but it can hit another copy of this library in
    /// the process.
    ///
    /// # Safety
    ///
    /// 1. The ranges, and in text the bytes between pieces in one page, are mapped readable, and no reference to them
    ///    is live.
    ///
    /// # Errors
    ///
    /// [`TextWriteError`]; nothing has been stored.
    pub unsafe fn plan<'b>(&mut self, pieces: impl Iterator<Item = Piece<'b>>) -> Result<TextPlan, TextWriteError> {
        let page = rustix::param::page_size();
        let mut runs: Vec<(TextWay, Run)> = Vec::new();
        for piece in pieces {
            let way = match piece.within {
                Within::Text => self.prepare()?,
                Within::Program(_) => TextWay::ProcMem,
            };
            // Pages are copied before any is replaced, so each must have all of its pieces.
            let is_merged = MERGED_WRITES || way == TextWay::Exchange;
            match runs.last_mut() {
                Some((_, run))
                    if is_merged && run.within == piece.within && piece.address / page == (run.end() - 1) / page =>
                {
                    run.append(&piece);
                }
                _ => runs.push((way, Run::new(&piece))),
            }
        }
        let (mut through_file, mut copies) = (Vec::new(), Vec::new());
        for (way, run) in runs {
            match way {
                TextWay::ProcMem => through_file.push(run),
                TextWay::Exchange => {
                    let (address, len) = (run.start, run.bytes.len());
                    let failed = |source| TextWriteError::Exchange { address, len, source };
                    copies.push(PageCopy::of(run).map_err(failed)?);
                }
            }
        }
        let through_file = if through_file.is_empty() { None } else { Some((ProcMem::open()?, through_file)) };
        Ok(TextPlan { through_file, copies })
    }
}

/// A prepared write, from [`TextWriter::plan`].
#[derive(Debug)]
pub struct TextPlan {
    /// What is stored through the file.
    through_file: Option<(ProcMem, Vec<Run>)>,
    /// The replacements of pages.
    copies: Vec<PageCopy>,
}

/// Why a plan was not carried out completely. Made without the heap, unlike the [`TextWriteError`] that it becomes.
#[derive(Debug)]
pub struct Unstored {
    address: usize,
    len: usize,
    /// The system call, if pages were to be exchanged.
    exchange: Option<&'static str>,
    errno: Errno,
}

impl From<Unstored> for TextWriteError {
    fn from(error: Unstored) -> Self {
        let Unstored { address, len, exchange, errno } = error;
        match exchange {
            None => Self::ProcMem(ProcMemError::Write { address, len, source: errno.into() }),
            Some(call) => Self::Exchange { address, len, source: MapError::diagnose(call, len, errno) },
        }
    }
}

impl TextPlan {
    /// Stores the pieces, once. Returns the number of system calls. Does not use the heap: held threads may be inside
    /// it.
    ///
    /// # Safety
    ///
    /// 1. The contract of [`TextWriter::plan`] still holds.
    /// 2. Threads that may execute the pieces concurrently work with every intermediate state of each, byte by byte.
    ///
    /// # Errors
    ///
    /// [`Unstored`]; some of the pieces may have been stored.
    pub unsafe fn store(&mut self) -> Result<u64, Unstored> {
        let mut calls = 0;
        if let Some((memory, runs)) = &mut self.through_file {
            for run in runs.iter_mut() {
                // SAFETY: 1. by the caller (1).
                unsafe { run.fill_gaps() };
                // SAFETY: 1. by the caller (1); 2. by the caller (2), and the bytes between pieces do not change.
                unsafe { memory.store(run.start, &run.bytes) }.map_err(|errno| Unstored {
                    address: run.start,
                    len: run.bytes.len(),
                    exchange: None,
                    errno,
                })?;
                calls += 1;
            }
        }
        for copy in &mut self.copies {
            // SAFETY: 1., 2. by the caller.
            unsafe { copy.show() }.map_err(|(call, errno)| Unstored {
                address: copy.start,
                len: copy.len,
                exchange: Some(call),
                errno,
            })?;
            calls += 1;
        }
        Ok(calls)
    }
}

/// Bytes of consecutive addresses: pieces, and what is between them.
#[derive(Debug)]
struct Run {
    start: usize,
    bytes: Vec<u8>,
    within: Within,
    /// Where in `bytes` there is no piece.
    gaps: Vec<Range<usize>>,
}

impl Run {
    fn new(piece: &Piece<'_>) -> Self {
        Self { start: piece.address, bytes: piece.bytes.to_vec(), within: piece.within, gaps: Vec::new() }
    }

    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    /// Appends a piece behind the last one, with room for what is between them.
    fn append(&mut self, piece: &Piece<'_>) {
        let gap = self.bytes.len()..piece.address - self.start;
        self.bytes.resize(gap.end, 0);
        self.gaps.push(gap);
        self.bytes.extend_from_slice(piece.bytes);
    }

    /// Takes what is in memory between the pieces. Does not use the heap.
    ///
    /// # Safety
    ///
    /// 1. The run's addresses are readable.
    unsafe fn fill_gaps(&mut self) {
        for gap in &self.gaps {
            let source = ptr::with_exposed_provenance::<u8>(self.start + gap.start);
            let bytes = &mut self.bytes[gap.clone()];
            // SAFETY: readable (1); the buffer is as long, and is no code.
            unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        }
    }
}

/// Finds the way to write text, and why it is not the better one.
fn find_way() -> Result<(TextWay, Option<ProcMemError>), TextWriteError> {
    let page = rustix::param::page_size();
    // Without the right to execute it, which anonymous memory may not have everywhere: the kernel writes regardless of
    // either right.
    let readable = Mapping::new(Source::Anonymous, page, Protection::Read, page).map_err(TextWriteError::Trial)?;
    let tried = ProcMem::open().and_then(|memory| {
        // SAFETY: 1. a page of our own, without references; 2. which nobody executes.
        unsafe { memory.write(readable.address(), &[1]) }
    });
    let proc_mem = match tried {
        Ok(()) => return Ok((TextWay::ProcMem, None)),
        // Not for good.
        Err(error) if error.is_lack() => return Err(error.into()),
        Err(error) => error,
    };
    match try_to_exchange(page) {
        Ok(()) => Ok((TextWay::Exchange, Some(proc_mem))),
        Err(exchange) => Err(TextWriteError::NoWay { proc_mem, exchange }),
    }
}

fn try_to_exchange(page: usize) -> Result<(), MapError> {
    let mapping = Mapping::new(Source::Anonymous, page, Protection::ReadExecute, page)?;
    let mut copy = PageCopy::of(Run::new(&Piece::of_text(mapping.address(), &[1])))?;
    // SAFETY: 1. a page of our own, without references; 2. which nobody executes.
    unsafe { copy.show() }.map_err(|(call, errno)| MapError::diagnose(call, page, errno))
}

/// A changed copy of some pages, which replaces them at once. Threads that execute them meanwhile see the old pages or
/// the new ones (`move_vma` in mm/mremap.c, under the lock that page faults take); forked children are made before or
/// after.
#[derive(Debug)]
struct PageCopy {
    /// First address of the pages.
    start: usize,
    len: usize,
    run: Run,
    /// Room for the copy; `None` once it has replaced the pages.
    copy: Option<Mapping>,
}

impl PageCopy {
    /// Makes room for a copy of the run's pages.
    fn of(run: Run) -> Result<Self, MapError> {
        let page = rustix::param::page_size();
        let start = run.start / page * page;
        let len = run.end().next_multiple_of(page) - start;
        let copy = Mapping::new(Source::Anonymous, len, Protection::ReadWrite, page)?;
        Ok(Self { start, len, run, copy: Some(copy) })
    }

    /// Replaces the pages with a copy that has the run's pieces in it. Does not use the heap. After an error, returns
    /// the system call that has failed.
    ///
    /// # Safety
    ///
    /// 1. The run's pages are mapped readable, and no reference to them is live.
    /// 2. Threads that may execute the pages concurrently work with the change.
    unsafe fn show(&mut self) -> Result<(), (&'static str, Errno)> {
        let Some(copy) = self.copy.take() else { return Ok(()) };
        let old = ptr::with_exposed_provenance::<u8>(self.start);
        // SAFETY: both are valid for `len` bytes (1), and the copy is new memory.
        unsafe { copy.as_ptr().copy_from_nonoverlapping(old, self.len) };
        // SAFETY: 1. in the pages (1).
        unsafe { self.run.fill_gaps() };
        let changed = copy.as_ptr().wrapping_add(self.run.start - self.start);
        // SAFETY: in the copy, which has room for the whole run.
        unsafe { changed.copy_from_nonoverlapping(self.run.bytes.as_ptr(), self.run.bytes.len()) };
        let from = Span::new(copy.address(), copy.address() + self.len);
        let place = Span::new(self.start, self.start + self.len);
        // SAFETY: 1. the copy is ours, and there is no reference to it.
        let done = unsafe { calls::protect(from, Permissions::READ.union(Permissions::EXECUTE)) };
        let done = done.map_err(|errno| ("mprotect", errno)).and_then(|()| {
            // SAFETY: 1. the copy is ours, and the caller answers for the old pages, which are code (1, 2). 2. nobody
            // maps anything in place of code that is in use.
            unsafe { remap::replace_by(from, place) }.map_err(|errno| ("mremap", errno))
        });
        match done {
            Ok(()) => {
                // It is at the new place now.
                mem::forget(copy);
                flush_instruction_cache(place.range());
            }
            Err(_) => self.copy = Some(copy),
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_stored_and_what_is_between_stays() {
        for way in [TextWay::ProcMem, TextWay::Exchange] {
            let calls = if MERGED_WRITES || way == TextWay::Exchange { 2 } else { 4 };
            store_pieces(TextWriter::with_way(way), calls);
        }
    }

    #[test]
    fn the_better_way_is_found() {
        let mut writer = TextWriter::new();
        assert_eq!(writer.prepare().unwrap(), TextWay::ProcMem);
        assert!(writer.take_refusal().is_none());
    }

    fn page_of_code(pages: usize) -> Mapping {
        let page = rustix::param::page_size();
        Mapping::new(Source::Anonymous, pages * page, Protection::ReadExecute, page).unwrap()
    }

    fn byte(mapping: &Mapping, offset: usize) -> u8 {
        let at = mapping.as_ptr().wrapping_add(offset);
        // SAFETY: in the mapping.
        unsafe { at.read() }
    }

    fn store_pieces(mut writer: TextWriter, calls: u64) {
        let page = rustix::param::page_size();
        let mapping = page_of_code(3);
        let base = mapping.address();
        let mut write = |pieces: &[(usize, &[u8])]| {
            let pieces = pieces.iter().map(|&(offset, bytes)| Piece::of_text(base + offset, bytes));
            // SAFETY: 1. the pages are this test's own; 2. nobody executes them.
            unsafe { writer.write(pieces) }.unwrap()
        };
        write(&[(20, &[9])]);
        let border = [4, 5, 6];
        let writes = write(&[(16, &[1, 2]), (40, &[3]), (page - 1, &border), (2 * page + 8, &[7])]);
        assert_eq!(writes, calls);
        let expected = [(16, 1), (17, 2), (20, 9), (40, 3), (page - 1, 4), (page + 1, 6), (2 * page + 8, 7), (0, 0)];
        assert!(expected.iter().all(|&(offset, value)| byte(&mapping, offset) == value));
    }

    /// Plans to store 1 and 3 at two offsets of a page, stores 2 between them, and then carries out the plan.
    fn store_between(writer: &mut TextWriter, within: [Within; 2]) -> [u8; 3] {
        let mapping = page_of_code(1);
        let at = |offset: usize| mapping.address() + offset;
        let pieces = [(16, &[1], within[0]), (48, &[3], within[1])];
        let pieces = pieces.map(|(offset, bytes, within)| Piece { address: at(offset), bytes, within });
        // SAFETY: 1. the page is this test's own.
        let mut plan = unsafe { writer.plan(pieces.into_iter()) }.unwrap();
        // SAFETY: 1. as above; 2. nobody executes it.
        unsafe { ProcMem::open().unwrap().write(at(32), &[2]) }.unwrap();
        // SAFETY: as above.
        unsafe { plan.store() }.unwrap();
        [16, 32, 48].map(|offset| byte(&mapping, offset))
    }

    /// Fails on: bytes between pieces that are read when the plan is made.
    #[test]
    fn what_comes_between_pieces_before_they_are_stored_stays() {
        for way in [TextWay::ProcMem, TextWay::Exchange] {
            let mut writer = TextWriter::with_way(way);
            assert_eq!(store_between(&mut writer, [Within::Text; 2]), [1, 2, 3], "{way:?}");
        }
    }

    /// Fails on: one write for pieces of two programs; programs whose pages are exchanged.
    #[test]
    fn what_is_between_programs_is_never_stored() {
        let mapping = page_of_code(1);
        let base = mapping.address();
        for way in [TextWay::ProcMem, TextWay::Exchange] {
            let mut writer = TextWriter::with_way(way);
            let programs = [0, 64].map(|offset| Within::Program(base + offset));
            assert_eq!(store_between(&mut writer, programs), [1, 2, 3]);
            let pieces = [(0, programs[0]), (8, programs[0]), (64, programs[1])];
            let pieces = pieces.map(|(offset, within)| Piece { address: base + offset, bytes: &[5], within });
            // SAFETY: 1. the page is this test's own.
            let plan = unsafe { writer.plan(pieces.into_iter()) }.unwrap();
            let runs = plan.through_file.map_or(0, |(_, runs)| runs.len());
            assert_eq!((runs, plan.copies.len()), (if MERGED_WRITES { 2 } else { 3 }, 0), "{way:?}");
        }
    }
}
