//! One piece of memory: copied into an extent, and at once shown from there.
//!
//! This is the heart of the matter. Between the copy and the replacement nothing may write to the piece: other threads are held still or
//! absent, all signals are blocked, and the code here writes to its stack and the thread's `errno` alone, which are excluded from freezing.

use std::io::Write;

use palimpsest_sys::extent::{Extent, ExtentError, is_mapped};
use rustix::io::Errno;

use super::span::Span;
use super::traits::Traits;

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

/// An extent, and the address that is offset 0 in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) extent: &'a Extent,
    pub(crate) base: usize,
}

impl Target<'_> {
    const fn offset(&self, address: usize) -> u64 {
        address.wrapping_sub(self.base) as u64
    }
}

/// Copies the populated `runs` of `piece` to `target`, and maps that in its place.
///
/// An error leaves the piece as it was, with nothing lost; the extent may hold a copy that nobody uses.
///
/// # Safety
///
/// 1. `piece` is whole pages of one private anonymous mapping with these traits, or of a private mapping whose bytes outside `runs` are
///    zeros or already in the extent.
/// 2. Nothing writes to it during the call.
/// 3. `runs` are in `piece` and hold all bytes of it that are not zero, or are in the extent already.
pub(crate) unsafe fn freeze_piece(
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
    // SAFETY: 1. by (1) to (3) the extent has the piece's bytes now, and they have not changed since.
    unsafe { show(target, piece, traits) }?;
    Ok(Outcome::Frozen(copied))
}

/// Maps `piece` from the extent, which has its bytes. If the kernel refuses and has already unmapped what was there, tries again, and ends the process if
/// that is refused too: going on with a hole in memory would be worse.
///
/// # Safety
///
/// 1. The extent has all bytes of `piece`, and the caller may replace the mapping.
pub(crate) unsafe fn show(target: Target<'_>, piece: Span, traits: Traits) -> Result<(), ExtentError> {
    let map = || {
        // SAFETY: 1. is this function's own. After a failure what was there may be gone, and no other thread runs that could have mapped something.
        unsafe { target.extent.map_over(piece.range(), target.offset(piece.start), traits.permissions) }
    };
    match insist(map, || piece.cut(PIECE).all(|part| is_mapped(part.range()))) {
        Insisted::Done => {
            traits.give_to(piece);
            Ok(())
        }
        Insisted::Refused(error) => Err(error),
        Insisted::Lost(error) => give_up(piece, error),
    }
}

/// What came of replacing a mapping.
#[derive(PartialEq, Eq, Debug)]
enum Insisted<E> {
    /// It is replaced.
    Done,
    /// It is still there.
    Refused(E),
    /// It is gone, and nothing is in its place.
    Lost(E),
}

/// Replaces a mapping by `map`, and tries again as long as the old one is gone and no new one there.
fn insist<E>(mut map: impl FnMut() -> Result<(), E>, is_there: impl FnOnce() -> bool) -> Insisted<E> {
    const TRIALS: usize = 16;
    let Err(error) = map() else { return Insisted::Done };
    if is_there() {
        return Insisted::Refused(error);
    }
    if (0..TRIALS).any(|_| map().is_ok()) { Insisted::Done } else { Insisted::Lost(error) }
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

#[cfg(test)]
mod tests {
    use palimpsest_sys::extent::Use;
    use palimpsest_sys::proc::maps::Permissions;
    use palimpsest_sys::vmas::VmaFlags;

    use super::*;

    #[test]
    fn what_was_unmapped_by_a_refused_call_is_mapped_by_a_later_one() {
        // A kernel that has no memory for a while: the first `refusals` calls fail.
        let outcome = |refusals: usize, is_there: bool| {
            let mut calls = 0;
            let map = || {
                calls += 1;
                if calls > refusals { Ok(()) } else { Err(calls) }
            };
            (insist(map, || is_there), calls)
        };
        assert_eq!(outcome(0, true), (Insisted::Done, 1));
        assert_eq!(outcome(1, true), (Insisted::Refused(1), 1), "nothing is lost, so nothing is tried again");
        assert_eq!(outcome(9, false), (Insisted::Done, 10));
        let (lost, calls) = outcome(usize::MAX, false);
        assert_eq!(lost, Insisted::Lost(1));
        assert!(calls > 10, "{calls}");
    }

    #[test]
    fn a_process_whose_memory_is_lost_ends_and_says_so() {
        let page = rustix::param::page_size();
        let mut extent = Extent::create(Use::Frozen).expect("memory files can be made");
        // Without its descriptor it cannot be mapped.
        extent.close();
        let (mut told, teller) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes system calls only, until it aborts.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both are descriptors of this child.
            unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&teller), 2) };
            // Nothing is mapped at the lowest addresses.
            let hole = Span::new(page, 2 * page);
            let traits = Traits { permissions: Permissions::READ, flags: VmaFlags::default(), protection_key: 0 };
            // SAFETY: 1. no bytes are there that could be missing.
            let _ = unsafe { show(Target { extent: &extent, base: hole.start }, hole, traits) };
            // SAFETY: ends the child.
            unsafe { libc::_exit(7) };
        }
        drop(teller);
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status:#x}");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut told, &mut text).expect("readable");
        assert!(text.contains("is lost") && text.contains(&format!("{page:#x}..")), "{text}");
    }
}
