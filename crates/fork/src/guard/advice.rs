//! `madvise` on frozen memory.
//!
//! A private mapping of a file shows the file again where its pages are discarded; anonymous memory shows zeros. So discarding becomes a
//! replacement by fresh anonymous memory. Every such replacement in the middle of a mapping makes two more; small ones in a mapping that has had many
//! are done by writing zeros instead, so that the number of mappings stays bounded. So is all that is in a [snapshot](crate::snapshot).

use palimpsest_sys::arch::untagged;
use palimpsest_sys::extent::map_zeros_over;
use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::{Label, VmaFlags};
use rustix::io::Errno;

use super::errno::Kept;
use super::frozen::{self, Kind, Part, each_part};
use super::{Outcome, changed, thaw, touches};
use crate::engine::measure::last_errno;
use crate::engine::registry;
use crate::engine::span::Span;
use crate::engine::traits::is_locked;

/// `MADV_GUARD_INSTALL` (Linux 6.13, `include/uapi/asm-generic/mman-common.h`).
const GUARD_INSTALL: i32 = 102;
/// `MADV_GUARD_REMOVE`.
const GUARD_REMOVE: i32 = 103;
/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
const DONTNEED_LOCKED: i32 = 24;

/// Ranges up to this many bytes are zeroed in place once there were many replacements.
const SMALL: usize = 64 << 10;
/// From how many replacements on.
const MANY: usize = 1024;

/// Does for frozen memory what `madvise(address, len, advice)` does for anonymous memory.
///
/// # Safety
///
/// 1. The caller may give this advice: discarding takes contents away.
pub unsafe fn madvise(address: usize, len: usize, advice: i32) -> Outcome {
    let (address, page) = (untagged(address), rustix::param::page_size());
    let Some(span) = whole_pages(address, len, page).filter(|span| touches(span.range())) else {
        // What is malformed is the kernel's to refuse.
        return Outcome::NotOurs;
    };
    let _errno = Kept::now();
    // Whether this kernel knows the advice: it looks before it sees that there is nothing to do (`do_madvise` in mm/madvise.c).
    // SAFETY: no memory is concerned.
    if unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(address), 0, advice) } != 0 {
        return Outcome::NotOurs;
    }
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED | GUARD_INSTALL => {
            match frozen::only_part(span) {
                // SAFETY: 1. is this function's own.
                Ok(Some(part)) if part.kind == Kind::Frozen => return Outcome::Done(unsafe { discard(part, advice) }),
                Ok(Some(_)) => return Outcome::NotOurs,
                Ok(None) => {}
                Err(errno) => return Outcome::Done(Err(errno)),
            }
            match frozen::any(span) {
                Ok(true) => {}
                Ok(false) => return Outcome::NotOurs,
                Err(errno) => return Outcome::Done(Err(errno)),
            }
            let mut mapped_to = span.start;
            let mut has_hole = false;
            let done = each_part(span, |part| {
                has_hole |= part.span.start != mapped_to;
                mapped_to = part.span.end;
                // SAFETY: 1. is this function's own.
                unsafe { discard(part, advice) }
            });
            has_hole |= mapped_to != span.end;
            // The kernel does what it can and then tells of holes (`madvise_walk_vmas` in mm/madvise.c).
            Outcome::Done(done.and(if has_hole { Err(Errno::NOMEM) } else { Ok(()) }))
        }
        libc::MADV_REMOVE => match frozen::any(span) {
            // As for anonymous memory.
            Ok(true) => Outcome::Done(Err(Errno::INVAL)),
            Ok(false) => Outcome::NotOurs,
            Err(errno) => Outcome::Done(Err(errno)),
        },
        // Refused for mappings of files.
        libc::MADV_WIPEONFORK => match thaw(span.range()) {
            Err(Errno::NOMEM) => Outcome::Done(Err(Errno::NOMEM)),
            // What could not be thawed, since other threads may not be stopped, is a mapping of a file to the kernel too: EINVAL.
            Ok(()) | Err(_) => Outcome::NotOurs,
        },
        // Those that change nothing that a replacement must have.
        libc::MADV_WILLNEED
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_POPULATE_READ
        | libc::MADV_POPULATE_WRITE
        | libc::MADV_COLLAPSE
        | GUARD_REMOVE => Outcome::NotOurs,
        _ => {
            changed(span.range());
            Outcome::NotOurs
        }
    }
}

/// # Safety
///
/// 1. The caller may discard the part's contents.
unsafe fn discard(part: Part, advice: i32) -> Result<(), Errno> {
    let Part { span, vma, kind } = part;
    if kind == Kind::Frozen {
        let is_locked = is_locked(span);
        if is_locked && advice != DONTNEED_LOCKED {
            // As of all memory (`madvise_dontneed_free_valid_vma`, `is_valid_guard_vma`).
            return Err(Errno::INVAL);
        }
        let is_writable = vma.permissions.contains(Permissions::WRITE);
        // A snapshot finds out what was written, and not what was replaced. What has a protection key may not be writable to this thread.
        let is_to_stay = vma.label == Label::Snapshot
            || (span.len() <= SMALL && replacements() > MANY && part.known_flags().is_some());
        if advice != GUARD_INSTALL && is_writable && is_to_stay {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(span.start);
            // SAFETY: writable memory, says the kernel, whose contents the caller gives up (1).
            unsafe { place.write_bytes(0, span.len()) };
            return Ok(());
        }
        let mut traits = part.traits()?;
        if is_locked {
            traits.flags = traits.flags.union(VmaFlags::LOCKED);
        }
        // SAFETY: 1. the contents are given up (1).
        unsafe { map_zeros_over(span.range(), traits.permissions, traits.commit()) }.map_err(|_| Errno::NOMEM)?;
        traits.give_to(span);
        if advice != GUARD_INSTALL {
            return Ok(());
        }
    }
    // SAFETY: the caller's own advice (1) on memory that is not frozen, or not any more.
    let answer = unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(span.start), span.len(), advice) };
    if answer == 0 { Ok(()) } else { Err(last_errno()) }
}

/// How many replacements there were, this one included.
fn replacements() -> usize {
    registry::shared().map_or(0, registry::Shared::count_replacement)
}

/// The pages of `address..address + len`; `None` if the kernel would refuse them, or there are none.
pub(super) fn whole_pages(address: usize, len: usize, page: usize) -> Option<Span> {
    let end = address.checked_add(len.checked_next_multiple_of(page)?)?;
    (address.is_multiple_of(page) && len > 0).then_some(Span::new(address, end))
}
