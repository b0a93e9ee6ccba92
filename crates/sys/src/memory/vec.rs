//! A growable array outside the heap, for code that runs while the heap must not change.
//!
//! The whole capacity is reserved as address space at once and only touched as it fills, so that growing never makes a
//! system call. Elements never move, but those of an array that [begins elsewhere](MappedVec::beginning_in): once. An
//! inaccessible page on each side keeps the kernel from merging the memory with a neighbour's.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::MprotectFlags;

use super::area::{Area, reserve_aligned};
use super::error::MapError;
pub use super::full::Full;

/// An array of plain values in its own mapping.
pub struct MappedVec<T> {
    /// # Invariants
    ///
    /// 1. `data..data + room()` and `far..far + capacity` are mapped readable and writable, aligned for `T`, belong
    ///    only to this value, and are the same or disjoint.
    /// 2. The first `len <= room()` elements at `data` are initialised.
    /// 3. `near <= capacity`.
    data: NonNull<T>,
    /// How many elements there is room for where it began. Never changes: a child that was forked while all moved, and
    /// clears the array, then finds either place with its own length.
    near: usize,
    far: NonNull<T>,
    capacity: usize,
    len: usize,
    /// The mapping, with its two inaccessible pages if it has them.
    area: Area,
}

// SAFETY: it owns its elements, as a `Vec` does.
unsafe impl<T: Send> Send for MappedVec<T> {}
// SAFETY: shared references only read elements.
unsafe impl<T: Sync> Sync for MappedVec<T> {}

impl<T: Copy> MappedVec<T> {
    /// Reserves room for at least `capacity` elements. Uses only address space until they are added.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn with_capacity(capacity: usize) -> Result<Self, MapError> {
        const { assert!(size_of::<T>() > 0) };
        let bytes = capacity.max(1).saturating_mul(size_of::<T>());
        let (area, start) = between_guards(bytes)?;
        let bytes = area.len() - 2 * rustix::param::page_size();
        // Page alignment suffices for every `T` with at most that alignment; larger alignments do not compile.
        const { assert!(align_of::<T>() <= 4096) };
        Ok(Self::in_mapping(start, bytes, area))
    }

    /// Creates an array for no element, without memory.
    pub fn without_room() -> Self {
        // SAFETY: 1. no byte.
        let area = unsafe { Area::new(NonNull::dangling(), 0) };
        Self::in_mapping(NonNull::dangling(), 0, area)
    }

    fn in_mapping(start: NonNull<u8>, bytes: usize, area: Area) -> Self {
        let (data, capacity) = (start.cast(), bytes / size_of::<T>());
        Self { data, near: capacity, far: data, capacity, len: 0, area }
    }

    /// Creates an array in `len` bytes of existing memory, such as a part of what [`leak_zeroed`] returned. Dropping it
    /// unmaps them.
    ///
    /// # Safety
    ///
    /// 1. `start..start + len` is mapped readable and writable, consists of whole pages, and belongs only to the
    ///    caller.
    pub unsafe fn within(start: NonNull<u8>, len: usize) -> Self {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        // SAFETY: 1. whole pages that are mapped until this value is dropped (1).
        let area = unsafe { Area::new(start, len) };
        Self::in_mapping(start, len, area)
    }

    /// Lets an empty array put its first elements into `near`. If there are more of them one day, all move, once and
    /// for good: until then the mapping is not touched, so that a fork copies nothing of it.
    ///
    /// # Panics
    ///
    /// If it is not empty.
    ///
    /// # Safety
    ///
    /// 1. `near` is writable and belongs only to this value as long as that lives.
    #[must_use]
    pub unsafe fn beginning_in(mut self, near: NonNull<[MaybeUninit<T>]>) -> Self {
        assert!(self.is_empty());
        if near.len() < self.capacity {
            (self.data, self.near) = (near.cast(), near.len());
        }
        self
    }

    /// Returns how many elements there is room for where they are now.
    fn room(&self) -> usize {
        if self.data == self.far { self.capacity } else { self.near }
    }

    /// Appends `value`.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn push(&mut self, value: T) -> Result<(), Full> {
        if self.len == self.room() && self.data != self.far {
            // SAFETY: invariants 1 to 3: initialised elements to memory of its own, with room for them, elsewhere.
            unsafe { self.data.copy_to_nonoverlapping(self.far, self.len) };
            self.data = self.far;
        }
        if self.len == self.room() {
            return Err(Full { capacity: self.capacity });
        }
        // SAFETY: below the end of the room, so inside it (invariant 1).
        let place = unsafe { self.data.add(self.len) };
        // SAFETY: as above; nobody else refers to memory behind the last element.
        unsafe { place.write(value) };
        self.len += 1;
        Ok(())
    }

    /// Forgets all elements and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Forgets the elements behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the number of elements that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the addresses of the whole mapping, without those where it [began](Self::beginning_in).
    pub fn range(&self) -> Range<usize> {
        self.area.range()
    }
}

