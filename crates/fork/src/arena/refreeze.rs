//! Freezes written memory again: a dirty page makes a fork copy the page table entries of its whole mapping.
//!
//! Every piece of such a mapping is copied, clean ones too: no descriptor is kept from which they could be mapped
//! afresh, and what memory shows is the truth, even if somebody has put another file under it (as a snapshot does).
//! Dirty and clean runs of pieces get files of their own, so that the next time only what is often written is copied.

use std::ops::{ControlFlow, Range};
use std::ptr;

use palimpsest_sys::memory::file::{MemoryFile, Sharing};
use palimpsest_sys::memory::remap;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, Wanted};
use rustix::io::Errno;

use super::segments::{Segment, Segments, State};
use super::{PIECE, files};

/// What [`refreeze`](super::Arena::refreeze) did, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refrozen {
    /// Pieces frozen in a new file: all pieces of mappings that were written to.
    pub copied: usize,
}

/// Why an arena was not frozen again. What was done until then stays, and everything is as correct as before.
#[derive(Debug, thiserror::Error)]
pub enum RefreezeError {
    /// The kernel does not tell which pages were written.
    #[error("cannot tell which pages of the arena were written")]
    Pagemap(#[from] PagemapError),
    /// No file can be made for dirty pieces.
    #[error("cannot freeze {len} bytes at {address:#x} again; they stay as they are")]
    Copy {
        /// First address.
        address: usize,
        /// Bytes.
        len: usize,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
}

/// Freezes again what is dirty.
///
/// # Safety
///
/// 1. Nobody writes to memory of the arena meanwhile: no thread, no signal handler, no device.
pub(super) unsafe fn refreeze(segments: &mut Segments) -> Result<Refrozen, RefreezeError> {
    let pagemap = Pagemap::open()?;
    let mut done = Refrozen::default();
    let mut at = 0;
    while let Some(segment) = segments.after(at) {
        at = segment.range().end;
        // The kernel has refused to unmap a former mapping: there are too many.
        if segment.state == State::Shared || segment.aside.is_some() || !is_dirty(&pagemap, &segment)? {
            continue;
        }
        let mut start = segment.start;
        while start < at {
            let end = if segments.has_room_to_cut() { end_of_run(&pagemap, &segment, start)? } else { at };
            let run = Segment { start, len: end - start, ..segment };
            // SAFETY: passed on.
            unsafe { copy(segments, &pagemap, &run) }?;
            done.copied += run.len;
            start = end;
        }
    }
    Ok(done)
}

fn is_dirty(pagemap: &Pagemap, segment: &Segment) -> Result<bool, PagemapError> {
    let wanted = if segment.state == State::Anonymous { Wanted::Present } else { Wanted::Written };
    let mut dirty = false;
    pagemap.scan(segment.range(), wanted, &mut |_| {
        dirty = true;
        ControlFlow::Break(())
    })?;
    Ok(dirty)
}

/// Returns where the run of pieces ends that are dirty like the one at `start`, or clean like it.
fn end_of_run(pagemap: &Pagemap, segment: &Segment, start: usize) -> Result<usize, PagemapError> {
    let is_dirty = |start: usize| is_dirty(pagemap, &Segment { start, len: PIECE, ..*segment });
    let first = is_dirty(start)?;
    let mut end = start + PIECE;
    while end < segment.range().end && is_dirty(end)? == first {
        end += PIECE;
    }
    Ok(end)
}

/// Freezes a segment, or part of one, in a new file.
///
/// # Safety
///
/// 1. Nobody writes to it meanwhile.
unsafe fn copy(segments: &mut Segments, pagemap: &Pagemap, segment: &Segment) -> Result<(), RefreezeError> {
    let failed = |errno: Errno| RefreezeError::Copy { address: segment.start, len: segment.len, source: errno.into() };
    let file = files::create(segment.len).map_err(failed)?;
    // SAFETY: passed on.
    let copied = unsafe { fill(&file, pagemap, segment) }.and_then(|filled| filled.map_err(failed));
    let mapped = copied.and_then(|()| {
        // Before anybody can have both the descriptor and the memory.
        file.seal().map_err(failed)?;
        // SAFETY: 1. a segment of the arena. The file has the same bytes: nobody wrote since they were copied; 2. the
        // arena's lock is held.
        unsafe { remap::show_file(&file, segment.range().into(), 0, Sharing::Private) }.map_err(failed)
    });
    files::close(file);
    mapped?;
    segments.replace(Segment { state: State::Frozen, ..*segment });
    Ok(())
}

/// Writes what is not zero in the segment to the new file.
///
/// # Safety
///
/// 1. Nobody writes to it meanwhile.
unsafe fn fill(file: &MemoryFile, pagemap: &Pagemap, segment: &Segment) -> Result<Result<(), Errno>, RefreezeError> {
    let mut outcome = Ok(());
    let mut write = |part: Range<usize>| {
        // SAFETY: passed on; a segment is readable.
        outcome = unsafe { write_non_zero(file, segment.start, &part) };
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    if segment.state == State::Anonymous {
        pagemap.scan(segment.range(), Wanted::Present, &mut write)?;
    } else {
        // The page tables do not tell which pages the file has: look at everything.
        let _ = write(segment.range());
    }
    Ok(outcome)
}

/// # Safety
///
/// 1. `part` is mapped for reading, and nobody writes there meanwhile.
unsafe fn write_non_zero(file: &MemoryFile, base: usize, part: &Range<usize>) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    let mut start = part.start;
    while start < part.end {
        let mut end = start;
        // SAFETY: whole pages inside `part`; contract 1.
        while end < part.end && !unsafe { is_zero(end, page) } {
            end += page;
        }
        if end > start {
            file.store((start..end).into(), (start - base) as u64)?;
        }
        start = end + page;
    }
    Ok(())
}

/// # Safety
///
/// 1. `len` bytes at `address`, which is page-aligned, are mapped for reading, and nobody writes there meanwhile.
unsafe fn is_zero(address: usize, len: usize) -> bool {
    let words = ptr::with_exposed_provenance::<u64>(address);
    // SAFETY: contract 1; a page is whole words.
    let words = unsafe { std::slice::from_raw_parts(words, len / size_of::<u64>()) };
    words.iter().all(|word| *word == 0)
}
