//! Memory of another process: a child of `vfork` runs in its parent's, and sees itself as the only thread, while the
//! parent's other threads go on.
//!
//! A page that is [wiped](super::wiped) in every child with memory of its own holds the process id of the memory's
//! owner.

use std::sync::atomic::{AtomicI32, Ordering};

use super::wiped::{SLOT, Slot, Wiped, Zeroed};
use crate::engine::unbooked::Unbooked;

/// What a process has for itself.
#[repr(C)]
struct Own {
    owner: AtomicI32,
    /// See [`begun`].
    begun: AtomicI32,
    /// See [`forks`].
    forks: AtomicI32,
    /// See [`unbooked`].
    unbooked: Unbooked,
}

const _: () = assert!(size_of::<Own>() <= SLOT);

// SAFETY: 1. zeros are valid numbers. 2. It is smaller than a slot and aligned to a word. 3. It consists of atomics.
unsafe impl Zeroed for Own {}

// SAFETY: 1. the only one with this slot.
static OWN: Wiped<Own> = unsafe { Wiped::new(Slot::Memory) };

/// Returns the process that owns this memory, if it is not the calling one. Before Linux 4.14 that cannot be told.
///
/// The first call in a process decides that the memory is its own: it must not come from a child of `vfork`.
#[inline]
pub(crate) fn owner() -> Option<i32> {
    let word = &OWN.get()?.owner;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // Relaxed, both ways: the number itself is all that is passed on.
    match word.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => None,
        Err(owner) => Some(owner).filter(|&owner| owner != own),
    }
}

/// Returns a word that is 0 in a new child, and not 0 in a process that has begun its own account of forks. It lies
/// with the owner, so that a child needs one page for both.
#[inline]
pub(crate) fn begun() -> Option<&'static AtomicI32> {
    OWN.get().map(|own| &own.begun)
}

/// Returns a word that is 0 in a new child, where whoever counts the owner's forks can do so without a page fault after
/// each: no child shares this page.
#[inline]
pub(crate) fn forks() -> Option<&'static AtomicI32> {
    OWN.get().map(|own| &own.forks)
}

/// Returns the owner's forks that no ledger knows yet; a new child has none.
#[inline]
pub(crate) fn unbooked() -> Option<&'static Unbooked> {
    OWN.get().map(|own| &own.unbooked)
}

/// Children of `vfork` are in `crates/preload/tests/suite`: they need C.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_ones_own_also_in_a_child() {
        assert_eq!(owner(), None);
        // SAFETY: the child makes system calls and atomic accesses only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(owner().is_some())) };
        }
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    }
}
