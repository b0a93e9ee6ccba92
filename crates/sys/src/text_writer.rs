//! Writes to program text: mappings of files that this process may only execute.

use std::mem;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::MprotectFlags;

use crate::arch::{MERGED_WRITES, flush_instruction_cache};
use crate::memory::error::MapError;
use crate::memory::extent::ExtentError;
use crate::memory::mapping::{Mapping, Protection, Source};
use crate::memory::remap;
use crate::memory::span::Span;
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
    /// Found when needed: programs in packs are written without it.
    way: Option<TextWay>,
}

/// How a [`TextWriter`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextWay {
    /// Through `/proc/self/mem`: no mapping changes (measured: 0.9 to 2.3 µs per write of up to a page).
    ProcMem,
    /// By replacing the pages with a changed copy at once (`mremap`; measured: 19 to 26 µs per page), if
    /// `/proc/self/mem` is refused. Then the pages are anonymous memory, so that profilers lose their names.
    Exchange,
}

/// Why text was not written.
#[derive(Debug, thiserror::Error)]
pub enum TextWriteError {
    /// A write through `/proc/self/mem` was refused.
    #[error(transparent)]
    ProcMem(#[from] ProcMemError),
    /// Pages could not be exchanged.
    #[error(
        "cannot exchange the pages of {len} bytes of text at {address:#x}, and /proc/self/mem is of no use here; \
         does MDWE or SELinux forbid it?"
    )]
    Exchange {
        /// First address.
        address: usize,
        /// Number of bytes.
        len: usize,
        /// The reason.
        #[source]
        source: MapError,
    },
}

impl TextWriter {
    /// Creates a writer for the calling process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a writer that writes only in one way.
    pub fn with_way(way: TextWay) -> Self {
        Self { way: Some(way) }
    }

    /// Finds and returns the way to write, by trying it on a page of its own.
    ///
    /// # Errors
    ///
    /// [`TextWriteError`] if there is no way.
    pub fn prepare(&mut self) -> Result<TextWay, TextWriteError> {
        match self.way {
            Some(way) => Ok(way),
            None => Ok(*self.way.insert(find_way()?)),
        }
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
    pub unsafe fn write<'b>(&mut self, pieces: impl Iterator<Item = (usize, &'b [u8])>) -> Result<u64, TextWriteError> {
        // SAFETY: 1. by the caller.
        let mut plan = unsafe { self.plan(pieces) }?;
        // SAFETY: 1., 2. by the caller.
        Ok(unsafe { plan.store() }?)
    }

    /// Prepares to store `pieces`, which are sorted by address and do not overlap, in as few system calls as the ISA
    /// allows: one for each run of pieces that touch the same pages, since a call costs more than copying a page.
    /// Stores the bytes between the pieces again, as they are now: what somebody else writes there meanwhile is lost.
    /// That cannot hit a debugger, which stops the process, but it can hit another copy of this library in the process.
    ///
    /// # Safety
    ///
    /// 1. The ranges, and the bytes between pieces in one page, are mapped readable, and no reference to them is live.
    ///
    /// # Errors
    ///
    /// [`TextWriteError`]; nothing has been stored.
    pub unsafe fn plan<'b>(
        &mut self,
        pieces: impl Iterator<Item = (usize, &'b [u8])>,
    ) -> Result<TextPlan, TextWriteError> {
        let page = rustix::param::page_size();
        let mut runs: Vec<Run> = Vec::new();
        let mut pieces = pieces.peekable();
        if pieces.peek().is_none() {
            return Ok(TextPlan::Exchange(Vec::new()));
        }
        let way = self.prepare()?;
        // Pages are copied before any is replaced, so each must have all of its pieces.
        let is_merged = MERGED_WRITES || way == TextWay::Exchange;
        for (address, bytes) in pieces {
            match runs.last_mut() {
                Some(run) if is_merged && address / page == (run.end() - 1) / page => {
                    // SAFETY: between two pieces of one page (1).
                    unsafe { run.extend_to(address) };
                    run.bytes.extend_from_slice(bytes);
                }
                _ => runs.push(Run { start: address, bytes: bytes.to_vec() }),
            }
        }
        match way {
            TextWay::ProcMem => Ok(TextPlan::ProcMem(ProcMem::open()?, runs)),
            TextWay::Exchange => {
                let copy = |run: Run| {
                    // SAFETY: 1. by the caller.
                    unsafe { PageCopy::of(&run) }.map_err(|source| TextWriteError::Exchange {
                        address: run.start,
                        len: run.bytes.len(),
                        source,
                    })
                };
                Ok(TextPlan::Exchange(runs.into_iter().map(copy).collect::<Result<_, _>>()?))
            }
        }
    }
}

