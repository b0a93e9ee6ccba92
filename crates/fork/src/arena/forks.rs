//! Forks of the C library pass through here: the memory of all arenas is made private first, and the child gets no lock that someone else holds.
//!
//! The handlers are registered with the first arena. `fork` calls those that run before it in reverse order and those that run after it in
//! order of registration, so an arena that is the global allocator is locked last and unlocked first. A handler that was registered before the first arena was used runs
//! while arenas are locked: it must neither allocate from one nor free, or it waits for ever.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use rustix::io::Errno;

use super::core::Core;
use super::lock::Lock;

/// Held while the list of arenas changes or is walked, so also across a fork.
static REGISTRY: Lock<()> = Lock::new(());
/// The list, through [`Core::next`]. Relaxed everywhere: [`REGISTRY`] orders it.
static FIRST: AtomicPtr<Core> = AtomicPtr::new(ptr::null_mut());
/// Whether the handlers are registered. Relaxed: written under [`REGISTRY`].
static WATCHED: AtomicU8 = AtomicU8::new(0);

/// Has forks announced; an error leaves the process without.
pub(super) fn watch() -> Result<(), Errno> {
    let _registry = REGISTRY.lock();
    if WATCHED.load(Ordering::Relaxed) == 0 {
        // SAFETY: the handlers are safe to call at any fork, and the object that has them stays: the C library forgets them if it is unloaded.
        let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
        if refused != 0 {
            return Err(Errno::from_raw_os_error(refused));
        }
        WATCHED.store(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Adds an arena to those that forks care for.
pub(super) fn enter(core: NonNull<Core>) {
    let _registry = REGISTRY.lock();
    // SAFETY: the caller has just made it.
    let next = unsafe { &core.as_ref().next };
    next.store(FIRST.load(Ordering::Relaxed), Ordering::Relaxed);
    FIRST.store(core.as_ptr(), Ordering::Relaxed);
}

/// Takes an arena from the list.
pub(super) fn leave(core: NonNull<Core>) {
    let _registry = REGISTRY.lock();
    let mut link: &AtomicPtr<Core> = &FIRST;
    // SAFETY: arenas in the list exist until this function has taken them out, which the lock excludes.
    while let Some(entry) = unsafe { link.load(Ordering::Relaxed).as_ref() } {
        if ptr::eq(entry, core.as_ptr()) {
            link.store(entry.next.load(Ordering::Relaxed), Ordering::Relaxed);
            return;
        }
        link = &entry.next;
    }
}

fn each(visit: fn(&Core)) {
    let mut at = FIRST.load(Ordering::Relaxed);
    // SAFETY: as in `leave`; the callers hold the lock.
    while let Some(core) = unsafe { at.as_ref() } {
        visit(core);
        at = core.next.load(Ordering::Relaxed);
    }
}

extern "C" fn before() {
    REGISTRY.acquire();
    each(Core::before_fork);
}

extern "C" fn after() {
    each(Core::after_fork);
    REGISTRY.release();
}
