//! What a snapshot knows, all of it in mappings of its own: the heap and the statics are what is put back.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use palimpsest_sys::extent::Extent;
use palimpsest_sys::mapped_vec::MappedVec;
use palimpsest_sys::pagemap::Pagemap;
use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::Vmas;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::descriptors::Table;
use super::error::{Left, TakeError};
use super::listing::Listing;
use super::options::{Layout, Sweep};

/// Room for so many mappings; the kernel's own limit is 65530 by default, and splitting adds few.
pub(super) const MAPPINGS: usize = 1 << 17;

/// Addresses, as a plain value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(super) const fn range(self) -> Range<usize> {
        self.start..self.end
    }

    pub(super) const fn contains(self, address: usize) -> bool {
        self.start <= address && address < self.end
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// What a part of the memory looked like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contents {
    /// Zeros, in anonymous memory; nothing of it was populated.
    Zeros,
    /// The bytes of the snapshot's file at `offset`, which are mapped here, and a second time at `view`.
    Saved { offset: u64, view: usize },
}

/// Memory in the snapshot, with the same contents and rights throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) permissions: Permissions,
    pub(super) contents: Contents,
}

impl Part {
    /// Where the bytes of `address`, inside this part, are saved.
    pub(super) const fn saved(&self, address: usize) -> Option<usize> {
        match self.contents {
            Contents::Zeros => None,
            Contents::Saved { view, .. } => Some(view + (address - self.start)),
        }
    }

    /// Whether bytes can be stored here, once the rights are those of the snapshot.
    pub(super) const fn is_writable(&self) -> bool {
        self.permissions.contains(Permissions::WRITE.union(Permissions::READ))
    }
}

/// Bytes that are copied back each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copied {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) saved: usize,
}

/// Pages that are private to this process and may differ from the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) start: usize,
    pub(super) len: usize,
    /// Where the bytes are saved; nothing for zeros.
    pub(super) saved: Option<usize>,
}

/// A range that is not in the snapshot, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotTaken {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
    /// Why.
    pub reason: Left,
}

#[expect(clippy::large_enum_variant, reason = "there is one of it, in a page of its own")]
/// Whether the state of the process belongs to the snapshot, beside memory.
#[derive(Debug)]
pub(super) enum Reach {
    /// Only chosen memory.
    Ranges,
    /// Where everything is mapped, and the program break.
    Whole(Whole),
}

/// What a snapshot of the whole process knows of the address space.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) layout: Layout,
    /// The mappings as they shall be.
    pub(super) reference: Vmas,
    /// The mappings as they are; the second is for kernels that do not know the question of the first.
    pub(super) listing: Option<Listing>,
    pub(super) current: Vmas,
    /// What is nobody's business but ours, ascending: mappings here are neither removed nor made.
    pub(super) excluded: MappedVec<Span>,
    /// The program break.
    pub(super) program_break: usize,
    /// The running stack.
    pub(super) stack: Span,
}

/// Everything that a restore needs. It lives in its [`Own`] mapping.
#[derive(Debug)]
pub(super) struct State {
    pub(super) reach: Reach,
    pub(super) sweep: Sweep,
    /// Pages that may stay private, in bytes.
    pub(super) resident: usize,
    pub(super) page: usize,
    /// Whose page tables `pagemap` tells of.
    pub(super) process: u32,
    pub(super) pagemap: Pagemap,
    pub(super) extent: Extent,
    /// Ascending and disjoint.
    pub(super) parts: MappedVec<Part>,
    /// What a sweep asks for: parts with what little lies between them.
    pub(super) groups: MappedVec<Span>,
    pub(super) copies: MappedVec<Copied>,
    pub(super) known: MappedVec<Known>,
    pub(super) declared: MappedVec<Known>,
    pub(super) left: MappedVec<NotTaken>,
    pub(super) views: Reserved,
    /// Where `copies` are saved.
    pub(super) saved: Reserved,
    pub(super) descriptors: Option<Table>,
    /// Page faults of the process when the last restore ended.
    pub(super) faults: u64,
    pub(super) restores: u32,
}

/// Address space that goes with its owner.
#[derive(Debug)]
pub(super) struct Reserved(Span);

impl Reserved {
    /// No address space.
    pub(super) const fn none() -> Self {
        Self(Span { start: 0, end: 0 })
    }

    /// Reserves `len` bytes, or none for 0.
    pub(super) fn new(len: usize, rights: ProtFlags) -> Result<Self, TakeError> {
        if len == 0 {
            return Ok(Self::none());
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel picks.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rights, flags) }
            .map_err(|errno| TakeError::Call { call: "mmap", errno })?
            .expose_provenance();
        Ok(Self(Span { start, end: start + len }))
    }

    pub(super) const fn span(&self) -> Span {
        self.0
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.0.start != self.0.end {
            // SAFETY: the mapping is this value's own. ENOMEM at vm.max_map_count leaks it.
            let _ = unsafe { rustix::mm::munmap(pointer(self.0.start).cast(), self.0.range().len()) };
        }
    }
}

/// A value in a mapping of its own.
pub(super) struct Own<T> {
    /// # Invariants
    ///
    /// Points to an initialised value in a mapping of `mapped::<T>()` bytes that is this owner's alone.
    value: NonNull<T>,
}

impl<T> Own<T> {
    /// Moves `value` out of the reach of restores.
    pub(super) fn new(value: T) -> Result<Self, TakeError> {
        let failed = |errno| TakeError::Call { call: "mmap", errno };
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel picks.
        let memory =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped::<T>(), rights, MapFlags::PRIVATE) }
                .map_err(failed)?;
        let place = NonNull::new(memory.cast::<T>()).ok_or_else(|| failed(Errno::NOMEM))?;
        // SAFETY: mapped writable just now, big enough, and aligned to a page.
        unsafe { place.write(value) };
        Ok(Self { value: place })
    }

    pub(super) fn span(&self) -> Span {
        let start = self.value.addr().get();
        Span { start, end: start + mapped::<T>() }
    }
}

fn mapped<T>() -> usize {
    size_of::<T>().next_multiple_of(rustix::param::page_size())
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

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // SAFETY: the invariant; the value is not used afterwards.
        unsafe { self.value.drop_in_place() };
        // SAFETY: the mapping is this value's own. ENOMEM at vm.max_map_count leaks it.
        let _ = unsafe { rustix::mm::munmap(self.value.as_ptr().cast(), mapped::<T>()) };
    }
}

/// The pointer that `address`, of a mapping of this process, stands for.
pub(super) fn pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}
