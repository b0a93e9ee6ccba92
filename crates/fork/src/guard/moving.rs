//! Guards `mremap` of frozen memory.
//!
//! The kernel moves or grows one mapping at a time, and a frozen range is several: extents, and whatever has replaced
//! some. So is a range thawed in several steps: it is anonymous, but not joined again. And a mapping of a file that
//! shrinks and grows again shows old bytes. So here a range grows by fresh anonymous memory behind it, and moves part
//! by part. The kernel shows where one mapping ends and the next begins by refusing to move both at once.
//!
//! Each move of frozen memory is one turn, so that rights that change meanwhile change before or after it, and so that
//! nobody freezes what has moved in the kernel and not yet in the map. A handler that interrupts it cannot know where
//! the memory is. Moves of other memory keep others from freezing, too, but wait for nobody else.

use palimpsest_sys::arch::untagged;
use palimpsest_sys::memory::calls::{self, map_zeros_over};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use rustix::io::Errno;

use super::errno::Kept;
use super::parts::{Part, dress, keeps_key, parts, whole_pages};
use super::release::{is_frozen, release, take_turn};
use super::touches;
use crate::engine::entry::Entry;
use crate::engine::frozen_map::FrozenMap;
use crate::engine::registry;
use crate::engine::turns::Turn;

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
    /// The new address, with `MREMAP_FIXED`.
    pub new_address: usize,
}

/// Calls `mremap`, and does for frozen memory what that does for anonymous memory. Returns where it is now.
///
/// # Safety
///
/// 1. The caller may move and cut the memory, and with `MREMAP_FIXED` replace what is at the new address.
///
/// # Errors
///
/// The kernel's. EINVAL also for `MREMAP_DONTUNMAP` of frozen memory while other threads must not be stopped.
pub unsafe fn mremap(remap: Remap) -> Result<usize, Errno> {
    let Remap { address, len, new_len, flags, new_address } = remap;
    // SAFETY: 1. is this function's own.
    let call = || unsafe { calls::mremap(address, len, new_len, flags, new_address) };
    // SAFETY: 1. is this function's own, and `call` makes the call.
    unsafe { mremap_by(remap, call) }
}

/// Does what [`mremap`] does; `call` makes the system call, in an interposer's way. Nobody freezes or thaws meanwhile.
///
/// # Safety
///
/// 1. As [`mremap`], and `call` makes that call, or does nothing.
///
/// # Errors
///
/// As [`mremap`], and those of `call`.
pub unsafe fn mremap_by(remap: Remap, call: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let page = rustix::param::page_size();
    let called = || {
        let moved = call()?;
        if let Some((shared, span)) = registry::shared().zip(whole_pages(moved, remap.new_len)) {
            // What was there, with MREMAP_FIXED.
            shared.left_alone.add(span);
            shared.map.forget(span);
        }
        Ok(moved)
    };
    // Before what is looked at: until it ends, nothing is frozen.
    if let Some(_moving) = registry::begin_move()
        && concerned(remap).is_none()
    {
        return called();
    }
    loop {
        let turn = {
            let _errno = Kept::now();
            take_turn()
        };
        let before = registry::shared().map(|shared| (shared, shared.map.epoch()));
        // SAFETY: 1. is this function's own.
        match unsafe { guarded(remap, &turn) } {
            Guarded::NotOurs => return called(),
            Guarded::Done(done) => {
                if let (Ok(at), Some((shared, epoch))) = (done, before) {
                    let new = Span::new(at, at + remap.new_len.next_multiple_of(page));
                    // What slices knew of the place, from before it was unmapped, is not true of what has come there.
                    shared.left_alone.add(new);
                    if shared.map.epoch() != epoch {
                        // Somebody has taken this for a lost turn, and frozen. Whether the map knows the new place is
                        // not known.
                        shared.map.add(new, Entry::unknown());
                    }
                }
                return done;
            }
            Guarded::Thaw(old) => {
                drop(turn);
                let _errno = Kept::now();
                // If that needs other threads stopped and they must not be, EINVAL, as a kernel before 5.13 returns for
                // all but anonymous memory.
                release(old).map_err(|errno| if errno == Errno::NOMEM { errno } else { Errno::INVAL })?;
            }
        }
    }
}

