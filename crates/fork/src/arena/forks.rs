//! Handlers of the C library's `fork`: they make the memory of all arenas private before it, and ensure that the child
//! does not inherit a lock that another thread holds.
//!
//! The first arena registers the handlers. `fork` calls handlers before it in reverse order and those after it in order
//! of registration, so that an arena that is the global allocator is locked last and unlocked first. A handler that was
//! registered before the first arena was used runs while arenas are locked: it must not allocate from one or free, or
//! it waits for ever. If the first arena is made while handlers of a fork are running, that fork does not see it (glibc
//! 2.36 and newer let both go on at once): if other handlers take long, make an arena before there are threads.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, Ordering};

use rustix::io::Errno;

use super::StrandedError;
use super::core::Core;
use super::files::NoFiles;
use crate::hazards::wiped::{Slot, Wiped};
use crate::lock::Lock;

/// Held while the list of arenas changes or is walked, so also across a fork; taken by [`registry`].
static REGISTRY: Lock<()> = Lock::new(());
/// What this process knows of [`REGISTRY`]. In a child it is [`INHERITED`], by whatever call the child was made. A
/// thread that registers the handlers holds the lock while it waits for forks under way, and their children do not have
/// that thread. The lock itself is not in wiped memory, lest a [snapshot](crate::snapshot) leave it out.
// SAFETY: 1. the only one with this slot; a test has another `AtomicI32` there.
static KNOWN: Wiped<AtomicI32> = unsafe { Wiped::new(Slot::Arena) };
/// Perhaps held by a thread that this process does not have.
const INHERITED: i32 = 0;
const BEING_FREED: i32 = 1;
const KNOWN_TO_BE_OURS: i32 = 2;
/// Used before Linux 4.14, where the first arena must not be made while another thread forks.
static ALWAYS_OURS: AtomicI32 = AtomicI32::new(KNOWN_TO_BE_OURS);
/// The list, through [`Core::next`]. Relaxed everywhere: [`registry`] orders it.
static FIRST: AtomicPtr<Core> = AtomicPtr::new(ptr::null_mut());
/// Whether the handlers are registered. Relaxed: written under [`registry`].
static WATCHED: AtomicU8 = AtomicU8::new(0);

/// Returns the lock. The list that a child inherits is whole even if another thread held the lock: each change is one
/// store.
fn registry() -> &'static Lock<()> {
    let known = KNOWN.get_or(&ALWAYS_OURS);
    // Acquire, partner: the Release below. Forbids taking the lock before it is freed.
    while known.load(Ordering::Acquire) != KNOWN_TO_BE_OURS {
        // Relaxed: the lock has orderings of its own.
        if known.compare_exchange(INHERITED, BEING_FREED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // Every thread of this process comes through here first, so none of them holds the lock.
            REGISTRY.release();
            // Release, partner: the Acquire above.
            known.store(KNOWN_TO_BE_OURS, Ordering::Release);
        } else {
            std::thread::yield_now();
        }
    }
    &REGISTRY
}

/// Registers the fork handlers. After an error, forks do not call them.
pub(super) fn watch() -> Result<(), Errno> {
    let _registry = registry().lock();
    if WATCHED.load(Ordering::Relaxed) == 0 {
        // SAFETY: the handlers are safe to call at any fork, and the object that contains them stays: the C library
        // forgets them if it is unloaded.
        let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
        if refused != 0 {
            return Err(Errno::from_raw_os_error(refused));
        }
        WATCHED.store(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Adds an arena to the list that fork handlers walk.
pub(super) fn enter(core: NonNull<Core>) {
    let _registry = registry().lock();
    // SAFETY: the caller has just made it.
    let next = unsafe { &core.as_ref().next };
    next.store(FIRST.load(Ordering::Relaxed), Ordering::Relaxed);
    FIRST.store(core.as_ptr(), Ordering::Relaxed);
}

/// Removes an arena from the list.
pub(super) fn leave(core: NonNull<Core>) {
    let _registry = registry().lock();
    let mut link: &AtomicPtr<Core> = &FIRST;
    // SAFETY: arenas in the list exist until this function removes them, which the lock excludes.
    while let Some(entry) = unsafe { link.load(Ordering::Relaxed).as_ref() } {
        if ptr::eq(entry, core.as_ptr()) {
            link.store(entry.next.load(Ordering::Relaxed), Ordering::Relaxed);
            return;
        }
        link = &entry.next;
    }
}

/// Prepares all arenas for a snapshot of the whole process, which restores what they know of their memory, and so must
/// hold that memory: makes it private. New memory has no files while the result lives, since a restore would unmap it
/// and leave its descriptor.
pub(crate) fn before_snapshot_of_all() -> Result<NoFiles, StrandedError> {
    let _registry = registry().lock();
    let no_files = NoFiles::new();
    let mut stranded = None;
    each(|core| {
        let flipped = core.freeze();
        core.note_snapshot(&(0..usize::MAX));
        if let Some(errno) = flipped.refused {
            stranded = Some(StrandedError { bytes: flipped.stranded, source: errno.into() });
        }
    });
    stranded.map_or(Ok(no_files), Err)
}

/// Prepares all arenas for a snapshot that holds `range`.
pub(crate) fn before_snapshot_of(range: &Range<usize>) {
    let _registry = registry().lock();
    each(|core| core.note_snapshot(range));
}

fn each(mut visit: impl FnMut(&Core)) {
    let mut at = FIRST.load(Ordering::Relaxed);
    // SAFETY: as in `leave`; the callers hold the lock.
    while let Some(core) = unsafe { at.as_ref() } {
        visit(core);
        at = core.next.load(Ordering::Relaxed);
    }
}

extern "C" fn before() {
    registry().acquire();
    each(Core::before_fork);
}

extern "C" fn after() {
    each(Core::after_fork);
    registry().release();
}

/// The first look at the registry has freed it already; freeing it again does no harm.
extern "C" fn after_in_child() {
    each(Core::after_fork_in_child);
    registry().release();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use palimpsest_sys::threads::child;

    use super::*;

    /// A child made without the C library's `fork` stands for every child for which no handler ran.
    #[test]
    fn a_child_that_no_handler_saw_has_the_registry() {
        watch().expect("the handlers are registered");
        let (held, is_held) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _registry = registry().lock();
                held.send(()).expect("the test waits");
                let _ = is_done.recv();
            });
            is_held.recv().expect("the thread lives");
            // SAFETY: 1. the child makes atomic accesses only.
            let child = unsafe { child::spawn(&[], || i32::from(!registry().is_free())) }.expect("a child");
            let status = child.wait();
            drop(done);
            assert_eq!(status, Ok(0), "the child would wait for a thread that it does not have");
        });
    }
}
