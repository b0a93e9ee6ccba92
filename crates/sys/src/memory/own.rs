//! Owners of memory outside the heap: of address space, and of one value. A freeze or a snapshot that excepts its
//! [span](Own::span) never changes it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::io::Errno;

use super::calls::{self, Commit};
use super::span::Span;
use crate::pages::maps::Permissions;

/// Private memory at an address that the kernel chooses; unmapped on drop.
#[derive(Debug)]
pub struct Reserved(Span);

impl Reserved {
    /// Returns no memory.
    pub const fn none() -> Self {
        Self(Span::new(0, 0))
    }

    /// Reserves `len` bytes with these rights, or nothing for 0. They do not count as committed.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new(len: usize, permissions: Permissions) -> Result<Self, Errno> {
        if len == 0 { Ok(Self::none()) } else { calls::map(len, permissions, Commit::Uncounted).map(Self) }
    }

    /// Returns the memory's addresses.
    pub const fn span(&self) -> Span {
        self.0
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: 1. the mapping belongs to this value. ENOMEM at vm.max_map_count leaks it.
            let _ = unsafe { calls::unmap(self.0) };
        }
    }
}

/// A value in its own mapping.
pub struct Own<T> {
    /// # Invariants
    ///
    /// Points to an initialised value in a mapping of `mapped::<T>()` bytes that belongs only to this owner.
    value: NonNull<T>,
}

impl<T> Own<T> {
    /// Moves `value` to its own mapping.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new(value: T) -> Result<Self, Errno> {
        // Page alignment suffices for every `T` with at most that alignment; larger alignments do not compile.
        const { assert!(align_of::<T>() <= 4096) };
        let span = calls::map(mapped::<T>(), Permissions::READ_WRITE, Commit::Counted)?;
        let place = NonNull::new(ptr::with_exposed_provenance_mut::<T>(span.start)).ok_or(Errno::NOMEM)?;
        // SAFETY: mapped writable just now, big enough, and aligned to a page.
        unsafe { place.write(value) };
        Ok(Self { value: place })
    }

    /// Returns the address of the value, valid as long as this lives.
    pub fn place(&self) -> NonNull<T> {
        self.value
    }

    /// Returns the whole pages that hold it.
    pub fn span(&self) -> Span {
        let start = self.value.addr().get();
        Span::new(start, start + mapped::<T>())
    }
}

fn mapped<T>() -> usize {
    size_of::<T>().max(1).next_multiple_of(rustix::param::page_size())
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the invariant.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Own<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the invariant; `self` is borrowed exclusively.
        unsafe { self.value.as_mut() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        let span = self.span();
        // SAFETY: the invariant; the value is not used afterwards.
        unsafe { self.value.drop_in_place() };
        // SAFETY: 1. the mapping belongs to this value. ENOMEM at vm.max_map_count leaks it.
        let _ = unsafe { calls::unmap(span) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn a_value_is_dropped_once_and_has_whole_pages() {
        static DROPS: AtomicU32 = AtomicU32::new(0);
        struct Counted(u64);
        impl Drop for Counted {
            fn drop(&mut self) {
                DROPS.fetch_add(1, Relaxed);
            }
        }
        let mut own = Own::new(Counted(7)).unwrap();
        own.0 += 1;
        assert_eq!((own.0, own.span().len()), (8, rustix::param::page_size()));
        assert!(own.span().contains(own.place().addr().get()));
        drop(own);
        assert_eq!(DROPS.load(Relaxed), 1);
    }

    #[test]
    fn nothing_is_reserved_for_nothing() {
        assert!(Reserved::new(0, Permissions::READ_WRITE).unwrap().span().is_empty());
        let page = rustix::param::page_size();
        assert_eq!(Reserved::new(3 * page, Permissions::default()).unwrap().span().len(), 3 * page);
    }
}
