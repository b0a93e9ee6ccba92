//! An allocator made for freezing: a fork copies no page tables of its memory, and freezing copies no bytes.
//!
//! # How
//!
//! Memory comes from *segments*. A segment is a memory file of its own, mapped shared while it is being filled.
//! Freezing maps the same file at the same addresses again, private: every byte stays where it is and what it is, and
//! the kernel has no private page to remember, so that `fork` skips the mapping (`mm/memory.c`, `vma_needs_copy`). What
//! parent or child write afterwards goes to copies of their own, page by page. Different files never become one
//! mapping, so that a written page costs a fork the page tables of one segment. New memory comes in new shared
//! segments.
//!
//! The arena owns its address space and all that is done to it. So the hazards of freezing other people's memory do not
//! exist: no discard advice on frozen memory, no growth by `mremap`, no flags that get lost, no guard pages, no locked
//! pages.
//!
//! # Why freezing needs no stopped threads
//!
//! A thread may write while a segment is made private. The kernel replaces the mapping under the lock of the address
//! space, and flushes the old translations before it gives the lock back; a fault waits for it (`mm/vma.c`,
//! `mmap_region`). So a store either reaches the file's page before, and is part of what is frozen, or faults
//! afterwards, and goes to a copy of that page. None is lost, and no access finds a hole. Copying anonymous memory away
//! in use, as the engine has to, would lose stores: only [`Arena::refreeze`] does, and asks for a promise.
//!
//! # Fork without freeze
//!
//! A child must not see later stores of its parent, and a shared mapping would show them. There are two measures, since
//! there are two ways to fork:
//!
//! * The C library's `fork`, which everything but raw system calls and `_Fork` goes through, runs handlers: they freeze
//!   first (`forks`). Such a fork *is* a freeze of what has come since the last one, and costs next to nothing if
//!   nothing has.
//! * Shared segments are marked so that children do not get them (`MADV_DONTFORK`). A child of a raw `clone` system
//!   call or `_Fork` (glibc 2.34), which run no handlers, faults when it touches memory that was never frozen, instead
//!   of sharing it. Call [`Arena::freeze`] before such a call, with one thread; `vfork` and `posix_spawn`, whose
//!   children share everything by design, are not concerned.
//!
//! The alternative is anonymous memory until the first freeze, which then copies. By nature it is safe with any fork;
//! but it doubles the memory of a segment for a time, takes as long as the copy, and is wrong while other threads
//! write. It remains for systems without memory files: [`Stats::refused`] tells why, and [`Memory::anonymous`] how much
//! a freeze would have to copy.
//!
//! # Descriptors
//!
//! A segment that is being filled cannot be frozen without its file. All arenas together use at most half of the
//! process's descriptors; memory beyond that is anonymous. The descriptor cannot write to the file, and is closed as
//! soon as the segment is private; if a fork made it so, as soon as its former mapping is gone (`aside`), before which
//! it cannot be sealed. So no child for which handlers ran has a descriptor of its parent's memory: the child's handler
//! closes the files of what could not be made private, and of former mappings.
//!
//! # Snapshots
//!
//! A snapshot of the whole process holds private memory, to which the arena's bookkeeping belongs. Blocks and records
//! of units must not be left out, or a restore would restore half of the allocator. So such a
//! [snapshot](crate::snapshot) freezes all arenas before it lists the mappings, and they get no files while it lives.
//! What a snapshot holds is a private mapping of its file, so that discarding it leaves no zeros: such memory counts as
//! frozen.
//!
//! # Locks
//!
//! A bin's lock comes before the lock of the runs, and the registry of arenas before both. Fork handlers take all of
//! them, so that the child finds a consistent arena and no lock of a thread that it does not have. Allocating and
//! freeing small blocks takes one uncontended lock, and makes system calls for new memory only.
//!
//! Bookkeeping lies apart from the blocks (`unit`): neither freeing nor allocating writes to a frozen page that holds a
//! neighbour.
//!
//! # What stays dangerous
//!
//! A device that writes to memory of the arena while it is frozen (registered io_uring buffers, RDMA, direct I/O under
//! way) writes to the file, and so also to what children see. Such files cannot be sealed: [`Stats::unsealed`] counts
//! them.

mod aside;
mod class;
mod core;
mod files;
mod forks;
mod mirror;
mod refreeze;
mod runs;
mod segments;
mod slab;
mod space;
mod stats;
mod unit;

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

#[cfg(feature = "allocator-api2")]
mod allocator;

