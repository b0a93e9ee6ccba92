//! Back to anonymous memory.

use std::ops::Range;

use palimpsest_sys::pagemap::{Pagemap, Wanted};
use palimpsest_sys::vmas::VmaFlags;
use rustix::io::Errno;

use super::errno::Kept;
use super::frozen::each_part;
use super::touches;
use crate::engine::piece::PIECE;
use crate::engine::registry;
use crate::engine::repair::{PieceRuns, add_contents, make_anonymous};
use crate::engine::signals::Blocked;
use crate::engine::span::Span;

/// Makes anonymous memory with the same bytes of the frozen parts of `range`, of which pages are taken whole.
///
/// Other threads must not write to the range meanwhile; signals are blocked.
///
/// # Errors
///
/// ENOMEM if there is no memory or no `/proc`, EBUSY if a freeze is under way; what was not thawed until then is still frozen.
pub fn thaw(range: Range<usize>) -> Result<(), Errno> {
    if !touches(range.clone()) {
        return Ok(());
    }
    let _errno = Kept::now();
    let _blocked = Blocked::all();
    let pagemap = Pagemap::open().map_err(|_| Errno::NOMEM)?;
    let mut locked = registry::lock().map_err(|_| Errno::NOMEM)?.ok_or(Errno::BUSY)?;
    let span = Span::from(range).rounded_out(rustix::param::page_size());
    each_part(span, |part| {
        if !part.is_frozen {
            return Ok(());
        }
        let Some(extent) = locked.extent_of(&part.vma) else { return Ok(()) };
        let base = part.vma.start.wrapping_sub(part.vma.offset as usize);
        for piece in part.span.cut(PIECE) {
            let mut runs = PieceRuns::new();
            pagemap.scan(piece.range(), Wanted::Written, &mut |run| runs.push(run.into())).map_err(|_| Errno::NOMEM)?;
            add_contents(&mut runs, &extent, base, piece).map_err(|_| Errno::NOMEM)?;
            // SAFETY: 1. private memory, says the kernel; the runs are its written pages and the contents of its file; signals are blocked, and
            // other threads do not write to it (the caller's part).
            unsafe { make_anonymous(piece, runs.as_slice(), part.vma.permissions, VmaFlags::default()) }
                .map_err(|_| Errno::NOMEM)?;
        }
        Ok(())
    })
}

/// Prepares `range` for `mlock`: locking writes to every page of a private mapping, so that frozen memory would be held twice.
///
/// # Errors
///
/// As [`thaw`].
pub fn before_mlock(range: Range<usize>) -> Result<(), Errno> {
    thaw(range)
}

/// Prepares the process for `mlockall(MCL_CURRENT)`.
///
/// # Errors
///
/// As [`thaw`].
pub fn before_mlockall() -> Result<(), Errno> {
    match registry::shared() {
        Some(shared) => thaw(shared.bounds().range()),
        None => Ok(()),
    }
}
