//! Guards `madvise` on frozen memory.
//!
//! After a discard, a private mapping of a file shows the file again, whereas anonymous memory shows zeros. So a
//! discard becomes a replacement by fresh anonymous memory. Each replacement in the middle of a mapping makes two
//! mappings more; so that their number stays bounded, small discards write zeros instead once there were many. So do
//! discards in a [snapshot](crate::snapshot), and of memory with unknown rights or flags. Memory that may only be read
//! is writable for that moment: another thread's write, which should fail, may then succeed.
//!
//! The kernel is asked to discard first, so that it reports holes and locked memory. What follows makes zeros of what
//! memory shows then.

use std::sync::atomic::{Ordering, compiler_fence};

use palimpsest_sys::arch::untagged;
use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::remap;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::VmaFlags;
use rustix::io::Errno;

use super::errno::Kept;
use super::parts::{Part, dress, keeps_key, parts, whole_pages};
use super::release::{destroy, is_confined, release, take_turn};
use super::{Outcome, changed, in_turn, touches};
use crate::engine::entry::Entry;
use crate::engine::registry;

/// `MADV_GUARD_INSTALL` (Linux 6.13, `include/uapi/asm-generic/mman-common.h`).
const GUARD_INSTALL: i32 = 102;
/// `MADV_GUARD_REMOVE`.
const GUARD_REMOVE: i32 = 103;

/// Ranges up to this many bytes are zeroed in place after many replacements.
const SMALL: usize = 64 << 10;
/// This many replacements are many.
const MANY: usize = 1024;

/// Whether advice changes more of a mapping than its pages, so that a freeze in slices must not rely on what it knew.
/// Unknown advice may.
const fn changes_flags(advice: i32) -> bool {
    !discards(advice) && !changes_nothing(advice)
}

/// Whether advice takes contents away.
const fn discards(advice: i32) -> bool {
    matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED | GUARD_INSTALL)
}

/// Whether advice changes nothing that a replacement must have.
const fn changes_nothing(advice: i32) -> bool {
    matches!(
        advice,
        GUARD_REMOVE
            | libc::MADV_WILLNEED
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_POPULATE_READ
            | libc::MADV_POPULATE_WRITE
            | libc::MADV_COLLAPSE
            // Nothing that is frozen is wiped in children.
            | libc::MADV_KEEPONFORK
    )
}

/// Calls `madvise(address, len, advice)`, and does for frozen memory what that does for anonymous memory.
///
/// # Safety
///
/// 1. The caller may give this advice: discarding takes contents away.
///
/// # Errors
///
/// The kernel's. ENOMEM also if there is no memory for fresh zeros, and then nothing is lost.
pub unsafe fn madvise(address: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: 1. is this function's own.
    let call = || unsafe { calls::madvise(address, len, advice) };
    // SAFETY: 1. is this function's own, and `call` makes the call.
    unsafe { madvise_by(address, len, advice, call) }
}

/// Does what [`madvise`] does; `call` makes the system call, in an interposer's way.
///
/// Another thread may freeze or thaw the memory meanwhile, and hold this one still for as long. What was discarded then
/// shows other bytes than zeros, or the kernel refuses advice as for a file. So all is done again then, which does no
/// harm: until this returns, nobody may rely on what the memory holds.
///
/// # Safety
///
/// 1. As [`madvise`], and `call` makes that call, or does nothing.
///
/// # Errors
///
/// As [`madvise`], and those of `call`.
pub unsafe fn madvise_by(
    address: usize,
    len: usize,
    advice: i32,
    mut call: impl FnMut() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let span = whole_pages(untagged(address), len);
    let epoch = || {
        // The compiler moves no look at the map to the other side, and the processor shows each thread its own order.
        compiler_fence(Ordering::SeqCst);
        let epoch = registry::shared().map_or(0, |shared| shared.map.epoch());
        compiler_fence(Ordering::SeqCst);
        epoch
    };
    loop {
        let before = epoch();
        // SAFETY: 1. is this function's own.
        let done = match unsafe { guarded(span, advice) } {
            Outcome::Done(done) => done,
            Outcome::NotOurs => call(),
        };
        note_flags(span, advice);
        let is_ours = || span.is_some_and(|span| touches(span.range()));
        // What was frozen may be anonymous by now, and the map may know nothing of it.
        let is_asked_again = || discards(advice) || (is_ours() && (done.is_err() || !changes_nothing(advice)));
        if epoch() == before || !is_asked_again() {
            return done;
        }
    }
}