impl<T> Deref for MappedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: invariants 1 and 2; the borrow of `self` keeps writers out.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for MappedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: invariants 1 and 2; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl<T: fmt::Debug> fmt::Debug for MappedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> Drop for MappedVec<T> {
    fn drop(&mut self) {
        if self.capacity == 0 {
            return;
        }
        // SAFETY: the mapping belongs to this value, which ends here. The only possible error for a whole mapping is
        // ENOMEM at vm.max_map_count, where the range leaks.
        let _ = unsafe { rustix::mm::munmap(self.area.as_ptr().cast(), self.area.len()) };
    }
}

/// Returns `len` zeroed, page-aligned bytes for a value that lives outside the heap and for ever.
///
/// # Errors
///
/// See [`MapError`].
pub fn leak_zeroed(len: usize) -> Result<NonNull<u8>, MapError> {
    between_guards(len).map(|(_, start)| start)
}

/// Maps at least `len` readable and writable bytes with an inaccessible page on each side. Returns the whole area, and
/// its first usable byte.
fn between_guards(len: usize) -> Result<(Area, NonNull<u8>), MapError> {
    let page = rustix::param::page_size();
    // The kernel refuses more than half of the address space; the caller gets that error.
    let len = len.min(usize::MAX / 2).next_multiple_of(page);
    let area = reserve_aligned(len.saturating_add(2 * page), page)?;
    let start = area.as_ptr().wrapping_add(page);
    // In a process that locks all future memory the whole capacity would be populated once it is accessible. SAFETY:
    // changes no memory. A refusal leaves it locked, which wastes memory but is harmless.
    let _ = unsafe { rustix::mm::munlock(start.cast(), len) };
    // SAFETY: inside the range reserved just now, which nobody refers to.
    unsafe { rustix::mm::mprotect(start.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }
        .map_err(|errno| MapError::diagnose("mprotect", len, errno))?;
    // SAFETY: the name is a C string that lives for ever; the call changes no memory, and may fail if the kernel keeps
    // no names.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, start, len, c"palimpsest".as_ptr())
    };
    NonNull::new(start).map(|start| (area, start)).ok_or_else(|| MapError::diagnose("mmap", len, Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::span::Span;

    #[test]
    fn elements_stay_where_they_are() {
        let mut all = MappedVec::with_capacity(100_000).unwrap();
        all.push(7_usize).unwrap();
        let first = all.as_ptr();
        for number in 1..100_000 {
            all.push(number).unwrap();
        }
        assert_eq!(all.as_ptr(), first);
        assert_eq!((all[0], all[99_999], all.len()), (7, 99_999, 100_000));
        all.truncate(1);
        assert_eq!(&all[..], [7]);
    }

    /// Fails on: elements that are lost or stay behind when all move; memory that is touched before there is need.
    #[test]
    fn what_begins_elsewhere_moves_once_and_touches_no_mapping_before() {
        let page = rustix::param::page_size();
        let mut near = [const { MaybeUninit::<usize>::uninit() }; 3];
        let beginning = near.as_ptr().addr();
        let room = leak_zeroed(page).unwrap();
        // SAFETY: 1. the page that was made for it.
        let all = unsafe { MappedVec::within(room, page) };
        // SAFETY: 1. lives longer, and is used only here.
        let mut all = unsafe { all.beginning_in(NonNull::from(&mut near[..])) };
        let touched = || crate::memory::calls::in_memory(Span::new(room.addr().get(), room.addr().get() + page));
        assert_eq!(all.capacity(), page / size_of::<usize>());
        (0..3).for_each(|number| all.push(number).unwrap());
        assert_eq!((all.as_ptr().addr(), touched()), (beginning, Some(0)));
        all.truncate(2);
        (2..all.capacity()).for_each(|number| all.push(number).unwrap());
        assert_eq!((all.as_ptr().addr(), touched()), (room.addr().get(), Some(1)));
        assert!(all.iter().copied().eq(0..all.capacity()));
        assert_eq!(all.push(0), Err(Full { capacity: all.capacity() }));
        all.clear();
        all.push(7).unwrap();
        assert_eq!((&all[..], all.as_ptr().addr()), (&[7][..], room.addr().get()));
    }

    /// Fails on: a child, forked while all moved, that takes what is near for as long as what is far, or the other way
    /// round.
    #[test]
    fn whoever_finds_it_half_moved_and_clears_it_has_room_where_it_is() {
        let page = rustix::param::page_size();
        for is_switched in [false, true] {
            let mut near = [const { MaybeUninit::<usize>::uninit() }; 4];
            let (beginning, behind) = near.split_at_mut(3);
            behind[0].write(77);
            let room = leak_zeroed(page).unwrap();
            // SAFETY: 1. the page that was made for it.
            let all = unsafe { MappedVec::within(room, page) };
            // SAFETY: 1. lives longer, and is used only here.
            let mut all = unsafe { all.beginning_in(NonNull::from(beginning)) };
            (0..3).for_each(|number| all.push(number).unwrap());
            if is_switched {
                // As in the middle of a push: nothing else is changed yet.
                all.data = all.far;
            }
            all.clear();
            (0..all.capacity()).for_each(|number| all.push(number).unwrap());
            assert!(all.iter().copied().eq(0..all.capacity()) && all.push(0).is_err());
            // SAFETY: written above.
            assert_eq!(unsafe { behind[0].assume_init() }, 77);
        }
    }

    #[test]
    fn two_can_share_a_mapping() {
        let page = rustix::param::page_size();
        let start = leak_zeroed(2 * page).unwrap();
        // SAFETY: inside the memory that was made for it.
        let behind = unsafe { start.add(page) };
        // SAFETY: 1. one page of this test's own.
        let mut first = unsafe { MappedVec::<u64>::within(start, page) };
        // SAFETY: 1. another page of this test's own.
        let mut second = unsafe { MappedVec::<u64>::within(behind, page) };
        while first.push(1).is_ok() {}
        second.push(2).unwrap();
        assert_eq!((first.len(), first.capacity(), &second[..]), (page / 8, page / 8, &[2][..]));
        assert_eq!(first.range().end, second.range().start);
    }

    #[test]
    fn a_full_one_says_so() {
        let mut all = MappedVec::with_capacity(1).unwrap();
        let full = std::iter::repeat_with(|| all.push([0_u8; 4096])).take(1 << 20).find_map(Result::err);
        assert_eq!(full, Some(Full { capacity: all.len() }));
    }

    #[test]
    fn the_neighbours_are_inaccessible() {
        let all = MappedVec::<u64>::with_capacity(8).unwrap();
        let maps = crate::pages::maps::Maps::read().unwrap();
        let mine = maps.at(all.as_ptr().addr()).unwrap();
        assert_eq!(mine.range().len() + 2 * rustix::param::page_size(), all.range().len());
    }
}
