//! A page that no child inherits: the kernel gives each child with memory of its own zeros in its place
//! (`MADV_WIPEONFORK`, Linux 4.14, madvise(2)).
//!
//! It holds what must not be taken over from a parent: who owns the memory, and whether a lock is known to be held by
//! nobody of another process. A child of `vfork` shares the parent's memory, and so this page too.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::pages::maps::Permissions;

/// Types that may start as zeros.
///
/// # Safety
///
/// 1. All zeros is a valid value.
/// 2. It is at most 4096 bytes, aligned to at most that, and needs no destructor.
/// 3. All of it may become zero at any time, as it does in a child, even under a reference: it consists of atomics.
pub(crate) unsafe trait Zeroed: Sync {}

// SAFETY: 1. zero is a number. 2. and 3. An atomic word.
unsafe impl Zeroed for AtomicI32 {}

/// A `T` of zeros in every process that asks for it, made on first use.
pub(crate) struct Wiped<T: 'static> {
    /// # Invariants
    ///
    /// Null, or a value that is never given back.
    place: AtomicPtr<T>,
}

impl<T: Zeroed> Wiped<T> {
    pub(crate) const fn new() -> Self {
        Self { place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value; `None` before Linux 4.14, or without memory for a page.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // Acquire, partner: the Release exchange in `settle`. Forbids seeing the address before the page is wiped in
        // children.
        let known = self.place.load(Ordering::Acquire);
        // SAFETY: null, or a value that is never given back, by the invariant of the field.
        unsafe { known.as_ref() }.or_else(|| self.make())
    }

    /// Returns the value; if there can be none, `instead`, from now on and in all children.
    pub(crate) fn get_or(&self, instead: &'static T) -> &'static T {
        self.get().unwrap_or_else(|| self.settle(ptr::from_ref(instead).cast_mut()).0)
    }

    /// Each program below `palimpsest run` does this before its `main`: so by bare calls, and beside all else that such
    /// a program runs (`palimpsest_sys::broken_pipe`).
    #[cold]
    #[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
    fn make(&self) -> Option<&'static T> {
        // The kernel rounds up to a page, whose size the C library would tell from two pages that no start needs.
        let page = calls::map(size_of::<T>(), Permissions::READ_WRITE, Commit::Counted).ok()?;
        // SAFETY: 1. made just now, and only known here.
        let is_wiped = unsafe { calls::advise(page, libc::MADV_WIPEONFORK) }.is_ok();
        // Big enough, aligned, and valid as zeros, by the contract of the trait.
        let settled = is_wiped.then(|| self.settle(ptr::with_exposed_provenance_mut(page.start)));
        if !matches!(settled, Some((_, Choice::Ours))) {
            // SAFETY: 1. made above, and known to nobody else.
            let _ = unsafe { calls::unmap(page) };
        }
        settled.map(|(value, _)| value)
    }

    /// Makes `place`, whose value lives for ever once chosen, the one for all, unless another thread's came first.
    fn settle(&self, place: *mut T) -> (&'static T, Choice) {
        // Release, partner: the Acquire load in `get`. Acquire on failure: stands in for that load, for another
        // thread's place.
        let (place, choice) =
            match self.place.compare_exchange(ptr::null_mut(), place, Ordering::Release, Ordering::Acquire) {
                Ok(_) => (place, Choice::Ours),
                Err(another) => (another, Choice::Another),
            };
        // SAFETY: by the invariant of the field, and because the callers keep that promise.
        (unsafe { &*place }, choice)
    }
}

/// Whose place became the one for all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Ours,
    Another,
}
