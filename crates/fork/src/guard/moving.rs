//! `mremap` of frozen memory.
//!
//! The kernel moves or grows one mapping at a time, and a frozen range is several: chunks, and whatever was replaced in between. And a mapping of a file that is
//! shrunk and grown again shows old bytes. So here a range grows by fresh anonymous memory behind it, and moves part by part.

use std::ptr;

use palimpsest_sys::arch::untagged;
use palimpsest_sys::extent::{Commit, ExtentError, map_zeros_over};
use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::VmaFlags;
use rustix::io::Errno;

use super::advice::whole_pages;
use super::errno::Kept;
use super::frozen::{Kind, any, each_part};
use super::{Outcome, touches};
use crate::engine::measure::last_errno;
use crate::engine::registry;
use crate::engine::signals::Blocked;
use crate::engine::span::Span;
use crate::engine::traits::Traits;

/// The arguments of an `mremap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remap {
    /// Where the memory is.
    pub address: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Its new length in bytes.
    pub new_len: usize,
    /// `MREMAP_MAYMOVE`, `MREMAP_FIXED`, `MREMAP_DONTUNMAP`.
    pub flags: i32,
    /// Where it is to be, with `MREMAP_FIXED`.
    pub new_address: usize,
}

/// Does for frozen memory what `mremap` does for anonymous memory, and tells where it is now.
///
/// # Safety
///
/// 1. The caller may move and cut the memory, and with `MREMAP_FIXED` replace what is at the new address.
pub unsafe fn mremap(remap: Remap) -> Outcome<usize> {
    let page = rustix::param::page_size();
    let Remap { address, len, new_len, flags, new_address } = remap;
    let address = untagged(address);
    let Some(old) = whole_pages(address, len, page).filter(|old| touches(old.range())) else {
        return Outcome::NotOurs;
    };
    let _errno = Kept::now();
    let (Some(new_len), false) = (new_len.checked_next_multiple_of(page), new_len == 0) else {
        return Outcome::NotOurs;
    };
    let has = |flag: i32| flags & flag != 0;
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let stays = has(libc::MREMAP_DONTUNMAP);
    let is_malformed = flags & !known != 0
        || (has(libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) && !has(libc::MREMAP_MAYMOVE))
        || (has(libc::MREMAP_FIXED) && !new_address.is_multiple_of(page))
        || (stays && new_len != old.len());
    if is_malformed {
        return Outcome::NotOurs;
    }
    if stays {
        // After this the old place of anonymous memory is empty: thaw, and let the kernel do it. Where other threads must not be
        // stopped for that, EINVAL is what a kernel before 5.13 says of all but anonymous memory.
        return match super::thaw(old.range()) {
            Ok(()) => Outcome::NotOurs,
            Err(Errno::NOMEM) => Outcome::Done(Err(Errno::NOMEM)),
            Err(_) => Outcome::Done(Err(Errno::INVAL)),
        };
    }
    match any(old) {
        Ok(true) => {}
        Ok(false) => return Outcome::NotOurs,
        Err(errno) => return Outcome::Done(Err(errno)),
    }
    let _blocked = Blocked::all();
    let moved = if has(libc::MREMAP_FIXED) {
        // SAFETY: 1. is this function's own.
        unsafe { move_to(old, Some(new_address), new_len) }
    } else if new_len <= old.len() {
        // SAFETY: 1. is this function's own.
        unsafe { shrink(old, new_len) }
    } else {
        // SAFETY: 1. is this function's own.
        unsafe { grow(old, new_len, flags) }
    };
    Outcome::Done(moved)
}

/// # Safety
///
/// 1. As [`mremap`].
unsafe fn shrink(old: Span, new_len: usize) -> Result<usize, Errno> {
    // SAFETY: 1. is this function's own.
    unsafe { unmap(Span::new(old.start + new_len, old.end)) }?;
    Ok(old.start)
}

/// # Safety
///
/// 1. As [`mremap`].
unsafe fn grow(old: Span, new_len: usize, flags: i32) -> Result<usize, Errno> {
    let traits = uniform_traits(old)?;
    let tail = Span::new(old.end, old.start.checked_add(new_len).ok_or(Errno::NOMEM)?);
    if place_zeros(tail, traits) {
        traits.give_to(tail);
        return Ok(old.start);
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(Errno::NOMEM);
    }
    // SAFETY: 1. is this function's own.
    unsafe { move_to(old, None, new_len) }
}

