//! What must happen when a program manages frozen memory, so that it sees what it would see of anonymous memory.
//!
//! For code between a program and the kernel: an interposed `madvise` calls [`madvise_by`] with the real one. Nothing
//! here uses the heap, and a guard that answers by itself leaves `errno` alone. Where nothing is frozen, advice costs a
//! few loads more, a move two locked operations. Pointers may have tags (AArch64, and x86-64 with LAM), wherever the
//! kernel takes them.
//!
//! A map in memory tells whether an address shows frozen memory, and with which rights. No file is opened or kept: a
//! guard works in a child that is confined by `chroot`, by limits or by a filter, as long as the filter allows the call
//! in question and other memory calls (`mmap`, `munmap`, `mremap`, `madvise`, `mprotect`).
//!
//! So the map must be kept right: change rights by [`mprotect_by`], and report mappings that replace others
//! ([`replaced`]) and rights that were changed otherwise ([`protected`], [`keyed`], [`changed`]).
//!
//! Only two guards open a file, if they can, and only in a process that freezes by itself: a thaw, before it replaces
//! memory, and [`mprotect_by`], after a call that failed. They look at what is mapped, since neither the dynamic linker
//! nor `munmap` reports anything. So does a child of such a process, before `fork` returns, if it has to forget what
//! its parent could not; the file is closed by then.
//!
//! A guard stops other threads only if the freeze was allowed to ([`OtherThreads::Stop`](crate::OtherThreads::Stop)).
//! Only `MADV_WIPEONFORK` and `MREMAP_DONTUNMAP` need that, since they need anonymous memory; otherwise they fail with
//! EINVAL, as from a kernel that cannot do them for such memory.

mod advice;
mod errno;
#[cfg(feature = "fuzzing")]
pub(crate) mod mirror;
mod moving;
mod parts;
mod protection;
mod release;
mod sight;

use std::ops::Range;
use std::sync::atomic::Ordering;

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use rustix::io::Errno;

pub use advice::{madvise, madvise_by};
pub use moving::{Remap, mremap, mremap_by};
pub use protection::{Protect, mprotect, mprotect_by};
use release::take_turn;
pub(crate) use release::{Told, forget_erased, is_confined};
pub use release::{before_mlock, before_mlockall, confined, forget, locked, replaced_from, thaw, thaw_all};

use crate::engine::entry::Entry;
use crate::engine::registry;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome<T = ()> {
    /// No frozen memory is concerned: the system call is to be made.
    NotOurs,
    /// The call is done, with this result.
    Done(Result<T, Errno>),
}

/// Whether a range may hold frozen memory. Takes no lock; if unsure, returns true.
pub fn touches(range: Range<usize>) -> bool {
    registry::shared().is_some_and(|shared| shared.map.holds(Span::of_pointers(range)))
}

/// Whether this process runs in another's memory, as children of `vfork` do: then it must leave frozen memory to the
/// owner. The first call in a process decides that the memory is its own: make it early.
#[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
pub fn is_borrowed() -> bool {
    crate::hazards::borrowed::owner().is_some()
}

/// Counts a fork that the calling process is about to make, and returns the number, from 1; `None` before Linux 4.14. A
/// child counts anew. Other than in a variable of the caller's, no fork makes the next count copy a page.
pub fn count_fork() -> Option<u32> {
    // Relaxed: a counter, which publishes nothing.
    let count = crate::hazards::borrowed::forks()?.fetch_add(1, Ordering::Relaxed);
    Some(count.cast_unsigned().wrapping_add(1))
}

/// How many forks were [counted](count_fork) in this process.
pub fn counted_forks() -> u32 {
    // Relaxed: as before.
    crate::hazards::borrowed::forks().map_or(0, |forks| forks.load(Ordering::Relaxed).cast_unsigned())
}

/// Looks up what a freeze needs from the dynamic linker, which takes locks and may allocate: for callers that may
/// freeze inside `malloc` or in a signal handler, in an object that is never unloaded. Otherwise a freeze does it
/// itself, and keeps the object with this code loaded if it may hold other threads.
#[inline]
pub fn prepare() {
    crate::engine::own::note_that_it_stays();
    crate::engine::own::ask_c_library();
}

/// Whether a range may hold memory that a freeze in slices is going to freeze: report changes of that to guards, too.
/// Takes no lock.
pub fn is_planned(range: Range<usize>) -> bool {
    registry::shared().is_some_and(|shared| shared.left_alone.concerns(Span::of_pointers(range)))
}

/// Notes that an `mmap` has replaced what was at `range`.
pub fn replaced(range: Range<usize>) {
    if let Some(shared) = registry::shared() {
        shared.left_alone.add(Span::of_pointers(range.clone()));
        shared.map.forget(Span::of_pointers(range));
    }
}

/// Changes what is mapped in `range`, or its rights, while no guard in another thread replaces memory there: `call`
/// makes a system call and reports it ([`protected`], [`keyed`], [`replaced`]). Without this, a guard that comes
/// between the two may give memory the rights from before. A signal handler may come between the two as well; then
/// `call` is called again.
pub fn in_turn<T>(range: Range<usize>, mut call: impl FnMut() -> T) -> T {
    if registry::shared().is_some() { take_turn().alone(Span::of_pointers(range), call) } else { call() }
}

/// Notes that memory at `range` has these rights now. After a call that failed, part of it may have them: pass the
/// error, and that memory is discarded no more, since nobody knows which part; [`mprotect_by`] finds out. With other
/// threads, call both in a [turn](in_turn).
pub fn protected(range: Range<usize>, outcome: Result<Permissions, Errno>) {
    let span = Span::of_pointers(range);
    let Some(shared) = registry::shared() else { return };
    match outcome {
        Ok(permissions) => shared.map.change(span, &|entry| entry.with_rights(permissions)),
        // None of the bytes of what is anonymous can be lost.
        Err(_) => shared.map.rewrite(span, &|entry| if entry.is_thawed() { None } else { Some(entry.unsure()) }),
    }
}

/// Notes that a `pkey_mprotect` gave memory at `range` this protection key, which is not negative.
pub fn keyed(range: Range<usize>, key: u32) {
    if let Some(shared) = registry::shared() {
        shared.left_alone.add(Span::of_pointers(range.clone()));
        shared.map.change(Span::of_pointers(range), &|entry| entry.with_key(key));
    }
}

/// Notes that mappings in `range` are about to get other flags, by `mprotect` with rights besides read, write and
/// execute (`PROT_MTE`), or by advice that did not come through [`madvise`]: from now on that memory stays where it is,
/// and is zeroed in place. Call it again afterwards if other threads may freeze.
pub fn changed(range: Range<usize>) {
    if let Some(shared) = registry::shared() {
        shared.left_alone.add(Span::of_pointers(range.clone()));
        shared.map.change(Span::of_pointers(range), &Entry::changed);
    }
}
