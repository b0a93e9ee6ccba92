//! One piece of memory: copied into an extent, and at once shown from there.
//!
//! This is the heart of the matter. Between the copy and the replacement nothing may write to the piece: other threads are held still or
//! absent, all signals are blocked, and the code here writes to its stack and the thread's `errno` alone, which are excluded from freezing.

use std::io::Write;

use palimpsest_sys::extent::{Extent, ExtentError, is_mapped};
use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::VmaFlags;
use rustix::io::Errno;

use super::span::Span;

/// Length of a piece in bytes: what a freeze needs as extra memory, and what a repair replaces at least. The size of a huge page on most machines.
pub(crate) const PIECE: usize = 2 << 20;

/// What became of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It is frozen; so many bytes were copied.
    Frozen(usize),
    /// It has pages that cannot be read, such as guards, and was left as it is.
    Unreadable,
}

/// Copies the populated `runs` of `piece` to `extent`, where address `base` is offset 0, and maps the extent in its place.
///
/// An error leaves the piece as it was, with nothing lost; the extent may hold a copy that nobody uses.
///
/// # Safety
///
/// 1. `piece` is whole pages of one private anonymous mapping with these rights and flags, or of a private mapping whose bytes outside `runs` are
///    zeros or already in `extent`.
/// 2. Nothing writes to it during the call.
/// 3. `runs` are in `piece` and hold all bytes of it that are not zero, or are in `extent` already.
pub(crate) unsafe fn freeze_piece(
    extent: &Extent,
    base: usize,
    piece: Span,
    runs: &[Span],
    permissions: Permissions,
    flags: VmaFlags,
) -> Result<Outcome, ExtentError> {
    let mut copied = 0;
    for run in runs {
        match extent.store(run.range(), (run.start - base) as u64) {
            Ok(()) => copied += run.len(),
            Err(ExtentError::Copy { errno: Errno::FAULT, .. }) => return Ok(Outcome::Unreadable),
            Err(error) => return Err(error),
        }
    }
    // SAFETY: 1. by (1) to (3) the extent has the piece's bytes now, and they have not changed since.
    unsafe { show(extent, base, piece, permissions) }?;
    restore_flags(piece, flags);
    Ok(Outcome::Frozen(copied))
}

/// Maps `piece` from the extent, which has its bytes. If the kernel refuses and has already unmapped what was there, tries again, and ends the process if
/// that is refused too: going on with a hole in memory would be worse.
///
/// # Safety
///
/// 1. The extent has all bytes of `piece`, where address `base` is offset 0, and the caller may replace the mapping.
pub(crate) unsafe fn show(
    extent: &Extent,
    base: usize,
    piece: Span,
    permissions: Permissions,
) -> Result<(), ExtentError> {
    let offset = (piece.start - base) as u64;
    // SAFETY: 1. is this function's own.
    let Err(error) = (unsafe { extent.map_over(piece.range(), offset, permissions) }) else { return Ok(()) };
    if piece.cut(PIECE).all(|part| is_mapped(part.range())) {
        return Err(error);
    }
    for _ in 0..16 {
        // SAFETY: 1. as above; what was there is gone, and no other thread runs that could have mapped something.
        if unsafe { extent.map_over(piece.range(), offset, permissions) }.is_ok() {
            return Ok(());
        }
    }
    give_up(piece, error)
}

/// Ends the process, whose memory has a hole that cannot be filled.
pub(crate) fn give_up(piece: Span, error: ExtentError) -> ! {
    let mut text = [0_u8; 256];
    let mut rest = &mut text[..];
    // Too long a message is cut.
    let _ = writeln!(
        rest,
        "palimpsest: memory at {:#x}..{:#x} is lost ({error}); the process cannot go on",
        piece.start, piece.end
    );
    let left = rest.len();
    let len = text.len() - left;
    let _ = rustix::io::write(rustix::stdio::stderr(), &text[..len]);
    std::process::abort()
}

/// Gives a new mapping the advice that the old one had.
pub(crate) fn restore_flags(piece: Span, flags: VmaFlags) {
    for (flag, advice) in [
        (VmaFlags::HUGE_PAGE, libc::MADV_HUGEPAGE),
        (VmaFlags::NO_HUGE_PAGE, libc::MADV_NOHUGEPAGE),
        (VmaFlags::DONT_DUMP, libc::MADV_DONTDUMP),
        (VmaFlags::MERGEABLE, libc::MADV_MERGEABLE),
        (VmaFlags::SEQUENTIAL, libc::MADV_SEQUENTIAL),
        (VmaFlags::RANDOM, libc::MADV_RANDOM),
    ] {
        if flags.intersects(flag) {
            // SAFETY: none of these changes contents. A refusal loses a hint.
            unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(piece.start), piece.len(), advice) };
        }
    }
}
