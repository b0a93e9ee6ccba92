//! [`Arena`] as the allocator of a collection.

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::Arena;

fn slice(block: *mut u8, len: usize) -> Result<NonNull<[u8]>, AllocError> {
    Ok(NonNull::slice_from_raw_parts(NonNull::new(block).ok_or(AllocError)?, len))
}

// SAFETY: blocks are valid until they are freed or the arena is dropped, wherever the arena moves; it cannot be cloned.
unsafe impl Allocator for Arena {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(Arena::allocate(self, layout.size(), layout.align()), layout.size())
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(Arena::allocate_zeroed(self, layout.size(), layout.align()), layout.size())
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, _: Layout) {
        // SAFETY: the caller's block is one of this allocator that nobody uses any more.
        unsafe { self.release(block) };
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the contracts of `grow` are those of `fit`.
        unsafe { fit(self, block, old, new) }
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the contracts of `shrink` are those of `fit`.
        unsafe { fit(self, block, old, new) }
    }
}

/// # Safety
///
/// 1. `block` is a block of `arena` with layout `old`, and nobody uses it except through the result, unless that is an
///    error.
unsafe fn fit(arena: &Arena, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
    if new.align() <= old.align() {
        // SAFETY: 1. is contract 1. 2. The old alignment was asked for, and satisfies the new one.
        return slice(unsafe { arena.resize(block, new.size(), old.align()) }, new.size());
    }
    let moved = slice(Arena::allocate(arena, new.size(), new.align()), new.size())?;
    // SAFETY: both blocks have that many bytes, and they are apart.
    unsafe { moved.cast::<u8>().copy_from_nonoverlapping(block, old.size().min(new.size())) };
    // SAFETY: contract 1.
    unsafe { arena.release(block) };
    Ok(moved)
}