/// Moves `old`, part by part, to `new` or to wherever there is room, with `new_len` bytes: what is more is zeros, what is less is cut off.
///
/// # Safety
///
/// 1. As [`mremap`].
unsafe fn move_to(old: Span, new: Option<usize>, new_len: usize) -> Result<usize, Errno> {
    let traits = uniform_traits(old)?;
    let at = match new {
        // SAFETY: 1. is this function's own.
        Some(at) => unsafe { clear_target(old, at, new_len, traits) }?,
        None => reserve(new_len, traits)?,
    };
    let kept = Span::new(old.start, old.end.min(old.start.saturating_add(new_len)));
    let target = Span::new(at, at + kept.len());
    // Both before anything moves: what another thread puts at the old place once it is free is not to be forgotten.
    let flags = registry::shared().and_then(|shared| shared.touched.flags(old));
    tell(target, flags, old);
    let mut moved_to = kept.start;
    let moved = each_part(kept, |part| {
        if part.span.start != moved_to {
            return Err(Errno::FAULT);
        }
        // SAFETY: 1. the part is the caller's to move, and the target was made above for it.
        unsafe { move_part(part.span, at + (part.span.start - old.start)) }?;
        moved_to = part.span.end;
        Ok(())
    });
    let moved = moved.and(if moved_to == kept.end { Ok(()) } else { Err(Errno::FAULT) });
    if let Err(errno) = moved {
        tell(old, flags, target);
        // Back with what was moved, so that nothing has changed. The old place is free; nobody else knows of it.
        let gone = Span::new(at, at + (moved_to - kept.start));
        let _ = each_part(gone, |part| {
            // SAFETY: 1. moved there above.
            unsafe { move_part(part.span, old.start + (part.span.start - at)) }
        });
        // SAFETY: 1. reserved above; with a fixed address, what the caller wanted replaced.
        let _ = unsafe { unmap(Span::new(at, at + new_len)) };
        return Err(errno);
    }
    if target.len() < new_len {
        traits.give_to(Span::new(target.end, at + new_len));
    }
    if kept.end < old.end {
        // SAFETY: 1. cut off by the caller's wish.
        unsafe { unmap(Span::new(kept.end, old.end)) }?;
    }
    Ok(at)
}

/// No address space of a program reaches beyond this on any machine. AArch64 has tags above it, which `munmap` does not mind.
const BEYOND: usize = 1 << 56;

/// Makes room at the address that the caller has fixed.
///
/// # Safety
///
/// 1. As [`mremap`].
///
/// # Errors
///
/// As the kernel's (`check_mremap_params` in `mm/mremap.c`): EINVAL for addresses that no mapping can have, and for those that `old` has.
unsafe fn clear_target(old: Span, at: usize, len: usize, traits: Traits) -> Result<usize, Errno> {
    let target = Span::new(at, at.checked_add(len).ok_or(Errno::INVAL)?);
    if target.overlaps(old) || target.end > BEYOND {
        return Err(Errno::INVAL);
    }
    // SAFETY: 1. the caller may replace what is there.
    let Err(error) = (unsafe { map_zeros_over(target.range(), traits.permissions, traits.commit()) }) else {
        return Ok(at);
    };
    // SAFETY: 1. as above.
    match unsafe { unmap(target) } {
        // The one call that tells addresses beyond the end from a lack of memory.
        Err(Errno::INVAL) => Err(Errno::INVAL),
        _ => Err(match error {
            ExtentError::Map { errno, .. } => errno,
            _ => Errno::NOMEM,
        }),
    }
}

/// Tells that memory with these flags will be at `to`, and not at `from`.
fn tell(to: Span, flags: Option<VmaFlags>, from: Span) {
    if let Some(shared) = registry::shared() {
        shared.touched.add(to, flags);
        shared.touched.forget(from);
    }
}

/// What all of `span` has: the rights, and the rest as the first frozen part of it.
///
/// # Errors
///
/// EFAULT, as from the kernel, if it is not all mapped, or with several rights: then it is no one mapping to anybody.
fn uniform_traits(span: Span) -> Result<Traits, Errno> {
    let mut found: Option<Permissions> = None;
    let mut traits = None;
    let mut mapped_to = span.start;
    each_part(span, |part| {
        if part.span.start != mapped_to || found.is_some_and(|found| found != part.vma.permissions) {
            return Err(Errno::FAULT);
        }
        if part.kind == Kind::Frozen && traits.is_none() {
            traits = Some(part.traits()?);
        }
        mapped_to = part.span.end;
        found = Some(part.vma.permissions);
        Ok(())
    })?;
    traits.filter(|_| mapped_to == span.end).ok_or(Errno::FAULT)
}

/// Maps zeros at `span` if nothing is there.
fn place_zeros(span: Span, traits: Traits) -> bool {
    let flags = map_flags(traits) | libc::MAP_FIXED_NOREPLACE;
    let at = ptr::with_exposed_provenance_mut(span.start);
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; kernels before 4.17 take it for a hint, checked below.
    let mapped = unsafe { libc::mmap(at, span.len(), traits.rights(), flags, -1, 0) };
    if mapped == libc::MAP_FAILED || mapped == at {
        return mapped == at;
    }
    // SAFETY: made this instant, and nobody else's.
    let _ = unsafe { unmap(Span::new(mapped.addr(), mapped.addr() + span.len())) };
    false
}

fn reserve(len: usize, traits: Traits) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, traits.rights(), map_flags(traits), -1, 0) };
    if mapped == libc::MAP_FAILED { Err(last_errno()) } else { Ok(mapped.expose_provenance()) }
}

fn map_flags(traits: Traits) -> i32 {
    let reserve = if traits.commit() == Commit::Uncounted { libc::MAP_NORESERVE } else { 0 };
    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | reserve
}

/// # Safety
///
/// 1. `part` is of one mapping and the caller's to move, and so is what lies at `to`.
unsafe fn move_part(part: Span, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: (1). Past the C library's symbol, which may be interposed by who calls this.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, part.start, part.len(), part.len(), flags, to) };
    if moved == -1 { Err(last_errno()) } else { Ok(()) }
}

/// # Safety
///
/// 1. The memory is the caller's to unmap.
unsafe fn unmap(span: Span) -> Result<(), Errno> {
    if span.is_empty() {
        return Ok(());
    }
    // SAFETY: (1). Past the C library's symbol, which may be interposed by who calls this.
    let answer = unsafe { libc::syscall(libc::SYS_munmap, span.start, span.len()) };
    if answer == -1 { Err(last_errno()) } else { Ok(()) }
}
