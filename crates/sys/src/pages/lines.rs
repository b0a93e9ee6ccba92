//! The kernel's lists of mappings, line by line, without the heap.
//!
//! Format: `proc_pid_maps(5)`, `proc_pid_smaps(5)`.

use std::ops::ControlFlow;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::maps::MapLine;
use crate::brief_file::BriefFile;
use crate::memory::full::Full;

/// Why the mappings cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum VmasError {
    /// The file cannot be opened or read.
    #[error("cannot read /proc/thread-self/{file}; is /proc mounted?")]
    Read {
        /// `maps` or `smaps`.
        file: &'static str,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// A line has an unknown form.
    #[error("line {line} of /proc/thread-self/{file} has no {expected}")]
    Parse {
        /// `maps` or `smaps`.
        file: &'static str,
        /// Number of the line, from 1.
        line: usize,
        /// What it lacks.
        expected: &'static str,
    },
    /// There are more mappings than the table holds.
    #[error("too many mappings")]
    TooMany(#[from] Full),
}

/// Receives a line and its number.
type TakeLine<'a> = &'a mut dyn FnMut(&[u8], usize) -> Result<(), VmasError>;

/// Calls `take` with each mapping and its name, as [`MapLine::parse`] reads them, by ascending address, until `take`
/// breaks. Allocates nothing.
///
/// # Errors
///
/// [`VmasError::Read`], [`VmasError::Parse`].
pub fn each_mapping(take: &mut dyn FnMut(&MapLine, &[u8]) -> ControlFlow<()>) -> Result<(), VmasError> {
    let file = "maps";
    let source = BriefFile::open(c"/proc/thread-self/maps", OFlags::RDONLY)
        .map_err(|source| VmasError::Read { file, source })?;
    let mut is_over = false;
    // Longer than any line: a path has up to 4096 bytes, each of which may become four.
    let mut buffer = [0; 20 << 10];
    let ended = each_line(source.as_fd(), &mut buffer, file, &mut |text, line| {
        let (mapping, name) = MapLine::parse(text).map_err(|expected| VmasError::Parse { file, line, expected })?;
        is_over = take(&mapping, name).is_break();
        // Any error ends the reading; this one is dropped below.
        if is_over { Err(VmasError::Read { file, source: Errno::CANCELED }) } else { Ok(()) }
    });
    if is_over { Ok(()) } else { ended }
}

/// Returns the mapping that contains `address`. Allocates nothing.
///
/// # Errors
///
/// As [`each_mapping`].
pub(crate) fn mapping_at(address: usize) -> Result<Option<MapLine>, VmasError> {
    let mut found = None;
    each_mapping(&mut |mapping, _| {
        if mapping.range().contains(&address) {
            found = Some(*mapping);
        }
        if mapping.end > address { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

/// Bytes read at a time. The kernel fills a page with records while they are wanted; of one that does not fit it drops
/// what it has found, and finds it anew at the next call (`seq_read_iter` in `fs/seq_file.c`). For `smaps` that is a
/// second walk of a mapping's page tables, 14 µs for each MiB. It begins no record once it has as much as was asked
/// for, and a record is shorter than the rest of a page unless its path is very long.
const AT_ONCE: usize = 2 << 10;

/// Calls `take` with each line, without its newline, and its number.
pub(crate) fn each_line(
    source: BorrowedFd<'_>,
    buffer: &mut [u8],
    file: &'static str,
    take: TakeLine<'_>,
) -> Result<(), VmasError> {
    let failed = |source| VmasError::Read { file, source };
    let (mut filled, mut line, mut offset) = (0, 0, 0);
    loop {
        let end = buffer.len().min(filled + AT_ONCE);
        let got = match rustix::io::pread(source, &mut buffer[filled..end], offset) {
            Ok(0) => return Ok(()),
            Ok(got) => got,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failed(errno)),
        };
        offset += got as u64;
        filled += got;
        let mut start = 0;
        while let Some(len) = buffer[start..filled].iter().position(|byte| *byte == b'\n') {
            line += 1;
            take(&buffer[start..start + len], line)?;
            start += len + 1;
        }
        if start == 0 && filled == buffer.len() {
            return Err(failed(Errno::NAMETOOLONG));
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
}