use std::alloc::{GlobalAlloc, Layout};
use std::fmt;
use std::io;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use self::core::Core;
pub(crate) use self::files::NoFiles;
pub(crate) use self::forks::{before_snapshot_of, before_snapshot_of_all};
pub use self::refreeze::{RefreezeError, Refrozen};
use self::segments::Flip;
pub use self::stats::{InUse, Memory, Stats};

/// Segments are whole multiples of this, so that their memory can be collapsed into huge pages.
const PIECE: usize = palimpsest_sys::HUGE_PAGE;

/// Where an arena's memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backing {
    /// Memory files, which freeze without a copy.
    #[default]
    Memfd,
    /// Anonymous memory, which is also used where files are refused.
    Anonymous,
}

/// What [`Arena::freeze`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frozen {
    /// Bytes that were shared until now.
    pub bytes: usize,
    /// Bytes without a file, whose page tables forks copy; [`Arena::refreeze`] can freeze them.
    pub anonymous: usize,
}

/// Why some memory of an arena could not be frozen.
#[derive(Debug, thiserror::Error)]
#[error(
    "{bytes} bytes of the arena stay shared and are missing in forked children; \
     did the program close the descriptors of its memory?"
)]
pub struct StrandedError {
    /// How many.
    pub bytes: usize,
    /// The kernel's last error.
    #[source]
    pub source: io::Error,
}

/// An allocator that freezes without copying; see the [module](self).
///
/// It works as the global allocator, as an allocator of single collections (feature `allocator-api2`), and through
/// functions for C (the crate `palimpsest-capi`). It takes nothing from the system until its first allocation. Dropping
/// it frees all of its memory at once.
///
/// ```
/// use palimpsest_fork::arena::Arena;
///
/// #[global_allocator]
/// static HEAP: Arena = Arena::new();
///
/// let numbers: Vec<u64> = (0..1000).collect();
/// let frozen = HEAP.freeze().expect("nobody closed the arena's files");
/// assert!(frozen.bytes + frozen.anonymous > 0);
/// assert_eq!(numbers[999], 999);
/// ```
pub struct Arena {
    /// # Invariants
    ///
    /// Null, or a value made by [`Core::create`] that lives until this is dropped.
    core: AtomicPtr<Core>,
    backing: Backing,
}

impl Arena {
    /// Makes an arena in memory files.
    pub const fn new() -> Self {
        Self::with_backing(Backing::Memfd)
    }

    /// Makes an arena in memory of this kind. [`Backing::Anonymous`] is for processes whose filter kills them for
    /// `memfd_create`.
    pub const fn with_backing(backing: Backing) -> Self {
        Self { core: AtomicPtr::new(ptr::null_mut()), backing }
    }

    /// Freezes what was allocated so far. Other threads may go on using it.
    ///
    /// Forks by the C library do this by themselves, in 1 to 4 ms for up to 4 GiB, and leave unmapping what was filled
    /// for later. This call does all of it, in about 50 ms per GiB in use.
    ///
    /// # Errors
    ///
    /// [`StrandedError`]; everything that could be frozen is.
    pub fn freeze(&self) -> Result<Frozen, StrandedError> {
        let Some(core) = self.existing() else { return Ok(Frozen { bytes: 0, anonymous: 0 }) };
        let flipped = core.freeze();
        match flipped.refused {
            Some(errno) => Err(StrandedError { bytes: flipped.stranded, source: errno.into() }),
            None => Ok(Frozen { bytes: flipped.bytes, anonymous: core.stats().memory.anonymous }),
        }
    }

    /// Freezes, then copies and freezes again the segments that this process wrote to.
    ///
    /// A written page makes each fork copy the page tables of its segment (about 15 µs for each MiB of it in use).
    /// Copying takes about 0.4 ms for each MiB, and pays before many forks. Written and clean pieces of 2 MiB get
    /// segments of their own, so that the next call copies only what was written again.
    ///
    /// # Safety
    ///
    /// 1. Nobody writes to memory of this arena until the call returns: no other thread, no signal handler, no device.
    ///
    /// # Errors
    ///
    /// See [`RefreezeError`]; what was done until then stays.
    pub unsafe fn refreeze(&self) -> Result<Refrozen, RefreezeError> {
        let Some(core) = self.existing() else { return Ok(Refrozen::default()) };
        let mut space = core.space().lock();
        space.segments.let_go(usize::MAX);
        space.segments.flip(Flip::Whole);
        // SAFETY: contract 1; this thread writes to its stack and to the arena's table, which are not memory of the
        // arena.
        unsafe { refreeze::refreeze(&mut space.segments) }
    }

    /// Gives memory of free blocks back to the system, even where it is frozen: whole free pieces get new, shared
    /// memory there. Returns the bytes given back.
    pub fn trim(&self) -> usize {
        self.existing().map_or(0, Core::trim)
    }