/// Returns what is to move, if it may be frozen.
fn concerned(Remap { address, len, .. }: Remap) -> Option<Span> {
    whole_pages(untagged(address), len).filter(|old| touches(old.range()))
}

/// What became of a move.
enum Guarded {
    /// No frozen memory is concerned: the system call is to be made.
    NotOurs,
    /// This memory is to be thawed first, outside of a turn.
    Thaw(Span),
    /// It has moved, or not.
    Done(Result<usize, Errno>),
}

/// Does for frozen memory what `mremap` does for anonymous memory, in a turn.
///
/// # Safety
///
/// 1. As [`mremap`].
unsafe fn guarded(remap: Remap, turn: &Turn<'_>) -> Guarded {
    let page = rustix::param::page_size();
    let Remap { new_len, flags, new_address, .. } = remap;
    let Some(old) = concerned(remap) else {
        return Guarded::NotOurs;
    };
    let _errno = Kept::now();
    turn.will_note(old);
    let (Some(new_len), false) = (new_len.checked_next_multiple_of(page), new_len == 0) else {
        return Guarded::NotOurs;
    };
    let has = |flag: i32| flags & flag != 0;
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let stays = has(libc::MREMAP_DONTUNMAP);
    let is_malformed = flags & !known != 0
        || (has(libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) && !has(libc::MREMAP_MAYMOVE))
        || (has(libc::MREMAP_FIXED) && !new_address.is_multiple_of(page))
        || (stays && new_len != old.len());
    if is_malformed {
        return Guarded::NotOurs;
    }
    if stays {
        // Afterwards the old place of anonymous memory is empty.
        if is_frozen(old) {
            return Guarded::Thaw(old);
        }
        let new = has(libc::MREMAP_FIXED).then_some(new_address);
        // SAFETY: 1. is this function's own.
        return Guarded::Done(unsafe { move_to(old, new, new_len, Behind::Zeros) });
    }
    let moved = if has(libc::MREMAP_FIXED) {
        // SAFETY: 1. is this function's own.
        unsafe { move_to(old, Some(new_address), new_len, Behind::Nothing) }
    } else if new_len <= old.len() {
        // SAFETY: 1. is this function's own.
        unsafe { shrink(old, new_len) }
    } else {
        // SAFETY: 1. is this function's own.
        unsafe { grow(old, new_len, flags) }
    };
    Guarded::Done(moved)
}

/// # Safety
///
/// 1. As [`mremap`].
unsafe fn shrink(old: Span, new_len: usize) -> Result<usize, Errno> {
    // The map may not know that the program has unmapped it.
    if !calls::is_all_mapped(Span::new(old.start, old.start + rustix::param::page_size())) {
        return Err(Errno::FAULT);
    }
    // SAFETY: 1. is this function's own.
    unsafe { calls::unmap(Span::new(old.start + new_len, old.end)) }?;
    Ok(old.start)
}

/// # Safety
///
/// 1. As [`mremap`].
unsafe fn grow(old: Span, new_len: usize, flags: i32) -> Result<usize, Errno> {
    let tail = Span::new(old.end, old.start.checked_add(new_len).ok_or(Errno::NOMEM)?);
    let traits = uniform_traits(old)?;
    if !keeps_key(traits.protection_key) {
        return Err(Errno::NOMEM);
    }
    if calls::fill_hole(tail, traits.permissions, traits.commit()) {
        dress(tail, traits);
        note_tail(old, tail, traits);
        return Ok(old.start);
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(Errno::NOMEM);
    }
    // SAFETY: 1. is this function's own.
    unsafe { move_to(old, None, new_len, Behind::Nothing) }
}

