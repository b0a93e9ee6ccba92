//! Writing to program text: mappings of files that this process may only execute.

use std::mem::ManuallyDrop;
use std::ptr;

use rustix::mm::{MprotectFlags, MremapFlags};

use crate::arch::{MERGED_WRITES, flush_instruction_cache};
use crate::mapping::{MapError, Mapping, Protection, Source};
use crate::proc_mem::{ProcMem, ProcMemError};

/// Writes to executable memory that has no other view.
///
/// No mapping is ever writable and executable. The process gets a private copy of each page of a file that is written to for the first
/// time; the file and other processes keep theirs.
///
/// A forked child needs a writer of its own: `/proc/self/mem` means the memory of the process that opened it.
#[derive(Debug, Default)]
pub struct TextWriter {
    /// Found out when it is needed: programs in packs are written without it.
    way: Option<Way>,
}

/// How a [`TextWriter`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextWay {
    /// Through `/proc/self/mem`: no mapping changes (measured: 0.9 to 2.3 µs a write of up to a page).
    ProcMem,
    /// By putting a changed copy in the place of the pages at once (`mremap`; measured: 19 to 26 µs a page), where
    /// `/proc/self/mem` is refused. The pages are anonymous memory from then on, so that profilers lose their names.
    Exchange,
}

#[derive(Debug)]
enum Way {
    ProcMem(ProcMem),
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
        "cannot exchange the pages of {len} bytes of text at {address:#x}, and /proc/self/mem is of no use here; does MDWE or SELinux forbid it?"
    )]
    Exchange {
        /// First address.
        address: usize,
        /// Bytes that were to be written.
        len: usize,
        /// Why not.
        #[source]
        source: MapError,
    },
}

impl TextWriter {
    /// A writer for the calling process.
    pub fn new() -> Self {
        Self::default()
    }

    /// A writer that writes in one way and no other.
    ///
    /// # Errors
    ///
    /// [`TextWriteError::ProcMem`] if `/proc/self/mem` cannot be opened.
    pub fn with_way(way: TextWay) -> Result<Self, TextWriteError> {
        let way = match way {
            TextWay::ProcMem => Way::ProcMem(ProcMem::open()?),
            TextWay::Exchange => Way::Exchange,
        };
        Ok(Self { way: Some(way) })
    }

    /// Finds out how to write, by trying on a page of its own, and tells.
    ///
    /// # Errors
    ///
    /// [`TextWriteError`] if there is no way.
    pub fn prepare(&mut self) -> Result<TextWay, TextWriteError> {
        match self.way()? {
            Way::ProcMem(_) => Ok(TextWay::ProcMem),
            Way::Exchange => Ok(TextWay::Exchange),
        }
    }

    fn way(&mut self) -> Result<&Way, TextWriteError> {
        match &mut self.way {
            Some(way) => Ok(way),
            none => Ok(none.insert(find_way()?)),
        }
    }

    /// Stores `pieces`, which are sorted by address and do not overlap, and says in how many system calls: where the ISA
    /// bears it, one for each run of pieces that touch the same pages, since a call costs more than copying a page does. The bytes between the
    /// pieces are then stored again as they are; who else writes there at the same time (no debugger does, it stops the process)
    /// may lose that.
    ///
    /// # Safety
    ///
    /// 1. The ranges, and the bytes between pieces in one page, are mapped readable, and no reference to them is live.
    /// 2. Whoever may execute them concurrently can bear every intermediate state of each piece, byte by byte.
    ///
    /// # Errors
    ///
    /// [`TextWriteError`]; some of the pieces may have been stored, but none if [`prepare`](Self::prepare) has not succeeded before.
    pub unsafe fn write<'b>(&mut self, pieces: impl Iterator<Item = (usize, &'b [u8])>) -> Result<u64, TextWriteError> {
        let page = rustix::param::page_size();
        let mut run = Run { start: 0, bytes: Vec::new() };
        let mut writes = 0;
        for (address, bytes) in pieces {
            let end = run.start + run.bytes.len();
            let same_page = !run.bytes.is_empty() && address / page == (end - 1) / page;
            if MERGED_WRITES && same_page {
                // SAFETY: between two pieces of one page (1).
                unsafe { run.extend_to(address) };
            } else {
                // SAFETY: the caller's contract; what lies between the pieces is stored as it is.
                writes += unsafe { self.flush(&run) }?;
                run.start = address;
                run.bytes.clear();
            }
            run.bytes.extend_from_slice(bytes);
        }
        // SAFETY: as above.
        Ok(writes + unsafe { self.flush(&run) }?)
    }

    /// # Safety
    ///
    /// As for [`write`](Self::write).
    unsafe fn flush(&mut self, run: &Run) -> Result<u64, TextWriteError> {
        if run.bytes.is_empty() {
            return Ok(0);
        }
        match self.way()? {
            // SAFETY: the caller's contract.
            Way::ProcMem(memory) => unsafe { memory.write(run.start, &run.bytes) }?,
            Way::Exchange => {
                let error = |source| TextWriteError::Exchange { address: run.start, len: run.bytes.len(), source };
                // SAFETY: the caller's contract.
                unsafe { exchange(run) }.map_err(error)?;
            }
        }
        Ok(1)
    }
}