/// Notes, before and after advice that changes flags, that slices must not rely on what they knew: a plan may be made
/// in between.
fn note_flags(span: Option<Span>, advice: i32) {
    if changes_flags(advice)
        && let (Some(span), Some(shared)) = (span, registry::shared())
    {
        shared.left_alone.add(span);
    }
}

/// Does for frozen memory in `span` what `madvise` does for anonymous memory.
///
/// # Safety
///
/// 1. As [`madvise`].
unsafe fn guarded(span: Option<Span>, advice: i32) -> Outcome {
    note_flags(span, advice);
    let Some(span) = span.filter(|span| touches(span.range())) else {
        // The kernel refuses what is malformed.
        return Outcome::NotOurs;
    };
    let _errno = Kept::now();
    if !calls::knows(advice) {
        return Outcome::NotOurs;
    }
    match advice {
        _ if discards(advice) && !parts(span).any(Part::is_shown) => Outcome::NotOurs,
        _ if discards(advice) => Outcome::Done(part_by_part(span, |part| match part {
            // SAFETY: 1. is this function's own.
            Part::Frozen(span, entry) if !entry.is_thawed() => unsafe { discard(span, entry, advice) },
            // SAFETY: 1. is this function's own.
            _ => unsafe { calls::advise(part.span(), advice) },
        })),
        libc::MADV_REMOVE => Outcome::Done(part_by_part(span, |part| {
            // SAFETY: 1. is this function's own.
            let given = unsafe { calls::advise(part.span(), advice) };
            // The kernel refuses this for private mappings, and for one of a file by another error (`madvise_remove` in
            // mm/madvise.c).
            given.map_err(|errno| if part.is_shown() && errno == Errno::ACCESS { Errno::INVAL } else { errno })
        })),
        // The kernel refuses this for mappings of files. Memory wiped in children is secret: nothing of it stays in an
        // extent.
        libc::MADV_WIPEONFORK => match destroy(span).and_then(|()| release(span)) {
            Err(Errno::NOMEM) => Outcome::Done(Err(Errno::NOMEM)),
            // Memory that could not be thawed, since other threads must not be stopped, is a mapping of a file to the
            // kernel too: EINVAL. Of thawed memory, the kernel alone knows that it is wiped: so it alone makes it grow.
            Ok(()) | Err(_) => {
                if let Some(shared) = registry::shared() {
                    shared.map.rewrite(span, &|entry| if entry.is_thawed() { None } else { Some(entry) });
                }
                Outcome::NotOurs
            }
        },
        _ if changes_nothing(advice) => Outcome::NotOurs,
        _ => match flags_of(advice) {
            Some((set, cleared)) => {
                Outcome::Done(in_turn(span.range(), || {
                    // SAFETY: 1. is this function's own.
                    let given = unsafe { calls::advise(span, advice) };
                    if let Some(shared) = registry::shared() {
                        // ENOMEM reports a hole: all that is mapped has the flags. From Linux 4.11 to 5.16 also a lack
                        // of room for mappings, at which the kernel stops (`madvise_behavior` in mm/madvise.c).
                        let is_given = given.is_ok() || (given == Err(Errno::NOMEM) && !calls::is_all_mapped(span));
                        // After a failure, part of it may have them.
                        let change =
                            |entry: Entry| if is_given { entry.with_flags(set, cleared) } else { entry.changed() };
                        shared.map.change(span, &change);
                    }
                    given
                }))
            }
            None => {
                changed(span.range());
                Outcome::NotOurs
            }
        },
    }
}