/// Notes that `tail`, where the map may still list memory that was unmapped, is fresh memory: one with `rest` to the
/// program, but not to the kernel. What grows bit by bit becomes one entry.
fn note_tail(rest: Span, tail: Span, traits: Traits) {
    let Some(map) = registry::shared().map(|shared| &shared.map) else { return };
    let entry = Entry::new(traits.permissions, Some(traits.flags), 0).with_key(traits.protection_key);
    let all = match parts(rest).last() {
        Some(Part::Frozen(last, known)) if known == entry => Span::new(last.start, tail.end),
        _ => tail,
    };
    if !map.has_room() || !map.add(all, entry) {
        map.forget(tail);
    }
}

/// What memory leaves behind when it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Behind {
    /// A hole.
    Nothing,
    /// The same mapping, empty (`MREMAP_DONTUNMAP`): zeros, if it is anonymous.
    Zeros,
}

/// Moves `old`, part by part, to `new` or to wherever there is room, with `new_len` bytes: adds zeros, or cuts the end
/// off.
///
/// # Safety
///
/// 1. As [`mremap`].
unsafe fn move_to(old: Span, new: Option<usize>, new_len: usize, behind: Behind) -> Result<usize, Errno> {
    let map = &registry::shared().ok_or(Errno::NOMEM)?.map;
    // The kernel looks at these first.
    let target = new.map(|at| target_of(old, at, new_len)).transpose()?;
    let traits = uniform_traits(old)?;
    if new_len > old.len() && !keeps_key(traits.protection_key) {
        return Err(Errno::NOMEM);
    }
    let at = match target {
        // SAFETY: 1. is this function's own.
        Some(target) => unsafe { clear_target(target, traits) }?,
        None => calls::map(new_len, traits.permissions, traits.commit())?.start,
    };
    let whole = Span::new(at, at + new_len);
    map.forget(whole);
    let kept = Span::new(old.start, old.end.min(old.start.saturating_add(new_len)));
    // SAFETY: 1. the memory is the caller's to move, and the target was made above for it.
    if let Err((moved_to, errno)) = unsafe { move_parts(map, kept, at, behind) } {
        // Move everything back, so that nothing has changed. The old place is free or has zeros, and no other code
        // knows of it.
        let gone = Span::new(at, at + (moved_to - kept.start));
        // SAFETY: 1. moved there above.
        let _ = unsafe { move_parts(map, gone, old.start, Behind::Nothing) };
        // SAFETY: 1. reserved above; with a fixed address, what the caller wanted replaced.
        let _ = unsafe { calls::unmap(whole) };
        return Err(errno);
    }
    let tail = Span::new(at + kept.len(), whole.end);
    if !tail.is_empty() {
        dress(tail, traits);
        note_tail(Span::new(at, tail.start), tail, traits);
    }
    // SAFETY: 1. the caller wants it cut off.
    unsafe { calls::unmap(Span::new(kept.end, old.end)) }?;
    Ok(at)
}

/// Moves `from` to `to`, with its entries in the map. An error tells how far it moved.
///
/// # Safety
///
/// 1. The memory is the caller's to move, and so is what lies at `to`.
unsafe fn move_parts(map: &FrozenMap, from: Span, to: usize, behind: Behind) -> Result<(), (usize, Errno)> {
    for part in parts(from) {
        let span = part.span();
        let target = Span::new(to + (span.start - from.start), to + (span.end - from.start));
        // Before anything moves: what another thread maps at the old place once it is free must not be forgotten.
        if let Part::Frozen(span, entry) = part {
            if let (Some(serial), Some(shared)) = (entry.extent(), registry::shared()) {
                shared.origins.note_move(serial);
            }
            if !map.add(target, entry) {
                return Err((span.start, Errno::NOMEM));
            }
            if behind == Behind::Nothing {
                map.forget(span);
            }
        }
        // SAFETY: 1. is this function's own.
        if let Err((moved_to, errno)) = unsafe { relocate(span, target.start, behind) } {
            if let Part::Frozen(span, entry) = part {
                // There is room: one entry was just removed. What has moved goes back, and finds its entry there.
                map.add(Span::new(moved_to, span.end), entry);
                map.forget(Span::new(target.start + (moved_to - span.start), target.end));
            }
            return Err((moved_to, errno));
        }
    }
    Ok(())
}