/// Bytes for consecutive addresses.
struct Run {
    start: usize,
    bytes: Vec<u8>,
}

impl Run {
    /// Takes what is in memory up to `address`.
    ///
    /// # Safety
    ///
    /// 1. The bytes from the run's end to `address` are readable.
    unsafe fn extend_to(&mut self, address: usize) {
        let end = self.start + self.bytes.len();
        let source = ptr::with_exposed_provenance::<u8>(end);
        // SAFETY: readable (1); a byte has no invalid value, and nobody writes there but the caller.
        self.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(source, address - end) });
    }
}

fn find_way() -> Result<Way, TextWriteError> {
    let page = rustix::param::page_size();
    let trial = |source| TextWriteError::Exchange { address: 0, len: 1, source };
    let mapping = Mapping::new(Source::Anonymous, page, Protection::ReadExecute, page).map_err(trial)?;
    if let Ok(memory) = ProcMem::open() {
        // SAFETY: 1. a page of our own, without references; 2. which nobody executes.
        if unsafe { memory.write(mapping.address(), &[1]) }.is_ok() {
            return Ok(Way::ProcMem(memory));
        }
    }
    let run = Run { start: mapping.address(), bytes: vec![1] };
    // SAFETY: as above.
    unsafe { exchange(&run) }.map_err(trial)?;
    Ok(Way::Exchange)
}

/// Puts a changed copy of the run's pages in their place. Threads that execute them meanwhile see the old page or the new one
/// (`move_vma` in mm/mremap.c, under the lock that page faults take); forked children are made before or after.
///
/// # Safety
///
/// 1. The run's pages are mapped readable, and no reference to them is live.
/// 2. Whoever may execute them concurrently can bear the change.
unsafe fn exchange(run: &Run) -> Result<(), MapError> {
    let page = rustix::param::page_size();
    let start = run.start / page * page;
    let len = (run.start + run.bytes.len()).next_multiple_of(page) - start;
    let copy = ManuallyDrop::new(Mapping::new(Source::Anonymous, len, Protection::ReadWrite, page)?);
    let old = ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: both are valid for `len` bytes (1), and the copy is new memory.
    unsafe { copy.as_ptr().copy_from_nonoverlapping(old, len) };
    let changed = copy.as_ptr().wrapping_add(run.start - start);
    // SAFETY: in the copy, which has room for the whole run.
    unsafe { changed.copy_from_nonoverlapping(run.bytes.as_ptr(), run.bytes.len()) };
    let moved = copy.set_protection(MprotectFlags::READ | MprotectFlags::EXEC).and_then(|()| {
        let to = ptr::with_exposed_provenance_mut(start);
        // SAFETY: the old pages are code that the caller answers for (1, 2), and the copy is ours; it is given up by this.
        unsafe { rustix::mm::mremap_fixed(copy.as_ptr().cast(), len, len, MremapFlags::MAYMOVE, to) }
            .map(drop)
            .map_err(|errno| MapError::diagnose("mremap", len, errno))
    });
    match moved {
        Ok(()) => flush_instruction_cache(start..start + len),
        Err(_) => drop(ManuallyDrop::into_inner(copy)),
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_stored_and_what_is_between_stays() {
        for way in [TextWay::ProcMem, TextWay::Exchange] {
            store_pieces(TextWriter::with_way(way).unwrap());
        }
    }

    #[test]
    fn the_better_way_is_found() {
        assert_eq!(TextWriter::new().prepare().unwrap(), TextWay::ProcMem);
    }

    fn store_pieces(mut writer: TextWriter) {
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
        assert_eq!(writes, if MERGED_WRITES { 2 } else { 4 });
        let byte = |offset: usize| {
            let at = mapping.as_ptr().wrapping_add(offset);
            // SAFETY: in the mapping.
            unsafe { at.read() }
        };
        let expected = [(16, 1), (17, 2), (20, 9), (40, 3), (page - 1, 4), (page + 1, 6), (2 * page + 8, 7), (0, 0)];
        assert!(expected.iter().all(|&(offset, value)| byte(offset) == value));
    }
}