/// Gives advice as the kernel does: part by part up to the first error, but that of a hole, which it reports at the end
/// (`madvise_walk_vmas` in mm/madvise.c).
fn part_by_part(span: Span, mut give: impl FnMut(Part) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut done = Ok(());
    for part in parts(span) {
        match give(part) {
            Err(Errno::NOMEM) => done = Err(Errno::NOMEM),
            given => given?,
        }
    }
    done
}

/// Returns the flags that an advice sets, and those that it clears.
const fn flags_of(advice: i32) -> Option<(VmaFlags, VmaFlags)> {
    const NONE: VmaFlags = VmaFlags::from_bits(0);
    Some(match advice {
        libc::MADV_HUGEPAGE => (VmaFlags::HUGE_PAGE, VmaFlags::NO_HUGE_PAGE),
        libc::MADV_NOHUGEPAGE => (VmaFlags::NO_HUGE_PAGE, VmaFlags::HUGE_PAGE),
        libc::MADV_DONTDUMP => (VmaFlags::DONT_DUMP, NONE),
        libc::MADV_DODUMP => (NONE, VmaFlags::DONT_DUMP),
        libc::MADV_DONTFORK => (VmaFlags::DONT_FORK, NONE),
        libc::MADV_DOFORK => (NONE, VmaFlags::DONT_FORK),
        libc::MADV_MERGEABLE => (VmaFlags::MERGEABLE, NONE),
        libc::MADV_UNMERGEABLE => (NONE, VmaFlags::MERGEABLE),
        libc::MADV_NORMAL => (NONE, VmaFlags::SEQUENTIAL.union(VmaFlags::RANDOM)),
        libc::MADV_SEQUENTIAL => (VmaFlags::SEQUENTIAL, VmaFlags::RANDOM),
        libc::MADV_RANDOM => (VmaFlags::RANDOM, VmaFlags::SEQUENTIAL),
        _ => return None,
    })
}

/// # Safety
///
/// 1. The caller may discard the contents of `span`, of which the map says `entry`.
unsafe fn discard(span: Span, entry: Entry, advice: i32) -> Result<(), Errno> {
    if !entry.is_sure() {
        return Err(Errno::NOMEM);
    }
    let is_guard = advice == GUARD_INSTALL;
    // The kernel has no guards in mappings of files.
    if is_guard && !is_replaceable(entry) {
        return Err(Errno::NOMEM);
    }
    // A snapshot finds what was written, but not what was discarded.
    let is_asked = !entry.is_of_snapshot() || is_guard;
    if is_asked {
        // A mapping of a file refuses MADV_FREE.
        let asked = if advice == libc::MADV_DONTNEED_LOCKED { advice } else { libc::MADV_DONTNEED };
        // SAFETY: 1. is this function's own.
        match unsafe { calls::advise(span, asked) } {
            Ok(()) => {}
            Err(Errno::NOMEM) => {
                let page = rustix::param::page_size();
                if span.len() <= page {
                    return Err(Errno::NOMEM);
                }
                let middle = span.start + (span.len() / page / 2) * page;
                let halves = [Span::new(span.start, middle), Span::new(middle, span.end)];
                // SAFETY: 1. parts of the memory that is this function's own.
                let [first, second] = halves.map(|half| unsafe { discard(half, entry, advice) });
                return first.and(second);
            }
            // As for all memory (`madvise_dontneed_free_valid_vma`, `is_valid_guard_vma`).
            Err(errno) => return Err(errno),
        }
    }
    let Some(shared) = registry::shared() else { return Ok(()) };
    // Another thread may have changed the rights, or replaced some of it, since the map was asked.
    take_turn().alone(Span::default(), || {
        let mut now = parts(span).filter(|part| part.is_shown());
        // SAFETY: 1. is this function's own.
        now.try_for_each(|part| unsafe { replace(part, advice) })?;
        if is_guard {
            // A repair must not try to copy memory that cannot be read.
            shared.map.forget(span);
            // SAFETY: 1. is this function's own.
            return unsafe { calls::advise(span, advice) };
        }
        Ok(())
    })
}

