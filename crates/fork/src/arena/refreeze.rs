//! Freezing again what was written since: a dirty piece makes a fork copy the page-table entries of its whole mapping.
//!
//! Pieces without a private page are mapped afresh from their file, which loses nothing and makes their mapping one that forks skip. Dirty
//! ones are copied to a new file, and so are the clean pieces of a dirty mapping whose file has no descriptor any more.

use std::ops::{ControlFlow, Range};
use std::ptr;

use palimpsest_sys::pagemap::{Pagemap, PagemapError, Wanted};
use rustix::io::Errno;

use super::PIECE;
use super::chunks::{Chunk, Chunks, State};
use super::extent::{self, Extent, View};

/// What [`refreeze`](super::Arena::refreeze) did, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refrozen {
    /// Pieces that are frozen in a new file: dirty ones, and the rest of their mapping where its descriptor was given up for others.
    pub copied: usize,
    /// Clean pieces of dirty mappings that are mapped afresh.
    pub remapped: usize,
    /// Pieces that stay as they are, since their file was closed by the program or there are too many mappings: correct, and dearer to fork.
    pub left: usize,
}

/// Why an arena was not frozen again; what had been done by then stays, and all is as correct as before.
#[derive(Debug, thiserror::Error)]
pub enum RefreezeError {
    /// It cannot be found out which pages were written.
    #[error("cannot tell which pages of the arena were written")]
    Pagemap(#[from] PagemapError),
    /// There is no file for dirty pieces.
    #[error("cannot freeze {len} bytes at {address:#x} again; they stay as they are")]
    Copy {
        /// First address.
        address: usize,
        /// Bytes.
        len: usize,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
}

/// Freezes again what is dirty.
///
/// # Safety
///
/// 1. Nobody writes to memory of the arena meanwhile: no thread, no signal handler, no device.
pub(super) unsafe fn refreeze(chunks: &mut Chunks) -> Result<Refrozen, RefreezeError> {
    let pagemap = Pagemap::open()?;
    let mut done = Refrozen::default();
    let mut at = 0;
    while let Some(chunk) = chunks.after(at) {
        at = chunk.range().end;
        if chunk.state == State::Shared || !is_dirty(&pagemap, &chunk, &chunk.range())? {
            continue;
        }
        let mut start = chunk.start;
        while start < at {
            let gave_file_up = chunk.state == State::Frozen && chunk.file.is_none();
            let (run, dirty) = if gave_file_up { (chunk.range(), true) } else { next_run(&pagemap, &chunk, start)? };
            start = run.end;
            if dirty {
                // SAFETY: passed on.
                unsafe { copy(chunks, &pagemap, &chunk, &run, &mut done) }?;
            } else {
                // SAFETY: as `copy`; the run has no private page.
                unsafe { remap(&chunk, &run, &mut done) };
            }
        }
    }
    Ok(done)
}

fn is_dirty(pagemap: &Pagemap, chunk: &Chunk, range: &Range<usize>) -> Result<bool, PagemapError> {
    let wanted = if chunk.state == State::Anonymous { Wanted::Present } else { Wanted::Written };
    let mut dirty = false;
    pagemap.scan(range.clone(), wanted, &mut |_| {
        dirty = true;
        ControlFlow::Break(())
    })?;
    Ok(dirty)
}

/// The pieces from `start` on that are dirty, or that are not.
fn next_run(pagemap: &Pagemap, chunk: &Chunk, start: usize) -> Result<(Range<usize>, bool), PagemapError> {
    let end = chunk.range().end;
    let dirty = is_dirty(pagemap, chunk, &(start..start + PIECE))?;
    let mut behind = start + PIECE;
    while behind < end && is_dirty(pagemap, chunk, &(behind..behind + PIECE))? == dirty {
        behind += PIECE;
    }
    Ok((start..behind, dirty))
}

/// Maps clean pieces afresh.
///
/// # Safety
///
/// 1. No page of `run` is private, and nobody writes there meanwhile.
unsafe fn remap(chunk: &Chunk, run: &Range<usize>, done: &mut Refrozen) {
    let mapped = match chunk.file {
        // SAFETY: 1. the run is part of a chunk. 2. It shows the file's bytes already, by contract 1.
        Some((extent, offset)) => unsafe {
            extent.map(run.start, run.len(), offset + (run.start - chunk.start), View::Private)
        },
        None => Err(Errno::BADF),
    };
    match mapped {
        Ok(()) => done.remapped += run.len(),
        Err(_) => done.left += run.len(),
    }
}

/// Freezes dirty pieces in a file of their own.
///
/// # Safety
///
/// 1. Nobody writes to `run` meanwhile.
unsafe fn copy(
    chunks: &mut Chunks,
    pagemap: &Pagemap,
    chunk: &Chunk,
    run: &Range<usize>,
    done: &mut Refrozen,
) -> Result<(), RefreezeError> {
    if !chunks.has_room_to_cut() {
        done.left += run.len();
        return Ok(());
    }
    let failed = |errno: Errno| RefreezeError::Copy { address: run.start, len: run.len(), source: errno.into() };
    let extent = chunks.new_file(run.len()).map_err(failed)?;
    // SAFETY: passed on.
    let copied = unsafe { fill(extent, pagemap, chunk, run) }.and_then(|filled| filled.map_err(failed));
    let mapped = copied.and_then(|()| {
        // SAFETY: 1. part of a chunk. 2. The file has the same bytes: nobody wrote since they were copied.
        unsafe { extent.map(run.start, run.len(), 0, View::Private) }.map_err(failed)
    });
    if let Err(error) = mapped {
        extent.close();
        return Err(error);
    }
    // The only way that this fails here is a device, which contract 1 excludes; unsealed, the file is still nobody else's.
    let _ = extent.seal();
    let file = if run.len() > PIECE && extent::may_stay_open() {
        Some((extent, 0))
    } else {
        extent.close();
        None
    };
    chunks.replace(Chunk { start: run.start, len: run.len(), state: State::Frozen, file });
    done.copied += run.len();
    Ok(())
}

/// Writes what is not zeros of `run` into the new file.
///
/// # Safety
///
/// 1. Nobody writes to `run` meanwhile.
unsafe fn fill(
    extent: Extent,
    pagemap: &Pagemap,
    chunk: &Chunk,
    run: &Range<usize>,
) -> Result<Result<(), Errno>, RefreezeError> {
    let mut outcome = Ok(());
    let mut write = |part: Range<usize>| {
        // SAFETY: passed on; a chunk is readable.
        outcome = unsafe { write_non_zero(extent, run.start, &part) };
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    if chunk.state == State::Anonymous {
        pagemap.scan(run.clone(), Wanted::Present, &mut write)?;
    } else {
        // Pages of the file count as well, and which of them there are the page table does not tell.
        let _ = write(run.clone());
    }
    Ok(outcome)
}

/// # Safety
///
/// 1. `part` is mapped for reading, and nobody writes there meanwhile.
unsafe fn write_non_zero(extent: Extent, base: usize, part: &Range<usize>) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    let mut start = part.start;
    while start < part.end {
        let mut end = start;
        // SAFETY: whole pages inside `part`; contract 1.
        while end < part.end && !unsafe { is_zero(end, page) } {
            end += page;
        }
        if end > start {
            // SAFETY: as above.
            unsafe { extent.write(start - base, start, end - start) }?;
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