/// Moves memory of one mapping or several. An error tells how far it moved.
///
/// # Safety
///
/// 1. As [`move_parts`].
unsafe fn relocate(from: Span, to: usize, behind: Behind) -> Result<(), (usize, Errno)> {
    let page = rustix::param::page_size();
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let flags = if behind == Behind::Zeros { flags | libc::MREMAP_DONTUNMAP } else { flags };
    let mut next = from;
    while !next.is_empty() {
        // SAFETY: 1. is this function's own.
        match unsafe { calls::remap(next, next.len(), flags, to + (next.start - from.start)) } {
            Ok(_) => next = Span::new(next.end, from.end),
            // More than one mapping, or a hole.
            Err(Errno::FAULT) if next.len() > page => {
                next.end = next.start + (next.len() / page / 2) * page;
            }
            Err(errno) => return Err((next.start, errno)),
        }
    }
    Ok(())
}

/// No program's address space reaches beyond this on any machine. AArch64 has tags above it, which `munmap` does not
/// mind.
const BEYOND: usize = 1 << 56;

/// Returns where memory comes to lie at the address that the caller fixed.
///
/// # Errors
///
/// The kernel's (`check_mremap_params` in `mm/mremap.c`): EINVAL for addresses that no mapping can have, and for those
/// of `old`.
fn target_of(old: Span, at: usize, len: usize) -> Result<Span, Errno> {
    let target = Span::new(at, at.checked_add(len).ok_or(Errno::INVAL)?);
    if target.overlaps(old) || target.end > BEYOND { Err(Errno::INVAL) } else { Ok(target) }
}

/// Makes room there.
///
/// # Safety
///
/// 1. As [`mremap`].
///
/// # Errors
///
/// The kernel's: EINVAL for addresses that no mapping can have.
unsafe fn clear_target(target: Span, traits: Traits) -> Result<usize, Errno> {
    // SAFETY: 1. the caller may replace what is there.
    let Err(refused) = (unsafe { map_zeros_over(target, traits.permissions, traits.commit()) }) else {
        return Ok(target.start);
    };
    // SAFETY: 1. as above.
    match unsafe { calls::unmap(target) } {
        // The one call that tells addresses beyond the end from a lack of memory.
        Err(Errno::INVAL) => Err(Errno::INVAL),
        _ => Err(refused),
    }
}

/// Returns the traits of all of `span`: the rights and flags of its first frozen part.
///
/// # Errors
///
/// EFAULT, like the kernel, if frozen parts differ in rights, or there is a hole: then nobody sees one mapping. ENOMEM
/// if the map is not sure.
fn uniform_traits(span: Span) -> Result<Traits, Errno> {
    // From Linux 6.17 on a move takes holes along (`remap_move` in mm/mremap.c); a program counts on a refusal.
    if !calls::is_all_mapped(span) {
        return Err(Errno::FAULT);
    }
    let mut found: Option<Traits> = None;
    for part in parts(span) {
        let Part::Frozen(_, entry) = part else { continue };
        if !entry.is_sure() {
            return Err(Errno::NOMEM);
        }
        let unknown = Traits::bare(entry.permissions());
        match found {
            None => found = Some(entry.traits().unwrap_or(unknown)),
            Some(known) if known.permissions != entry.permissions() => return Err(Errno::FAULT),
            Some(_) => {}
        }
    }
    found.ok_or(Errno::FAULT)
}