/// Whether other memory may take its place, with the same protection key. Zeros in place keep the key anyway.
fn is_replaceable(entry: Entry) -> bool {
    entry.key() == 0 || (!is_confined() && keeps_key(entry.key()))
}

/// Makes zeros of a part that the kernel has discarded, in a turn.
///
/// # Safety
///
/// 1. The caller may discard the contents of the part.
unsafe fn replace(part: Part, advice: i32) -> Result<(), Errno> {
    let Part::Frozen(span, entry) = part else { return Ok(()) };
    if !entry.is_sure() {
        return Err(Errno::NOMEM);
    }
    let is_locked = |traits: &Traits| advice == libc::MADV_DONTNEED_LOCKED || traits.flags.intersects(VmaFlags::LOCKED);
    let (permissions, traits) = (entry.permissions(), entry.traits().filter(|traits| !is_locked(traits)));
    let is_small = span.len() <= SMALL && entry.key() == 0;
    let is_fit = is_replaceable(entry);
    let is_to_stay = entry.is_of_snapshot() || traits.is_none() || !is_fit || (is_small && replacements() > MANY);
    let is_guard = advice == GUARD_INSTALL;
    if !is_to_stay || (is_guard && is_fit) {
        let unknown = Traits::bare(permissions);
        let traits = traits.unwrap_or(unknown);
        // SAFETY: 1. the contents are given up (1). 2. the memory is the caller's for as long as the call lasts.
        if unsafe { remap::zero(span, permissions, traits.commit()) }.is_ok() {
            dress(span, traits);
            return Ok(());
        }
        if is_guard {
            return Err(Errno::NOMEM);
        }
    }
    // SAFETY: 1. the contents are given up (1).
    unsafe { write_zeros(span, permissions) }
}

/// Writes zeros to memory that has these rights, if it can be written to.
///
/// # Safety
///
/// 1. The caller may discard the contents of `span`.
unsafe fn write_zeros(span: Span, permissions: Permissions) -> Result<(), Errno> {
    let writable = permissions.union(Permissions::READ).union(Permissions::WRITE);
    let is_writable = permissions.contains(Permissions::WRITE);
    if !is_writable {
        // SAFETY: 1. for the time of writing: nobody relies on it being read-only.
        unsafe { calls::protect(span, writable) }?;
    }
    // Makes it writable without risking a signal: it may have a protection key. Kernels before 5.14 do not know this
    // advice. SAFETY: 1. changes no contents.
    let told = unsafe { calls::advise(span, libc::MADV_POPULATE_WRITE) };
    let knows = told.is_ok() || calls::knows(libc::MADV_POPULATE_WRITE);
    let written = if told.is_ok() || (!knows && calls::is_all_mapped(span)) {
        let place = std::ptr::with_exposed_provenance_mut::<u8>(span.start);
        // SAFETY: writable memory whose contents the caller gives up (1).
        unsafe { place.write_bytes(0, span.len()) };
        Ok(())
    } else {
        Err(Errno::NOMEM)
    };
    if !is_writable {
        // SAFETY: 1. the rights from before.
        unsafe { calls::protect(span, permissions) }?;
    }
    written
}

