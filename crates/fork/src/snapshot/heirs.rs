//! What children inherit of a snapshot: its memory, and none of its descriptors. Those show the parent's mappings, and
//! hold bytes that parent or child may have erased since.
//!
//! The C library's `fork` calls the handler here. Children of the raw system call keep the descriptors: call `fork`.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use palimpsest_sys::threads::own::Blocked;
use rustix::io::Errno;

use super::error::TakeError;
use super::state::{Reach, State, Whole};
use crate::lock::{Guard, Lock};

/// Held while the list changes, and across forks.
static REGISTRY: Lock<()> = Lock::new(());
/// The list, through [`State::next`]. Relaxed: the lock orders it. A snapshot enters the list before it saves the
/// memory that this is in, so that a restore leaves it there.
static FIRST: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());
/// Whether the handlers are registered. Relaxed: the lock orders it.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Keeps forks away while a snapshot opens its descriptors. The caller blocks signals.
pub(super) fn keep_away() -> Result<Guard<'static, ()>, TakeError> {
    let guard = REGISTRY.lock();
    if !WATCHED.load(Ordering::Relaxed) {
        // SAFETY: the handlers are safe to call at any fork, and the object that contains them stays: the C library
        // forgets them if it is unloaded.
        let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
        if refused != 0 {
            return Err(TakeError::Call { call: "pthread_atfork", errno: Errno::from_raw_os_error(refused) });
        }
        WATCHED.store(true, Ordering::Relaxed);
    }
    Ok(guard)
}

/// Registers a snapshot, so that forked children close its descriptors. The caller [keeps forks away](keep_away).
pub(super) fn enter(state: NonNull<State>) {
    // SAFETY: the caller has just made it.
    let entry = unsafe { &mut *state.as_ptr() };
    entry.listed = true;
    entry.next.store(FIRST.load(Ordering::Relaxed), Ordering::Relaxed);
    FIRST.store(state.as_ptr(), Ordering::Relaxed);
}

/// Removes a snapshot from the list.
fn leave(state: &State) {
    // A handler that forks would wait for the lock of the thread that it interrupts.
    let _blocked = Blocked::all();
    let _guard = REGISTRY.lock();
    let mut link: &AtomicPtr<State> = &FIRST;
    // SAFETY: snapshots in the list exist until this function removes them, which the lock excludes.
    while let Some(entry) = unsafe { link.load(Ordering::Relaxed).as_ref() } {
        if ptr::eq(entry, state) {
            link.store(entry.next.load(Ordering::Relaxed), Ordering::Relaxed);
            return;
        }
        link = &entry.next;
    }
}

impl State {
    /// Closes all descriptors. Memory can be restored without them; mappings and descriptors cannot.
    fn close(&mut self) {
        self.extent.close();
        self.pagemap.close();
        // No process has this number: sweeps notice, and open files of their own.
        self.process = 0;
        if let Reach::Whole(Whole { kept: Some(kept), .. }) = &mut self.reach {
            kept.close();
        }
        if let Some(table) = &mut self.descriptors {
            table.close();
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Else the caller may have no memory for the snapshot, and keep forks away.
        if self.listed {
            leave(self);
        }
        self.extent.close();
    }
}

extern "C" fn before() {
    REGISTRY.acquire();
}

extern "C" fn after() {
    REGISTRY.release();
}

extern "C" fn after_in_child() {
    let mut at = FIRST.load(Ordering::Relaxed);
    // SAFETY: snapshots in the list exist; this thread is the only one, and no method of a snapshot calls `fork`.
    while let Some(state) = unsafe { at.as_mut() } {
        state.close();
        at = state.next.load(Ordering::Relaxed);
    }
    REGISTRY.release();
}
