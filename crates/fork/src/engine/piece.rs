//! One piece of memory: copied into an extent, and shown from there at once.
//!
//! This is the heart of freezing. Between the copy and the replacement nothing may write to the piece: other threads
//! are held still or absent, all signals are blocked, and the code here writes only to its stack and the thread's
//! `errno`, which are never frozen.

use palimpsest_sys::HUGE_PAGE;
use palimpsest_sys::memory::extent::{Extent, ExtentError};
use palimpsest_sys::memory::remap;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use rustix::io::Errno;

/// Length of a piece in bytes: what a freeze needs as extra memory, and the least that a repair replaces. The size of a
/// huge page on most machines.
pub(crate) const PIECE: usize = HUGE_PAGE;

/// What became of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It is frozen; this many bytes were copied.
    Frozen(usize),
    /// It has pages that cannot be read, such as guards, and was left alone.
    Unreadable,
}

/// An extent, and the address stored at its offset 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) extent: &'a Extent,
    pub(super) base: usize,
}

impl Target<'_> {
    const fn offset(&self, address: usize) -> u64 {
        address.wrapping_sub(self.base) as u64
    }
}

/// Copies the populated `runs` of `piece` to `target`, and maps the copy in its place.
///
/// An error leaves the piece unchanged; the extent may hold a copy that nobody uses.
///
/// # Safety
///
/// 1. `piece` is whole pages of one private anonymous mapping with these traits, or of a private mapping whose bytes
///    outside `runs` are zeros or in the extent already.
/// 2. Nothing writes to it during the call.
/// 3. `runs` are in `piece` and hold all of its bytes that are not zero, or are in the extent already.
pub(super) unsafe fn freeze_piece(
    target: Target<'_>,
    piece: Span,
    runs: &[Span],
    traits: Traits,
) -> Result<Outcome, ExtentError> {
    let mut copied = 0;
    for run in runs {
        match target.extent.store(run.range(), target.offset(run.start)) {
            Ok(()) => copied += run.len(),
            Err(ExtentError::Copy { errno: Errno::FAULT, .. }) => return Ok(Outcome::Unreadable),
            Err(error) => return Err(error),
        }
    }
    // SAFETY: 1. by (1) to (3) the extent has the piece's bytes now, and they have not changed since; 2. by (2).
    unsafe { show(target, piece, traits) }?;
    Ok(Outcome::Frozen(copied))
}

/// Maps `piece` from the extent, which has its bytes; see [`remap`] for what a failure leaves.
///
/// # Safety
///
/// 1. The extent has all bytes of `piece`, and the caller may replace the mapping.
/// 2. No other thread runs.
pub(super) unsafe fn show(target: Target<'_>, piece: Span, traits: Traits) -> Result<(), ExtentError> {
    // SAFETY: 1. (1); 2. (2).
    unsafe { remap::show(target.extent, piece, target.offset(piece.start), traits.permissions) }?;
    traits.give_to(piece);
    Ok(())
}