/// A prepared write, from [`TextWriter::plan`].
#[derive(Debug)]
pub enum TextPlan {
    /// What to write, through this file.
    ProcMem(ProcMem, Vec<Run>),
    /// The replacements of pages.
    Exchange(Vec<PageCopy>),
}

/// Why a plan was not carried out completely. Made without the heap, unlike the [`TextWriteError`] that it becomes.
#[derive(Debug)]
pub struct Unstored {
    address: usize,
    len: usize,
    way: TextWay,
    errno: Errno,
}

impl From<Unstored> for TextWriteError {
    fn from(error: Unstored) -> Self {
        let Unstored { address, len, way, errno } = error;
        match way {
            TextWay::ProcMem => Self::ProcMem(ProcMemError::Write { address, len, source: errno.into() }),
            TextWay::Exchange => Self::Exchange { address, len, source: MapError::diagnose("mremap", len, errno) },
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
        match self {
            Self::ProcMem(memory, runs) => {
                for run in runs.iter() {
                    let (address, len) = (run.start, run.bytes.len());
                    // SAFETY: 1. by the caller (1); 2. by the caller (2), and the bytes between pieces do not change.
                    unsafe { memory.store(address, &run.bytes) }.map_err(|errno| Unstored {
                        address,
                        len,
                        way: TextWay::ProcMem,
                        errno,
                    })?;
                }
                Ok(runs.len() as u64)
            }
            Self::Exchange(copies) => {
                for copy in copies.iter_mut() {
                    let (address, len) = (copy.start, copy.len);
                    // SAFETY: 1., 2. by the caller.
                    unsafe { copy.show() }.map_err(|errno| Unstored { address, len, way: TextWay::Exchange, errno })?;
                }
                Ok(copies.len() as u64)
            }
        }
    }
}

/// Bytes of consecutive addresses.
#[derive(Debug)]
pub struct Run {
    start: usize,
    bytes: Vec<u8>,
}

impl Run {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    /// Appends the bytes that are in memory up to `address`.
    ///
    /// # Safety
    ///
    /// 1. The bytes from the run's end to `address` are readable.
    unsafe fn extend_to(&mut self, address: usize) {
        let end = self.end();
        let source = ptr::with_exposed_provenance::<u8>(end);
        // SAFETY: readable (1); a byte has no invalid value, and nobody writes there but the caller.
        self.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(source, address - end) });
    }
}

fn find_way() -> Result<TextWay, TextWriteError> {
    let page = rustix::param::page_size();
    let trial = |source| TextWriteError::Exchange { address: 0, len: 1, source };
    let mapping = Mapping::new(Source::Anonymous, page, Protection::ReadExecute, page).map_err(trial)?;
    if let Ok(memory) = ProcMem::open() {
        // SAFETY: 1. a page of our own, without references; 2. which nobody executes.
        if unsafe { memory.write(mapping.address(), &[1]) }.is_ok() {
            return Ok(TextWay::ProcMem);
        }
    }
    let run = Run { start: mapping.address(), bytes: vec![1] };
    // SAFETY: 1. a page of our own.
    let mut copy = unsafe { PageCopy::of(&run) }.map_err(trial)?;
    // SAFETY: 1. as above; 2. nobody executes it.
    unsafe { copy.show() }.map_err(|errno| trial(MapError::diagnose("mremap", page, errno)))?;
    Ok(TextWay::Exchange)
}

