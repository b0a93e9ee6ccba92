//! Programs in place.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::block::Place;
use super::error::OutsideProgram;
use super::retired::Linked;
use super::shard::Shard;
use super::slot::Pack;
use super::store::Store;
use crate::address::CodeAddress;
use crate::primitive::AtomicPtr;

/// What to do about a fault inside a program: go on at another of its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// The instruction that may fault, in bytes from the program's start.
    pub offset: u32,
    /// Where to go on, in bytes from the program's start.
    pub landing: u32,
}

/// What only some programs have.
#[derive(Default)]
pub(super) struct Extras {
    pub(super) name: Box<str>,
    /// Sorted by offset.
    pub(super) faults: Box<[Fault]>,
}

/// What is known of a program, in its pack's directory. 56 bytes.
pub(super) struct Meta {
    pub(super) link: AtomicPtr<Meta>,
    /// The store's generation when the program was put in place: children forked before it have no handle to it.
    pub(super) born: u64,
    pub(super) extras: Option<Box<Extras>>,
    /// # Invariants
    ///
    /// 1. Its pack is in slot `slot`, and lives at least until the place is given back.
    pub(super) place: Place,
    /// Bytes from the pack's base to the program's first.
    pub(super) start: u32,
    pub(super) len: u32,
}

// SAFETY: the pack is `Sync`; `link` is used by one stack at a time.
unsafe impl Send for Meta {}
// SAFETY: as above; the other fields never change.
unsafe impl Sync for Meta {}

// SAFETY: 1. a field of its own.
unsafe impl Linked for Meta {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Meta {
    pub(super) fn pack(&self) -> &Pack {
        // SAFETY: invariant 1; whoever has a reference to the entry knows that its chunks are not given back.
        unsafe { self.place.pack.as_ref() }
    }

    pub(super) fn address(&self) -> CodeAddress {
        CodeAddress::new(self.pack().memory.base() + self.start as usize)
    }

    pub(super) fn name(&self) -> &str {
        self.extras.as_ref().map_or("", |extras| &extras.name)
    }

    pub(super) fn landing(&self, offset: u32) -> Option<CodeAddress> {
        let faults = &self.extras.as_ref()?.faults;
        let found = faults.binary_search_by_key(&offset, |fault| fault.offset).ok()?;
        Some(self.address().offset(faults[found].landing as usize))
    }
}

/// Chunks of a pack that hold something in place; retired on drop.
pub(super) struct Tenant {
    shard: Arc<Shard>,
    /// # Invariants
    ///
    /// 1. It points to a published entry of the shard's store, which is not unlinked before this value has retired it.
    meta: NonNull<Meta>,
}

// SAFETY: entries are `Sync`.
unsafe impl Send for Tenant {}
// SAFETY: as above.
unsafe impl Sync for Tenant {}

impl Tenant {
    /// # Safety
    ///
    /// 1. `meta` was just published in the shard's store, and this is the only tenant for it.
    pub(super) unsafe fn new(shard: Arc<Shard>, meta: NonNull<Meta>) -> Self {
        Self { shard, meta }
    }

    pub(super) fn store(&self) -> &Store {
        self.shard.store()
    }

    pub(super) fn meta(&self) -> &Meta {
        // SAFETY: invariant 1.
        unsafe { self.meta.as_ref() }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // SAFETY: published (invariant 1), and given up here, once.
        unsafe { self.store().retire(self.shard.tally(), self.meta) };
    }
}

/// A program in place, ready to run.
///
/// Dropping it *retires* the code. The bytes stay as they are until every thread that could be inside has left, and
/// become traps then ([`Packs::reclaim`](super::Packs::reclaim)).
///
/// # Calling it
///
/// Calling is the one thing that needs `unsafe`, since only the caller knows what the bytes are. Two ways are sound:
///
/// 1. The `Program` is borrowed (or owned, or behind an `Arc`) for as long as the call lasts.
/// 2. The calling thread is [pinned](super::Participant::pin) since before it read the address, and whoever dropped the
///    `Program` had made sure before that no later reader finds the address.
///
/// Packs do not know which programs refer to which. Both ways must hold for everything that the call can reach, by a
/// direct call or through data: keep the programs that a program calls at least as long as itself.
pub struct Program(pub(super) Tenant);

impl Program {
    /// Where it runs.
    pub fn address(&self) -> CodeAddress {
        self.0.meta().address()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.meta().len as usize
    }

    /// Always false: an empty program cannot be placed.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its name, empty if it has none.
    pub fn name(&self) -> &str {
        self.0.meta().name()
    }

    /// The first instruction.
    pub fn entry(&self) -> *const u8 {
        self.address().as_ptr()
    }

    /// The instruction at `offset` bytes.
    ///
    /// # Errors
    ///
    /// [`OutsideProgram`] if there is none.
    pub fn entry_at(&self, offset: usize) -> Result<*const u8, OutsideProgram> {
        if offset >= self.len() {
            return Err(OutsideProgram { offset, len: self.len(), address: self.address() });
        }
        Ok(self.address().offset(offset).as_ptr())
    }

    /// The first instruction as a function pointer, such as `extern "C" fn(u64) -> u64`.
    ///
    /// # Safety
    ///
    /// 1. `F` is a function pointer type, and the program is a function of that type.
    /// 2. The result is only called in one of the two ways of [Calling it](Program#calling-it); lifetimes do not check
    ///    that.
    pub unsafe fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*const u8>(), "F is no function pointer") };
        // SAFETY: of equal size, and a function pointer that the caller vouches for (1).
        unsafe { std::mem::transmute_copy(&self.entry()) }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.name())
            .field("address", &self.address())
            .field("len", &self.len())
            .finish()
    }
}
