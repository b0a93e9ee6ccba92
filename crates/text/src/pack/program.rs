//! Programs in place.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::contents::Meta;
use super::error::OutsideProgram;
use super::shard::Shard;
use super::store::Store;
use crate::address::CodeAddress;

/// Chunks of a pack with something in place; dropping it retires that.
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
        // SAFETY: published (invariant 1), and given up once, here.
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
/// Only calling needs `unsafe`, since only the caller knows what the bytes are. Two ways are sound:
///
/// 1. The `Program` is borrowed (or owned, or behind an `Arc`) for as long as the call lasts.
/// 2. The calling thread was [pinned](super::Participant::pin) before it read the address, and whoever dropped the
///    `Program` had first made sure that no later reader finds the address.
///
/// Packs do not know which programs refer to each other. One of the two must hold for everything that the call can
/// reach, directly or through data: keep the programs that a program calls at least as long as itself.
pub struct Program(pub(super) Tenant);

impl Program {
    /// Returns the address where it runs.
    pub fn address(&self) -> CodeAddress {
        self.0.meta().address()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.meta().len as usize
    }

    /// Returns false: an empty program cannot be placed.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the program's name, empty if it has none.
    pub fn name(&self) -> &str {
        self.0.meta().name()
    }

    /// Returns the first instruction.
    pub fn entry(&self) -> *const u8 {
        self.address().as_ptr()
    }

    /// Returns the instruction at `offset` bytes.
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

    /// Returns the first instruction as a function pointer, such as `extern "C" fn(u64) -> u64`.
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