/// Returns how many replacements there were, including this one.
fn replacements() -> usize {
    registry::shared().map_or(0, registry::Shared::count_replacement)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread::{ScopedJoinHandle, scope, yield_now};

    use palimpsest_sys::memory::calls::Commit;
    use palimpsest_sys::pages::maps::Maps;

    use super::super::{Remap, mremap, protected};
    use super::*;
    use crate::engine::turns::WAITED;

    /// Returns memory that the map lists as frozen.
    fn listed(len: usize) -> Span {
        let span = calls::map(len, Permissions::READ_WRITE, Commit::Uncounted).expect("room");
        let map = &registry::known().expect("memory").map;
        assert!(map.add(span, Entry::new(Permissions::READ_WRITE, Some(VmaFlags::default()), 1)));
        span
    }

    fn rights(span: Span) -> (Permissions, Option<Entry>) {
        let kernels = Maps::read().expect("/proc").at(span.start).expect("mapped").permissions;
        (kernels, parts(span).find_map(|part| if let Part::Frozen(_, entry) = part { Some(entry) } else { None }))
    }

    /// Gives `span` the right to read only, as `mprotect` of one thread, and calls `guard` in another between the
    /// kernel's change of the rights and the note in the map. Returns what `guard` does.
    fn between<T: Send>(span: Span, guard: impl FnOnce() -> T + Send) -> T {
        let waits = || WAITED.load(Ordering::Relaxed);
        scope(|scope| {
            let (mut guard, mut other): (_, Option<ScopedJoinHandle<'_, T>>) = (Some(guard), None);
            in_turn(span.range(), || {
                // SAFETY: 1. the test's own memory.
                unsafe { calls::protect(span, Permissions::READ) }.expect("memory");
                let before = waits();
                other = other.take().or_else(|| guard.take().map(|guard| scope.spawn(guard)));
                while waits() == before && !other.as_ref().is_some_and(ScopedJoinHandle::is_finished) {
                    yield_now();
                }
                protected(span.range(), Ok(Permissions::READ));
            });
            other.expect("started").join().expect("it ends")
        })
    }

    /// Fails on: a discard that gives memory the rights that the map had before another thread's `mprotect`.
    #[test]
    fn a_discard_gives_back_no_rights_that_another_thread_takes_away() {
        let page = rustix::param::page_size();
        for len in [page, 2 * SMALL] {
            let span = listed(len);
            let place = std::ptr::with_exposed_provenance_mut::<u8>(span.start);
            // SAFETY: the test's own memory.
            unsafe { place.write(7) };
            // SAFETY: 1. the test's own memory.
            let done = between(span, || unsafe { madvise(span.start, len, libc::MADV_DONTNEED) });
            assert_eq!(done, Ok(()));
            let (kernels, entry) = rights(span);
            assert_eq!((kernels, entry.map(Entry::permissions)), (Permissions::READ, Some(Permissions::READ)));
            // SAFETY: the test's own memory, which can be read.
            assert_eq!(unsafe { place.read() }, 0);
            registry::known().expect("memory").map.forget(span);
            // SAFETY: 1. the test's own memory.
            unsafe { calls::unmap(span) }.expect("mapped");
        }
    }

    /// Fails on: a move that takes the rights along that the map had before another thread's `mprotect`.
    #[test]
    fn memory_that_moves_has_the_rights_that_another_thread_gives_it() {
        let page = rustix::param::page_size();
        let span = listed(4 * page);
        let room = calls::map(4 * page, Permissions::default(), Commit::Uncounted).expect("room");
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (address, len) = (span.start, span.len());
        let asked = Remap { address, len, new_len: len, flags, new_address: room.start };
        // SAFETY: 1. the test's own memory, and room that it has made.
        let moved = between(span, || unsafe { mremap(asked) });
        assert_eq!(moved, Ok(room.start));
        let (kernels, entry) = rights(room);
        assert_eq!((kernels, entry.map(Entry::permissions)), (Permissions::READ, Some(Permissions::READ)));
        registry::known().expect("memory").map.forget(room);
        // SAFETY: 1. the test's own memory.
        unsafe { calls::unmap(room) }.expect("mapped");
    }
}
