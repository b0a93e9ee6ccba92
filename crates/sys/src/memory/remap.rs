//! Replaces mappings in place.
//!
//! `mmap` with `MAP_FIXED` may unmap what is there and then find that it cannot map anything new (`mmap(2)`). The
//! functions here leave no such hole. Each has three outcomes: the new mapping exists; an error, and the old one still
//! exists; or the process ends, because its memory is lost.
//!
//! None allocates or runs code of the caller.

use std::fmt::{self, Write as _};

use rustix::io::Errno;

use super::calls::{self, Commit, map_zeros_over};
use super::extent::{Extent, ExtentError};
use super::file::{MemoryFile, Sharing};
use super::span::Span;
use crate::pages::maps::Permissions;

/// Attempts of `mmap` before lost memory is given up.
const TRIALS: usize = 16;

/// Maps the bytes of `extent` from `offset` privately over `span`.
///
/// # Safety
///
/// 1. `span` is whole pages, and the caller may replace what is mapped there: its bytes are in the extent at `offset`,
///    or nobody needs them any more.
/// 2. No other thread maps or unmaps anything there during the call.
///
/// # Errors
///
/// [`ExtentError::Map`], [`ExtentError::Closed`]: the old mapping still exists.
pub unsafe fn show(extent: &Extent, span: Span, offset: u64, permissions: Permissions) -> Result<(), ExtentError> {
    // SAFETY: (1). After a failure the range may be unmapped, and by (2) nothing of anybody else lies there.
    replace(span, || unsafe { extent.map_over(span.range(), offset, permissions) })
}

/// Maps the bytes of `file` from `offset` over `span`, for reading and writing.
///
/// # Safety
///
/// 1. As for [`MemoryFile::map_over`].
/// 2. No other thread maps or unmaps anything there during the call.
///
/// # Errors
///
/// As for [`MemoryFile::map_over`]: the old mapping still exists.
pub unsafe fn show_file(file: &MemoryFile, span: Span, offset: u64, sharing: Sharing) -> Result<(), Errno> {
    // SAFETY: 1. (1). After a failure the range may be unmapped, and by (2) nothing of anybody else lies there.
    replace(span, || unsafe { file.map_over(span, offset, sharing, Permissions::READ_WRITE) })
}

/// Maps fresh zeros privately over `span`.
///
/// # Safety
///
/// 1. `span` is whole pages, and the caller may replace what is mapped there.
/// 2. No other thread maps or unmaps anything there during the call.
///
/// # Errors
///
/// The kernel's: the old mapping still exists.
pub unsafe fn zero(span: Span, permissions: Permissions, commit: Commit) -> Result<(), Errno> {
    // SAFETY: (1), and (2) as in `show`.
    replace(span, || unsafe { map_zeros_over(span, permissions, commit) })
}

/// Makes a private mapping of a file as good as new, so that a fork copies none of its page tables. No page of it was
/// written, or nobody needs what was.
///
/// Its pages move to a second mapping, which is unmapped. The kernel then forgets that the first was ever written (its
/// `anon_vma`, `dontunmap_complete` in `mm/mremap.c`), but not for a part of a mapping. Needs no descriptor, and keeps
/// the mapping's rights and advice.
///
/// # Safety
///
/// 1. `span` is in one private mapping of a file, and nobody needs what was written to it.
/// 2. No other thread maps or unmaps anything during the call.
///
/// # Errors
///
/// The kernel's; EINVAL before Linux 5.13: nothing has changed.
pub unsafe fn renew(span: Span) -> Result<(), Errno> {
    // SAFETY: 1. (1): the mapping stays.
    let copy = unsafe { calls::duplicate(span) }?;
    let copy = Span::new(copy, copy + span.len());
    // Could fail only for too many mappings, but divides none. SAFETY: 1. made above, and by (2) unchanged.
    let _ = unsafe { calls::unmap(copy) };
    Ok(())
}

/// Moves `from` over `place`, of the same length. If it fails, both are unchanged.
///
/// # Safety
///
/// 1. `from` lies in one mapping that only the caller knows, and the caller may replace what is mapped at `place`.
/// 2. No other thread maps or unmaps anything there during the call.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn replace_by(from: Span, place: Span) -> Result<(), Errno> {
    // SAFETY: 1. by (1). After a failure the range may be unmapped, and by (2) nothing of anybody else is there.
    replace(place, || unsafe { calls::relocate(from, place.start) })
}

/// Ends the process, whose memory at `span` is lost.
pub fn give_up(span: Span, error: &dyn fmt::Display) -> ! {
    let mut text = Text::default();
    // A message that is too long is cut.
    let _ = writeln!(
        text,
        "palimpsest: memory at {:#x}..{:#x} is lost ({error}); the process cannot go on",
        span.start, span.end
    );
    let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    std::process::abort()
}

fn replace<E: fmt::Display>(span: Span, map: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    // Whoever may replace memory may give advice about it, but a filter need not allow `mincore`.
    match insist(map, || calls::is_all_mapped(span)) {
        Insisted::Done => Ok(()),
        Insisted::Refused(error) => Err(error),
        Insisted::Lost(error) => give_up(span, &error),
    }
}

/// The outcome of replacing a mapping.
#[derive(PartialEq, Eq, Debug)]
enum Insisted<E> {
    /// The new mapping exists.
    Done,
    /// The old one still exists.
    Refused(E),
    /// Neither exists.
    Lost(E),
}

/// Replaces a mapping by `map`. Tries again only if the old mapping is gone.
fn insist<E>(mut map: impl FnMut() -> Result<(), E>, is_there: impl FnOnce() -> bool) -> Insisted<E> {
    let Err(error) = map() else { return Insisted::Done };
    if is_there() {
        return Insisted::Refused(error);
    }
    if (0..TRIALS).any(|_| map().is_ok()) { Insisted::Done } else { Insisted::Lost(error) }
}

/// A message outside the heap.
struct Text {
    bytes: [u8; 256],
    len: usize,
}

impl Text {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = part.len().min(room.len());
        room[..len].copy_from_slice(&part.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extent::Use;

    #[test]
    fn what_was_unmapped_by_a_refused_call_is_mapped_by_a_later_one() {
        // A kernel without memory for a while: the first `refusals` calls fail.
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
        // It cannot be mapped without its descriptor.
        extent.close();
        let (mut told, teller) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes system calls only, until it aborts.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both are descriptors of this child.
            unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&teller), 2) };
            // Nothing is mapped at the lowest addresses.
            let hole = Span::new(page, 2 * page);
            // SAFETY: 1. no bytes are lost there; 2. the child has one thread.
            let _ = unsafe { show(&extent, hole, 0, Permissions::READ) };
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

    #[test]
    fn a_message_that_is_too_long_is_cut() {
        let mut text = Text::default();
        let _ = write!(text, "{:300}", 'x');
        assert_eq!(text.as_bytes().len(), 256);
    }
}
