//! A slot of the region: 2 MiB of addresses that are vacant, a pack, or part of a run.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::CHUNKS;
use super::contents::Pack;
use super::directory::FreeEntries;
use super::memory::Kind;
use crate::chunks::ChunkMap;
use crate::primitive::{AtomicPtr, AtomicU32, AtomicUsize};

/// The use of a slot. Changes only under its lock.
pub(super) enum State {
    Vacant,
    Pack {
        map: ChunkMap<Box<[u64]>>,
        entries: FreeEntries,
    },
    /// The first slot of a run; the others are `RunTail`.
    RunHead {
        slots: u32,
    },
    RunTail,
    /// Out of use, but not unmapped yet, since a reader may see it.
    Leaving,
}

/// See the module's documentation.
pub(super) struct Slot {
    /// The pack, which [`lookup`](super::Packs::lookup) reads without a lock; null while vacant. Written under
    /// `state`'s lock. Every slot of a run points to the same pack.
    pub(super) pack: AtomicPtr<Pack>,
    /// A guess that saves the allocator useless locking: the kind in the upper half, and in the lower an upper bound of
    /// the longest free run, in chunks, at the last look. Written under `state`'s lock.
    hint: AtomicU32,
    /// The shard whose threads look here first: its number plus one, or zero for none. Written by threads that make or
    /// release the pack, read by anybody.
    home: AtomicUsize,
    /// Locked by threads that place into the pack, give back, make or unmap it.
    state: Mutex<State>,
}

/// The shard whose threads look into a pack first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    OfNobody,
    OfShard(usize),
}

impl Slot {
    pub(super) fn new() -> Self {
        Self {
            pack: AtomicPtr::new(std::ptr::null_mut()),
            hint: AtomicU32::new(0),
            home: AtomicUsize::new(0),
            state: Mutex::new(State::Vacant),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock, unless another thread holds it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn home(&self) -> Home {
        // Relaxed, here and below: a preference.
        match self.home.load(Ordering::Relaxed) {
            0 => Home::OfNobody,
            number => Home::OfShard(number - 1),
        }
    }

    pub(super) fn set_home(&self, home: Home) {
        let number = match home {
            Home::OfNobody => 0,
            Home::OfShard(number) => number + 1,
        };
        self.home.store(number, Ordering::Relaxed);
    }

    /// Returns whether a look into the slot is worth its lock.
    pub(super) fn may_have(&self, kind: Kind, chunks: u32) -> bool {
        // Relaxed: a guess, verified under the lock.
        let hint = self.hint.load(Ordering::Relaxed);
        hint >> 16 == kind as u32 && hint & 0xFFFF >= chunks
    }

    /// Sets the guess; called under the lock.
    pub(super) fn set_hint(&self, kind: Kind, longest_run: u32) {
        const { assert!(CHUNKS <= 0xFFFF) };
        // Relaxed: a guess.
        self.hint.store((kind as u32) << 16 | longest_run, Ordering::Relaxed);
    }

    /// Lowers the guess to `free` chunks, if it is higher; called under the lock.
    pub(super) fn lower_hint(&self, kind: Kind, free: u32) {
        // Relaxed: a guess.
        let longest_run = self.hint.load(Ordering::Relaxed) & 0xFFFF;
        self.set_hint(kind, longest_run.min(free));
    }

    /// Notes that the slot has no free chunks; called under the lock.
    pub(super) fn clear_hint(&self) {
        self.hint.store(0, Ordering::Relaxed);
    }
}
