//! Memory that is another process's: a child of `vfork` runs in its parent's, and sees itself as the only thread, while the parent's other threads go on.
//!
//! A page that the kernel wipes in every child with memory of its own (`MADV_WIPEONFORK`, Linux 4.14) holds the process id of whose memory it is.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use palimpsest_sys::{Mapping, OnFork, Protection, Source};

static PAGE: AtomicPtr<AtomicI32> = AtomicPtr::new(ptr::null_mut());

/// The process whose memory this is, if it is not the calling one. Before Linux 4.14 that cannot be told.
///
/// The first call in a process decides that it is its own: it must not come from a child of `vfork`.
pub(crate) fn owner() -> Option<i32> {
    let page = page()?;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // Relaxed, both ways: the number is all there is to know.
    match page.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => None,
        Err(owner) => Some(owner).filter(|&owner| owner != own),
    }
}

fn page() -> Option<&'static AtomicI32> {
    // Acquire, partner: the Release exchange below. Forbids to see the address before the page is wiped in children.
    let known = PAGE.load(Ordering::Acquire);
    // SAFETY: null, or a word that is never given back.
    if let Some(page) = unsafe { known.as_ref() } {
        return Some(page);
    }
    let len = rustix::param::page_size();
    let mapping = Mapping::new(Source::Anonymous, len, Protection::ReadWrite, len).ok()?;
    mapping.on_fork(OnFork::Wipe).ok()?;
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping is aligned to a page")]
    let made = mapping.as_ptr().cast::<AtomicI32>();
    // Release, partner: the Acquire load above. Relaxed on failure: another thread's page is as good, and read above the next time.
    match PAGE.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Relaxed) {
        Ok(_) => {
            std::mem::forget(mapping);
            // SAFETY: mapped, zero, aligned to a page, and never given back.
            Some(unsafe { &*made })
        }
        Err(_) => page(),
    }
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