    /// Returns what the arena holds.
    pub fn stats(&self) -> Stats {
        self.existing().map_or(Stats::NOTHING, Core::stats)
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two. Returns null if there is no memory; a size of 0
    /// counts as 1.
    pub fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        let block = self.core().and_then(|core| core.allocate(size, align));
        block.map_or(ptr::null_mut(), |block| ptr::with_exposed_provenance_mut(block.address))
    }

    /// As [`allocate`](Self::allocate), filled with zeros.
    pub fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        let Some(block) = self.core().and_then(|core| core.allocate(size, align)) else { return ptr::null_mut() };
        let place: *mut u8 = ptr::with_exposed_provenance_mut(block.address);
        // SAFETY: a new block of at least `size` bytes; what is not dirty is zeros already.
        unsafe { place.write_bytes(0, block.dirty.min(size)) };
        place
    }

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// 1. `block` came from this arena, by any of its functions, and is not freed yet; nobody uses it any more.
    pub unsafe fn release(&self, block: NonNull<u8>) {
        let Some(core) = self.existing() else { misuse("a pointer that is not of this arena") };
        core.release(block.addr().get());
    }

    /// Resizes a block to `size` bytes at a multiple of `align`, in place if possible; contents that fit are kept. Null
    /// means that there is no memory, and leaves the block unchanged.
    ///
    /// # Safety
    ///
    /// 1. As for [`release`](Self::release), unless null is returned.
    /// 2. The block was allocated with this `align`, a power of two.
    pub unsafe fn resize(&self, block: NonNull<u8>, size: usize, align: usize) -> *mut u8 {
        let Some(core) = self.existing() else { misuse("a pointer that is not of this arena") };
        let address = block.addr().get();
        if core.resize(address, size).is_some() {
            return block.as_ptr();
        }
        let moved = self.allocate(size, align);
        if !moved.is_null() {
            let len = core.usable(address).min(size);
            // SAFETY: both blocks have `len` bytes, and they are apart.
            unsafe { moved.copy_from_nonoverlapping(block.as_ptr(), len) };
            core.release(address);
        }
        moved
    }

    /// Returns how many bytes a block really has; all may be used.
    ///
    /// # Safety
    ///
    /// 1. `block` came from this arena and is not freed.
    pub unsafe fn usable_size(&self, block: NonNull<u8>) -> usize {
        self.existing().map_or(0, |core| core.usable(block.addr().get()))
    }

    fn existing(&self) -> Option<&Core> {
        // Acquire: pairs with the exchange in `set_up`.
        let core = self.core.load(Ordering::Acquire);
        // SAFETY: null, or valid as long as `self`, by the invariant of the field.
        unsafe { core.as_ref() }
    }

    #[inline]
    fn core(&self) -> Option<&Core> {
        self.existing().or_else(|| self.set_up())
    }

    #[cold]
    fn set_up(&self) -> Option<&Core> {
        let core = Core::create(self.backing, forks::watch()).ok()?;
        forks::enter(core);
        // Release: pairs with the load in `existing`. Acquire on failure: for the winner's value.
        let raced =
            self.core.compare_exchange(ptr::null_mut(), core.as_ptr(), Ordering::Release, Ordering::Acquire).is_err();
        if raced {
            forks::leave(core);
            // SAFETY: 1. made above, given to nobody but the list, which it has left.
            unsafe { Core::destroy(core) };
        }
        self.existing()
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("stats", &self.stats()).finish()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(core) = NonNull::new(*self.core.get_mut()) {
            forks::leave(core);
            // SAFETY: 1. made by `create`, by the invariant of the field, and no longer in the list; blocks borrow the
            // arena, or are the responsibility of whoever allocated them through raw pointers.
            unsafe { Core::destroy(core) };
        }
    }
}

// SAFETY: blocks have the layout that was asked for, belong to nobody else until they are freed, and stay where they
// are; nothing unwinds.
unsafe impl GlobalAlloc for Arena {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.allocate_zeroed(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller's block is one of this allocator, hence not null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the contract of `dealloc` is that of `release`.
        unsafe { self.release(block) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's block is one of this allocator, hence not null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: 1. the contract of `realloc`. 2. The layout is the block's.
        unsafe { self.resize(block, size, layout.align()) }
    }
}

/// Ends the process, saying what the program did. Nothing here may allocate: the caller may be the standard library's
/// allocator.
#[cold]
fn misuse(what: &str) -> ! {
    for part in ["palimpsest: arena: the program frees or resizes ", what, "\n"] {
        // Nobody is left to report a failure to. SAFETY: the bytes are valid for reading.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    process::abort()
}
