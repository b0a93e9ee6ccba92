//! Records of units. They lie apart from the blocks, so that allocating and freeing write to no block.
//!
//! Records consist of atomics, each accessed `Relaxed`: they are plain memory, and the locks order the accesses. Who
//! may touch what:
//!
//! | the unit is | fields | owner |
//! |---|---|---|
//! | first or last of a free run | `kind`, `len`, `dirty`, `head`, `previous`, `next` | the lock of the runs |
//! | first of a slab | `live`, `fresh`, `hint`, `bitmap`, `previous`, `next` | the lock of the bin `class`, `shard` |
//! | in a slab or run | `kind`, `class`, `shard`, `head`, `dirty`, `len` | nobody: constant while it has a block in use |
//!
//! A thread that frees a block reads the constant fields without a lock: they were written before the block was handed
//! out, and whoever passed the pointer to this thread has ordered that.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// No unit: the first one is never handed out, so that zeroed memory is a valid start.
pub(super) const NONE: u32 = 0;

/// Words of a slab's bitmap: one bit for each of 4096 blocks.
pub(super) const WORDS: usize = 64;

/// What a unit is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    /// Not in use. Zero, as untouched records read.
    Free = 0,
    /// A slab.
    Slab = 1,
    /// A run of whole units that is one block.
    Run = 2,
}

/// A field of a record.
#[derive(Default)]
#[repr(transparent)]
pub(super) struct Field(AtomicU32);

impl Field {
    #[inline]
    pub(super) fn get(&self) -> u32 {
        // Relaxed here and in all of this module: the locks order the accesses; see the module.
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The record of one unit.
#[repr(C, align(64))]
pub(super) struct Unit {
    kind: AtomicU8,
    class: AtomicU8,
    shard: AtomicU8,
    /// Index of the first unit of the slab or run.
    pub(super) head: Field,
    /// Units of the run or slab.
    pub(super) len: Field,
    /// This many of its first units may hold something other than zeros.
    pub(super) dirty: Field,
    pub(super) previous: Field,
    pub(super) next: Field,
    /// Blocks in use.
    pub(super) live: Field,
    /// The first block that was never handed out.
    pub(super) fresh: Field,
    /// The first word of the bitmap that may have a free block.
    pub(super) hint: Field,
    /// Blocks that were handed out and returned.
    bitmap: [AtomicU64; WORDS],
}

impl Unit {
    #[inline]
    pub(super) fn kind(&self) -> Kind {
        match self.kind.load(Ordering::Relaxed) {
            1 => Kind::Slab,
            2 => Kind::Run,
            _ => Kind::Free,
        }
    }

    #[inline]
    pub(super) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Ordering::Relaxed);
    }

    /// Returns class and shard of the slab.
    #[inline]
    pub(super) fn bin(&self) -> (u8, u8) {
        (self.class.load(Ordering::Relaxed), self.shard.load(Ordering::Relaxed))
    }

    pub(super) fn set_bin(&self, class: u8, shard: u8) {
        self.class.store(class, Ordering::Relaxed);
        self.shard.store(shard, Ordering::Relaxed);
    }

    /// Takes a returned block, if there is one.
    #[inline]
    pub(super) fn take_returned(&self) -> Option<u32> {
        let first = self.hint.get() as usize;
        let words = self.bitmap.get(first..)?;
        for (offset, word) in words.iter().enumerate() {
            let bits = word.load(Ordering::Relaxed);
            if bits != 0 {
                word.store(bits & (bits - 1), Ordering::Relaxed);
                // Both below 64.
                self.hint.set((first + offset) as u32);
                return Some((first + offset) as u32 * 64 + bits.trailing_zeros());
            }
        }
        self.hint.set(WORDS as u32);
        None
    }

    /// Notes that `block` was returned. Returns false if it was already.
    #[inline]
    pub(super) fn put_back(&self, block: u32) -> bool {
        let index = block / 64;
        let bit = 1_u64 << (block % 64);
        let Some(word) = self.bitmap.get(index as usize) else { return false };
        let bits = word.load(Ordering::Relaxed);
        word.store(bits | bit, Ordering::Relaxed);
        self.hint.set(self.hint.get().min(index));
        bits & bit == 0
    }

    /// Whether `block` has been returned.
    pub(super) fn is_returned(&self, block: u32) -> bool {
        let word = self.bitmap.get((block / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (block % 64)) != 0)
    }

    /// Forgets all blocks.
    pub(super) fn clear_bitmap(&self) {
        self.bitmap.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// The records of all units that have memory.
pub(super) struct Units {
    /// # Invariants
    ///
    /// `base..base + committed` is mapped for reading and writing as long as this exists, zeroed at first, and accessed
    /// as [`Unit`] only.
    base: *const Unit,
    /// Grows under the lock of the runs; anybody reads it.
    committed: AtomicU32,
}

// SAFETY: records consist of atomics, and the pointer stays valid wherever this moves.
unsafe impl Send for Units {}
// SAFETY: as above.
unsafe impl Sync for Units {}

impl Units {
    /// Makes records from `base` on, none of which has memory yet.
    ///
    /// # Safety
    ///
    /// 1. `base` is aligned for [`Unit`], and memory there is accessed only through this value while it exists.
    pub(super) const unsafe fn new(base: *const Unit) -> Self {
        Self { base, committed: AtomicU32::new(0) }
    }

    /// Notes that the first `count` records have memory.
    ///
    /// # Safety
    ///
    /// 1. They are mapped for reading and writing, and stay so while this exists.
    /// 2. New ones are zeros.
    pub(super) unsafe fn commit(&self, count: u32) {
        // Release: pairs with the load in `get`. An index reaches another thread with a block or a lock, which orders
        // this already; only for a wild pointer does the count decide.
        self.committed.store(count, Ordering::Release);
    }

    /// Returns how many records have memory.
    pub(super) fn count(&self) -> u32 {
        // Acquire: pairs with `commit`.
        self.committed.load(Ordering::Acquire)
    }

    /// Returns the record of unit `index`. Ends the process if there is none: a pointer was freed that never came from
    /// here.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &Unit {
        if index >= self.count() {
            super::misuse("a pointer that is not of this arena");
        }
        // SAFETY: below the committed count, so inside the mapping, by the invariant of `base`.
        let unit = unsafe { self.base.add(index as usize) };
        // SAFETY: mapped, aligned and valid as zeros by the same invariant; atomics may be shared.
        unsafe { &*unit }
    }
}
