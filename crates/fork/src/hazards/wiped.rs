//! A page that no child inherits: the kernel gives each child with memory of its own zeros in its place
//! (`MADV_WIPEONFORK`, Linux 4.14, madvise(2)).
//!
//! It holds what must not be taken over from a parent: who owns the memory, and whether a lock is known to be held by
//! nobody of another process. A child of `vfork` shares the parent's memory, and so this page too. There is one for
//! all, since each fork copies each mapping.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::pages::maps::Permissions;

/// Types that may start as zeros.
///
/// # Safety
///
/// 1. All zeros is a valid value.
/// 2. It is at most [`SLOT`] bytes, aligned to at most that, and needs no destructor.
/// 3. All of it may become zero at any time, as it does in a child, even under a reference: it consists of atomics.
pub(crate) unsafe trait Zeroed: Sync {}

// SAFETY: 1. zero is a number. 2. and 3. An atomic word.
unsafe impl Zeroed for AtomicI32 {}

/// Bytes for a value.
pub(crate) const SLOT: usize = 512;

/// Whose value it is, each at a place of its own: a snapshot that is restored does not bring back what is on the page,
/// so that no other may be put there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Memory,
    Home,
    Stack,
    Arena,
    Aside,
}

impl Slot {
    /// What they take together: within the smallest page.
    const ALL: usize = (Self::Aside as usize + 1) * SLOT;
}

const _: () = assert!(Slot::ALL <= 4096);

/// The page.
///
/// # Invariants
///
/// Null, or zeros in a new child, of [`Slot::ALL`] bytes, which are never given back.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// A `T` of zeros in every process that asks for it, made on first use.
pub(crate) struct Wiped<T: 'static> {
    slot: Slot,
    /// # Invariants
    ///
    /// Null, or a value that is never given back.
    place: AtomicPtr<T>,
}

impl<T: Zeroed> Wiped<T> {
    /// # Safety
    ///
    /// 1. No other has this slot, but for one of the same `T` in a test.
    pub(crate) const unsafe fn new(slot: Slot) -> Self {
        const { assert!(size_of::<T>() <= SLOT && align_of::<T>() <= SLOT) };
        Self { slot, place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value; `None` before Linux 4.14, or without memory for a page.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // Acquire, partner: the Release exchange in `first`. Forbids seeing the address before the page is wiped in
        // children.
        let known = self.place.load(Ordering::Acquire);
        // SAFETY: null, or a value that is never given back, by the invariant of the field.
        unsafe { known.as_ref() }.or_else(|| self.make())
    }

    /// Returns the value; if there can be none, `instead`, from now on and in all children.
    pub(crate) fn get_or(&self, instead: &'static T) -> &'static T {
        // SAFETY: 1. a value that lives for ever.
        self.get().unwrap_or_else(|| unsafe { self.settle(ptr::from_ref(instead).cast_mut()) })
    }

    /// Each program below `palimpsest run` does this before its `main`: so beside all else that such a program runs
    /// (`palimpsest_sys::broken_pipe`).
    #[cold]
    #[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
    fn make(&self) -> Option<&'static T> {
        let place = page()?.wrapping_add(self.slot as usize * SLOT);
        // SAFETY: 1. this one's slot, big enough, aligned, and valid as zeros, by the contracts of the trait and `new`.
        Some(unsafe { self.settle(place.cast()) })
    }

    /// Makes `place` the one for all, unless another thread's came first.
    ///
    /// # Safety
    ///
    /// 1. `place` must be a value that is never given back.
    unsafe fn settle(&self, place: *mut T) -> &'static T {
        let place = first(&self.place, place);
        // SAFETY: by contract 1 or the invariant of the field.
        unsafe { &*place }
    }
}

/// Returns the page, made by bare calls on first use; `None` as for [`Wiped::get`].
#[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
fn page() -> Option<*mut u8> {
    // Acquire, partner: the Release exchange in `first`. Forbids seeing the address before the page is wiped in
    // children.
    let known = PAGE.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    // The kernel rounds up to a page, whose size the C library would tell from two pages that no start needs.
    let page = calls::map(Slot::ALL, Permissions::READ_WRITE, Commit::Counted).ok()?;
    // SAFETY: 1. made just now, and only known here.
    let is_wiped = unsafe { calls::advise(page, libc::MADV_WIPEONFORK) }.is_ok();
    let ours = ptr::with_exposed_provenance_mut(page.start);
    let chosen = is_wiped.then(|| first(&PAGE, ours));
    if chosen != Some(ours) {
        // SAFETY: 1. made above, and known to nobody else.
        let _ = unsafe { calls::unmap(page) };
    }
    chosen
}

/// Puts `place` where null is, and returns what is there from then on: another thread's may have come first.
#[inline]
fn first<T>(at: &AtomicPtr<T>, place: *mut T) -> *mut T {
    // Release, partners: the Acquire loads in `get` and `page`. Acquire on failure: stands in for such a load, for
    // another thread's place.
    match at.compare_exchange(ptr::null_mut(), place, Ordering::Release, Ordering::Acquire) {
        Ok(_) => place,
        Err(another) => another,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a mapping for each value, which each fork would copy; two values at one place.
    #[test]
    fn all_values_are_on_one_page_and_apart() {
        // SAFETY: 1. as in `engine::own`.
        let one: Wiped<AtomicI32> = unsafe { Wiped::new(Slot::Home) };
        // SAFETY: 1. as in `arena::forks`.
        let other: Wiped<AtomicI32> = unsafe { Wiped::new(Slot::Arena) };
        let Some((one, other)) = one.get().zip(other.get()) else {
            return println!("skipped: this kernel wipes no memory in children");
        };
        let [one, other] = [one, other].map(|value| ptr::from_ref(value).addr());
        assert_eq!(one + (Slot::Arena as usize - Slot::Home as usize) * SLOT, other);
    }
}
