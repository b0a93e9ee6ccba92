//! Retired programs on their way to free memory, and the witnesses that tell whether forked children may need them.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use palimpsest_sys::{ForkWitness, Heirs, RetiredWitness, SpareWitness, WitnessError};

use super::contents::Meta;
use super::error::ReclaimError;
use crate::primitive::AtomicU64;

/// What a call of [`Packs::reclaim`](super::Packs::reclaim) has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Programs and data whose memory is free now.
    pub programs: usize,
    /// Bytes of their chunks.
    pub bytes: usize,
    /// Packs given back to the system, not counting the runs of programs longer than a pack.
    pub packs: usize,
    /// Programs and data that a pinned thread may be inside of.
    pub waiting_for_threads: usize,
    /// Programs and data that a forked child may hold.
    pub waiting_for_children: usize,
    /// Programs and data that somebody was looking up at that moment.
    pub waiting_for_lookups: usize,
}

impl Reclaimed {
    /// Returns the number of programs and data that could not be reclaimed yet.
    pub fn waiting(&self) -> usize {
        self.waiting_for_threads + self.waiting_for_children + self.waiting_for_lookups
    }
}

impl std::iter::Sum for Reclaimed {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            programs: sum.programs + one.programs,
            bytes: sum.bytes + one.bytes,
            packs: sum.packs + one.packs,
            waiting_for_threads: sum.waiting_for_threads + one.waiting_for_threads,
            waiting_for_children: sum.waiting_for_children + one.waiting_for_children,
            waiting_for_lookups: sum.waiting_for_lookups + one.waiting_for_lookups,
        })
    }
}

/// What has been collected, by stage; items only move down.
pub(super) struct ReclaimState {
    /// Collected, each with the epoch of that time.
    pub(super) limbo: VecDeque<(u64, Item)>,
    /// Needed by no thread and no child, and found by no later reader.
    pub(super) unlinked: Vec<Item>,
    /// Not seen by any reader either.
    pub(super) unseen: Vec<Item>,
    /// Observers have been told too.
    pub(super) silent: Vec<Item>,
    /// This generation's witness; `None` where children cannot share the memory.
    witness: Option<ForkWitness>,
    /// The next witness, made while there was room for it: memory must be reclaimable especially when mappings or files
    /// run out.
    spare: Option<SpareWitness>,
    /// The witnesses of earlier generations that had heirs when last asked.
    past: Vec<(u64, RetiredWitness)>,
}

/// Whether forked children share the memory, so that they must be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    Forks,
    Nothing,
}

/// A retired program. Its entry stays readable until it is taken from the directory.
pub(super) type Item = NonNull<Meta>;

// SAFETY: items are entries of the store's directories, and belong to the holder of the state's lock.
unsafe impl Send for ReclaimState {}

impl ReclaimState {
    /// Makes an empty state, with a witness if forks are watched.
    pub(super) fn new(watch: Watch) -> Result<Self, WitnessError> {
        let (witness, spare) = match watch {
            Watch::Forks => (Some(SpareWitness::new()?.watch()?), Some(SpareWitness::new()?)),
            Watch::Nothing => (None, None),
        };
        let (limbo, unlinked, unseen, silent, past) = Default::default();
        Ok(Self { limbo, unlinked, unseen, silent, witness, spare, past })
    }

    /// Takes all items: those that observers have not been told of, and those that they have.
    pub(super) fn take_everything(&mut self) -> (Vec<Item>, Vec<Item>) {
        let limbo = self.limbo.drain(..).map(|(_, item)| item);
        let unannounced = limbo.chain(self.unlinked.drain(..)).chain(self.unseen.drain(..)).collect();
        (unannounced, std::mem::take(&mut self.silent))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limbo.is_empty() && self.unlinked.is_empty() && self.unseen.is_empty() && self.silent.is_empty()
    }

    /// Moves from limbo what was collected before `oldest_pin` and has no heirs. `born` is the store's generation.
    pub(super) fn leave_limbo(
        &mut self,
        born: &AtomicU64,
        oldest_pin: u64,
        done: &mut Reclaimed,
    ) -> Result<(), ReclaimError> {
        done.waiting_for_threads = self.limbo.iter().filter(|(tag, _)| *tag >= oldest_pin).count();
        if done.waiting_for_threads == self.limbo.len() {
            return Ok(());
        }
        let held = self.newest_generation_with_heirs(born)?;
        let before = std::mem::take(&mut self.limbo);
        self.unlinked.reserve(before.len());
        for (tag, item) in before {
            // SAFETY: in limbo, so still published.
            let meta = unsafe { item.as_ref() };
            if tag >= oldest_pin {
                self.limbo.push_back((tag, item));
            } else if held.is_some_and(|held| meta.born <= held) {
                done.waiting_for_children += 1;
                self.limbo.push_back((tag, item));
            } else {
                meta.pack().directory.unlink(meta.place.first_chunk);
                self.unlinked.push(item);
            }
        }
        Ok(())
    }

    /// Retires the current witness, asks all witnesses, and returns the newest generation with heirs.
    fn newest_generation_with_heirs(&mut self, born: &AtomicU64) -> Result<Option<u64>, ReclaimError> {
        self.begin_a_generation(born, || {})?;
        self.past.retain(|(_, witness)| witness.heirs() == Heirs::Some);
        Ok(self.past.iter().map(|(generation, _)| *generation).max())
    }

    /// Replaces the current witness by the next one, in the steps that the header of `reclaim` describes. Calls
    /// `between` wherever a fork may come between two steps.
    pub(super) fn begin_a_generation(
        &mut self,
        born: &AtomicU64,
        mut between: impl FnMut(),
    ) -> Result<(), WitnessError> {
        let Some(current) = &mut self.witness else { return Ok(()) };
        between();
        let next = match self.spare.take() {
            Some(spare) => spare.watch()?,
            None => SpareWitness::new()?.watch()?,
        };
        between();
        // Relaxed: stored only here, under the lock of this state.
        let generation = born.load(Ordering::Relaxed);
        // Release, partner: the Acquire load in `Store::generation`: the next witness is mapped before.
        born.store(generation + 1, Ordering::Release);
        between();
        let past = std::mem::replace(current, next).retire();
        self.past.push((generation, past));
        between();
        // Retiring has made room for it; if not, the next call tries again.
        self.spare = SpareWitness::new().ok();
        Ok(())
    }
}
