//! A place in a pack that is taken and not yet a program's.

use std::sync::Arc;

use super::CHUNK;
use super::contents::{Extras, Meta, Pack, Place};
use super::error::{FinalizeError, WriteError};
use super::memory::{Kind, Opened};
use super::program::Tenant;
use super::shard::Shard;
use super::store::Store;
use crate::address::CodeAddress;
use crate::primitive::AtomicPtr;

/// Whether a block's bytes are still those of an unused pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    Untouched,
    Written,
}

/// A place that is taken, and the offset of the program in it. Dropping it gives the place back.
pub(super) struct Block {
    shard: Arc<Shard>,
    /// # Invariants
    ///
    /// 1. Its pack is in slot `slot` of the shard's store, and lives as long as this block.
    place: Place,
    /// Bytes from the pack's base to the program's first.
    start: u32,
    len: u32,
    bytes: Bytes,
}

// SAFETY: the pack is `Sync`, and the chunks belong only to this block.
unsafe impl Send for Block {}
// SAFETY: a shared block only reveals its addresses.
unsafe impl Sync for Block {}

impl Block {
    /// # Safety
    ///
    /// 1. `place` was taken in the shard's store for this call, and its pack lives until the place is given back.
    /// 2. `start..start + len` lies in its chunks.
    pub(super) unsafe fn new(shard: Arc<Shard>, place: Place, start: u32, len: u32) -> Self {
        Self { shard, place, start, len, bytes: Bytes::Untouched }
    }

    pub(super) fn store(&self) -> &Store {
        self.shard.store()
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn address(&self) -> CodeAddress {
        CodeAddress::new(self.pack().memory.base() + self.start as usize)
    }

    fn pack(&self) -> &Pack {
        // SAFETY: invariant 1.
        unsafe { self.place.pack.as_ref() }
    }

    pub(super) fn kind(&self) -> Kind {
        self.pack().kind
    }

    /// Copies `code`, of the block's length, into place, and cleans the caches. Other cores may still have to be
    /// synchronised ([`COHERENCE`](palimpsest_sys::arch::COHERENCE)).
    pub(super) fn write(&mut self, code: &[u8]) -> Result<(), WriteError> {
        self.bytes = Bytes::Written;
        // SAFETY: 1. the block is borrowed for this call alone.
        unsafe { self.copy(code) }?;
        self.clean();
        Ok(())
    }

    /// Copies `code`, of the block's length, into place.
    ///
    /// # Safety
    ///
    /// 1. Nobody else copies into the block, or uses its [`bytes_in_place`](Self::bytes_in_place), meanwhile.
    unsafe fn copy(&self, code: &[u8]) -> Result<(), WriteError> {
        assert_eq!(code.len(), self.len(), "an image of another length than its block");
        // SAFETY: 1. in the block's chunks; 2. which nobody else knows yet, or writes to (1).
        unsafe { self.pack().memory.write(self.start as usize, code) }
    }

    /// Cleans the caches of code.
    fn clean(&self) {
        if self.kind() == Kind::Code {
            self.pack().memory.flush(self.start as usize, self.len());
            self.shard.tally().cache_flushes.add(1);
        }
    }

    /// Returns the block's bytes, if they can be written at all times: valid for reading and writing in this process as
    /// long as the block lives, and used by nobody else. They are zeros and traps, or what was there before.
    pub(super) fn bytes_in_place(&mut self) -> Option<&mut [u8]> {
        if !self.store().fork.is_same_process() {
            return None;
        }
        let first = self.pack().memory.writable()?;
        self.bytes = Bytes::Written;
        // SAFETY: inside the pack's mapping, since the block is.
        let first = unsafe { first.add(self.start as usize) };
        // SAFETY: mapped writable in this process, initialised (by the kernel's zeros at least), and owned by the
        // block alone, which is borrowed for as long.
        Some(unsafe { std::slice::from_raw_parts_mut(first, self.len()) })
    }

    /// Gives back all but the first `len` bytes; `len` must not be more than there are. A run of packs stays as it is,
    /// since its memory is one.
    pub(super) fn shrink(&mut self, len: usize) {
        debug_assert!(0 < len && len <= self.len());
        self.len = len as u32;
        let end = (self.start as usize + len).div_ceil(CHUNK) as u32;
        let chunks = end - self.place.first_chunk;
        if self.pack().is_run() || chunks == self.place.chunks || !self.store().fork.is_same_process() {
            return;
        }
        self.store().give_back_behind(&self.place, chunks);
        self.place.chunks = chunks;
    }

    /// Makes the block a program that can be found. Dropping the result retires it.
    pub(super) fn publish(self, extras: Option<Arc<Extras>>) -> Tenant {
        let block = std::mem::ManuallyDrop::new(self);
        // SAFETY: the block is not dropped, so its reference to the shard is moved out once.
        let shard = unsafe { std::ptr::read(&block.shard) };
        let meta = Meta {
            link: AtomicPtr::new(std::ptr::null_mut()),
            born: shard.store().generation(),
            extras,
            place: block.place,
            start: block.start,
            len: block.len,
        };
        // SAFETY: 1. reserved with the block; 2. the chunks are the block's own.
        let meta = unsafe { block.pack().directory.publish(block.place.first_chunk, block.place.entry, meta) };
        shard.tally().loads.add(1);
        // SAFETY: 1. just published, and nobody else gets it.
        unsafe { Tenant::new(shard, meta) }
    }
}

/// What is put in place together.
pub(super) trait Written {
    /// Returns its blocks.
    fn blocks(&mut self) -> impl Iterator<Item = &mut Block>;

    /// Returns the same blocks, with their images; `None` stands for a block that was written in place.
    fn images(&self) -> impl Iterator<Item = (&Block, Option<&[u8]>)>;
}

/// Copies images into their blocks. Opens and closes write views only once for all that are open only during copies.
pub(super) fn write_all<W: Written>(all: &mut [W]) -> Result<(), FinalizeError> {
    for block in all.iter_mut().flat_map(W::blocks) {
        if !block.store().fork.is_same_process() {
            return Err(FinalizeError::Forked { address: block.address() });
        }
        block.bytes = Bytes::Written;
    }
    let images = || all.iter().flat_map(W::images);
    let opened = images().map(|(block, _)| block.pack().memory.open());
    // Without those that need no window: then there is no list, and nothing from the heap.
    let opened = opened.filter(|opened| !matches!(opened, Ok(opened) if !opened.is_needed()));
    let opened = opened.collect::<Result<Vec<_>, _>>()?;
    for (block, image) in images() {
        if let Some(image) = image {
            // SAFETY: 1. the blocks are borrowed for this call alone, and each comes once.
            unsafe { block.copy(image) }?;
        }
        block.clean();
    }
    opened.into_iter().try_for_each(Opened::close)?;
    Ok(())
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.store().fork.is_same_process() {
            return;
        }
        if self.bytes == Bytes::Written {
            let (offset, len) = self.place.range();
            let filled = match self.pack().kind {
                // SAFETY: 1. the block's chunks; 2. which nobody else knows, since it was never published.
                Kind::Code => unsafe { self.pack().memory.fill_traps(offset, len) },
                Kind::ReadOnlyData | Kind::ReadWriteData => Ok(()),
            };
            if filled.is_err() {
                // Memory that cannot be filled with traps is never used again.
                return;
            }
        }
        self.store().give_back(&[self.place]);
    }
}
