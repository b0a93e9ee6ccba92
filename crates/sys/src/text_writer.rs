//! Writing to program text: mappings of files that this process may only execute.

use std::ptr;

use crate::arch::MERGED_WRITES;
use crate::proc_mem::{ProcMem, ProcMemError};

/// Writes to executable memory that has no other view, through `/proc/self/mem`.
///
/// No mapping changes its rights, and none is ever writable and executable. The kernel gives the process a private copy of
/// each page of a file that is written to for the first time; the file and other processes keep theirs.
///
/// A forked child needs a writer of its own: the file means the memory of the process that opened it.
#[derive(Debug, Default)]
pub struct TextWriter {
    /// Opened when it is needed: programs in packs are written without it.
    memory: Option<ProcMem>,
}

impl TextWriter {
    /// A writer for the calling process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes sure that [`write`](Self::write) has what it needs.
    ///
    /// # Errors
    ///
    /// [`ProcMemError::Open`].
    pub fn prepare(&mut self) -> Result<(), ProcMemError> {
        self.memory().map(drop)
    }

    fn memory(&mut self) -> Result<&ProcMem, ProcMemError> {
        match &mut self.memory {
            Some(memory) => Ok(memory),
            none => Ok(none.insert(ProcMem::open()?)),
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
    /// [`ProcMemError`]; some of the pieces may have been stored, but none if [`prepare`](Self::prepare) has not succeeded before.
    pub unsafe fn write<'b>(&mut self, pieces: impl Iterator<Item = (usize, &'b [u8])>) -> Result<u64, ProcMemError> {
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
    /// As for [`ProcMem::write`].
    unsafe fn flush(&mut self, run: &Run) -> Result<u64, ProcMemError> {
        if run.bytes.is_empty() {
            return Ok(0);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory()?.write(run.start, &run.bytes) }?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Protection, Source};

    #[test]
    fn pieces_are_stored_and_what_is_between_stays() {
        let page = rustix::param::page_size();
        let mapping = Mapping::new(Source::Anonymous, 3 * page, Protection::ReadExecute, page).unwrap();
        let (base, mut writer) = (mapping.address(), TextWriter::new());
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
