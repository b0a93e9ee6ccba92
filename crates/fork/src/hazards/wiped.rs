//! A page that no child inherits: the kernel gives each child with memory of its own zeroes in its place
//! (`MADV_WIPEONFORK`, Linux 4.14, madvise(2)).
//!
//! What must not be taken over from a parent lies there: who owns the memory, and whether a lock is known to be held by
//! nobody of another process. A child of `vfork` has the parent's memory, and so this page too.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use palimpsest_sys::{Mapping, OnFork, Protection, Source};

/// Types that may begin as zeroes.
///
/// # Safety
///
/// 1. Memory of zeroes is a valid value.
/// 2. It is at most 4096 bytes, aligned to at most that, and needs no destructor.
/// 3. All of it may become zero at any time, as it does in a child, also under a reference: it is made of atomics.
pub(crate) unsafe trait Zeroed: Sync {}

// SAFETY: 1. zero is a number. 2. and 3. An atomic word.
unsafe impl Zeroed for AtomicI32 {}

// SAFETY: 1. to 3. as for one of them; they take 8 bytes.
unsafe impl Zeroed for [AtomicI32; 2] {}

/// A `T` of zeroes in every process that looks for it, made when it is first looked for.
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

    /// The value; nothing before Linux 4.14, or without memory for a page.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // Acquire, partner: the Release exchange in `settle`. Forbids to see the address before the page is wiped in
        // children.
        let known = self.place.load(Ordering::Acquire);
        // SAFETY: null, or a value that is never given back, by the invariant of the field.
        unsafe { known.as_ref() }.or_else(|| self.make())
    }

    /// The value, or `instead` from now on and in all children if there can be none.
    pub(crate) fn get_or(&self, instead: &'static T) -> &'static T {
        self.get().unwrap_or_else(|| self.settle(ptr::from_ref(instead).cast_mut()).0)
    }

    #[cold]
    fn make(&self) -> Option<&'static T> {
        let len = rustix::param::page_size();
        let mapping = Mapping::new(Source::Anonymous, len, Protection::ReadWrite, len).ok()?;
        mapping.on_fork(OnFork::Wipe).ok()?;
        // Big enough, aligned, and a value while it is zero, by the contract of the trait.
        let (value, choice) = self.settle(mapping.as_ptr().cast());
        if choice == Choice::Ours {
            std::mem::forget(mapping);
        }
        Some(value)
    }

    /// Makes `place`, which holds a value for ever once it is chosen, the one for all; another thread's may have come
    /// before it.
    fn settle(&self, place: *mut T) -> (&'static T, Choice) {
        // Release, partner: the Acquire load in `get`. Acquire on failure: in its place, for another thread's.
        let (place, choice) =
            match self.place.compare_exchange(ptr::null_mut(), place, Ordering::Release, Ordering::Acquire) {
                Ok(_) => (place, Choice::Ours),
                Err(another) => (another, Choice::Another),
            };
        // SAFETY: by the invariant of the field, and because the callers keep the promise.
        (unsafe { &*place }, choice)
    }
}

/// Whose place became the one for all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Ours,
    Another,
}