/// A changed copy of some pages, which replaces them at once. Threads that execute them meanwhile see the old pages or
/// the new ones (`move_vma` in mm/mremap.c, under the lock that page faults take); forked children are made before or
/// after.
#[derive(Debug)]
pub struct PageCopy {
    /// First address of the pages.
    start: usize,
    len: usize,
    /// `None` once it has replaced them.
    copy: Option<Mapping>,
}

impl PageCopy {
    /// Copies the pages of a run, with the run's bytes in them.
    ///
    /// # Safety
    ///
    /// 1. The run's pages are mapped readable, and no reference to them is live.
    unsafe fn of(run: &Run) -> Result<Self, MapError> {
        let page = rustix::param::page_size();
        let start = run.start / page * page;
        let len = run.end().next_multiple_of(page) - start;
        let copy = Mapping::new(Source::Anonymous, len, Protection::ReadWrite, page)?;
        let old = ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: both are valid for `len` bytes (1), and the copy is new memory.
        unsafe { copy.as_ptr().copy_from_nonoverlapping(old, len) };
        let changed = copy.as_ptr().wrapping_add(run.start - start);
        // SAFETY: in the copy, which has room for the whole run.
        unsafe { changed.copy_from_nonoverlapping(run.bytes.as_ptr(), run.bytes.len()) };
        copy.set_protection(MprotectFlags::READ | MprotectFlags::EXEC)?;
        Ok(Self { start, len, copy: Some(copy) })
    }

    /// Replaces the pages with the copy.
    ///
    /// # Safety
    ///
    /// 1. As for [`of`](Self::of).
    /// 2. Threads that may execute the pages concurrently work with the change.
    unsafe fn show(&mut self) -> Result<(), Errno> {
        let Some(copy) = self.copy.take() else { return Ok(()) };
        let from = Span::new(copy.address(), copy.address() + self.len);
        let place = Span::new(self.start, self.start + self.len);
        // SAFETY: 1. the copy is ours, and the caller answers for the old pages, which are code (1, 2). 2. nobody maps
        // anything in place of code that is in use.
        match unsafe { remap::replace_by(from, place) } {
            Ok(()) => {
                // It is at the new place now.
                mem::forget(copy);
                flush_instruction_cache(place.range());
                Ok(())
            }
            Err(error) => {
                self.copy = Some(copy);
                Err(match error {
                    ExtentError::Map { errno, .. } => errno,
                    _ => Errno::NOMEM,
                })
            }
        }
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
        assert_eq!(TextWriter::new().prepare().unwrap(), TextWay::ProcMem);
    }

    fn store_pieces(mut writer: TextWriter, calls: u64) {
        let page = rustix::param::page_size();
        let mapping = Mapping::new(Source::Anonymous, 3 * page, Protection::ReadExecute, page).unwrap();
        let base = mapping.address();
        let mut write = |pieces: &[(usize, &[u8])]| {
            // SAFETY: 1. the pages are this test's own; 2. nobody executes them.
            unsafe { writer.write(pieces.iter().map(|&(offset, bytes)| (base + offset, bytes))) }.unwrap()
        };
        write(&[(20, &[9])]);
        let border = [4, 5, 6];
        let writes = write(&[(16, &[1, 2]), (40, &[3]), (page - 1, &border), (2 * page + 8, &[7])]);
        assert_eq!(writes, calls);
        let byte = |offset: usize| {
            let at = mapping.as_ptr().wrapping_add(offset);
            // SAFETY: in the mapping.
            unsafe { at.read() }
        };
        let expected = [(16, 1), (17, 2), (20, 9), (40, 3), (page - 1, 4), (page + 1, 6), (2 * page + 8, 7), (0, 0)];
        assert!(expected.iter().all(|&(offset, value)| byte(offset) == value));
    }
}
