//! Finds places for programs in the packs.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use palimpsest_sys::arch::INSTRUCTION_ALIGN;
use palimpsest_sys::random_below;

use super::block::Block;
use super::contents::{Pack, Place};
use super::directory::{Directory, FreeEntries};
use super::error::StageError;
use super::memory::{Kind, OnRefusal, PackMemory, Plan};
use super::shard::Shard;
use super::slot::{Home, Slot, State};
use super::store::Store;
use super::{CHUNK, CHUNKS, MAX_ALIGN, PACK};
use crate::chunks::ChunkMap;

impl Store {
    /// Takes a place for `len` bytes at a multiple of `align` bytes.
    pub(super) fn allocate(
        &self,
        shard: &Arc<Shard>,
        kind: Kind,
        len: usize,
        align: usize,
    ) -> Result<Block, StageError> {
        if len == 0 {
            return Err(StageError::Empty);
        }
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(StageError::Align { align });
        }
        if len > self.region.len() {
            return Err(StageError::TooLong { len, region: self.region.len() });
        }
        // Lossless: a region is at most 2 GiB.
        let chunks = len.div_ceil(CHUNK) as u32;
        let place = if chunks > CHUNKS {
            self.place_run(kind, len, chunks)?
        } else {
            self.place(shard, kind, len, chunks, align.div_ceil(CHUNK) as u32)?
        };
        let slack = chunks as usize * CHUNK - len;
        let start = place.first_chunk as usize * CHUNK + random_step(kind, slack, align);
        // SAFETY: 1. just taken; packs with taken chunks are kept. 2. the step stays within the slack.
        Ok(unsafe { Block::new(Arc::clone(shard), place, start as u32, len as u32) })
    }

    fn place(&self, shard: &Shard, kind: Kind, len: usize, chunks: u32, align: u32) -> Result<Place, StageError> {
        if kind == Kind::Code && shard.tally().wants_a_home() {
            self.make_a_home(shard);
        }
        self.until_there_is_room(len, |this| {
            if let Some(place) = self.find_place(shard, kind, chunks, align) {
                return Ok(Some(place));
            }
            if this == Attempt::First && self.retired_bytes() > 0 {
                // Waiting is cheaper than another pack.
                return Ok(None);
            }
            let _growing = self.grow.lock().unwrap_or_else(PoisonError::into_inner);
            // Another thread may have added a pack while this one waited.
            if let Some(place) = self.find_place(shard, kind, chunks, align) {
                return Ok(Some(place));
            }
            let Some(slot) = self.vacant_slots(1) else { return Ok(None) };
            let mut pack = NewPack::empty(kind, self.new_memory(slot, PACK, kind)?);
            // Taken before others see the pack.
            let taken = pack.take(slot, chunks, align);
            self.install_pack(slot, shard.home_of_new_packs(), pack);
            Ok(taken)
        })
    }

    /// Tries, reclaims and tries again as long as that frees something, unless the policy forbids reclaiming.
    fn until_there_is_room(
        &self,
        len: usize,
        attempt: impl Fn(Attempt) -> Result<Option<Place>, StageError>,
    ) -> Result<Place, StageError> {
        /// Other threads may take what is freed again and again.
        const ROUNDS: usize = 64;
        /// How long to wait for another thread that is about to free memory; an observer that loads would wait for
        /// itself.
        const PATIENCE: Duration = Duration::from_millis(50);
        /// Minimum number of yields before giving up: on a busy machine others may use all that time.
        const TURNS: usize = 100;
        // Nearly every load finds room at once, and does not read the clock.
        let mut began = None;
        let mut this = Attempt::First;
        let (mut rounds, mut turns) = (0, 0);
        while rounds < ROUNDS {
            let freed = self.counters.frees.get();
            if let Some(place) = attempt(this)? {
                return Ok(place);
            }
            self.reclaim_for_room();
            // What another thread has freed meanwhile counts too.
            let is_stuck = this == Attempt::AfterReclaim && self.counters.frees.get() == freed;
            if !is_stuck {
                rounds += 1;
            } else if self.is_freeing()
                && (began.get_or_insert_with(Instant::now).elapsed() < PATIENCE || turns < TURNS)
            {
                turns += 1;
                std::thread::yield_now();
            } else {
                break;
            }
            this = Attempt::AfterReclaim;
        }
        attempt(Attempt::AfterReclaim)?.ok_or_else(|| self.full(len))
    }

    /// Searches by first fit: the shard's own packs, then those of no shard that are not busy, then all that are not
    /// busy, then all.
    fn find_place(&self, shard: &Shard, kind: Kind, chunks: u32, align: u32) -> Option<Place> {
        // Acquire, partner: the Release in `install_pack`; a slot's contents are under its lock.
        let slots = &self.slots[..self.used_slots.load(Ordering::Acquire)];
        let candidates = || slots.iter().enumerate().filter(|(_, slot)| slot.may_have(kind, chunks));
        let lock_and_take = |(index, slot): (usize, &Slot)| take(index, slot, &mut slot.lock(), kind, chunks, align);
        let try_and_take = |(index, slot): (usize, &Slot)| {
            let Some(mut state) = slot.try_lock() else {
                shard.tally().note_contention();
                return None;
            };
            take(index, slot, &mut state, kind, chunks, align)
        };
        let home = shard.home();
        candidates()
            .filter(|(_, slot)| slot.home() == home)
            .find_map(lock_and_take)
            .or_else(|| candidates().filter(|(_, slot)| slot.home() == Home::OfNobody).find_map(try_and_take))
            .or_else(|| candidates().find_map(try_and_take))
            .or_else(|| candidates().find_map(lock_and_take))
    }

    /// Makes a pack that the threads of other shards leave alone while they have room elsewhere. If it cannot be made,
    /// nothing changes.
    #[cold]
    fn make_a_home(&self, shard: &Shard) {
        let _growing = self.grow.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = self.vacant_slots(1)
            && let Ok(memory) = self.new_memory(slot, PACK, Kind::Code)
        {
            self.install_pack(slot, shard.home(), NewPack::empty(Kind::Code, memory));
        }
        shard.tally().settle();
    }

    /// Takes a run of whole slots for a program longer than a pack.
    fn place_run(&self, kind: Kind, len: usize, chunks: u32) -> Result<Place, StageError> {
        self.until_there_is_room(len, |_| {
            let _growing = self.grow.lock().unwrap_or_else(PoisonError::into_inner);
            let count = len.div_ceil(PACK);
            let Some(first) = self.vacant_slots(count) else { return Ok(None) };
            let memory = self.new_memory(first, count * PACK, kind)?;
            let directory = Directory::new(1);
            let entry = directory.reserve(&mut FreeEntries::default());
            let pack = NonNull::from(Box::leak(Box::new(Pack { memory, directory, kind })));
            for slot in &self.slots[first..first + count] {
                *slot.lock() = State::RunTail;
                // Release, partner: the Acquire loads of `Store::find` and `pack_in`. Forbids a reader that sees the
                // pack without its fields.
                slot.pack.store(pack.as_ptr(), Ordering::Release);
            }
            *self.slots[first].lock() = State::RunHead { slots: count as u32 };
            self.note_used(first + count);
            Ok(Some(Place { pack, slot: first as u32, first_chunk: 0, chunks, entry }))
        })
    }

    /// Returns the first of `count` vacant slots in a row. The caller holds `grow`, so that they stay vacant.
    fn vacant_slots(&self, count: usize) -> Option<usize> {
        self.bury();
        let mut run = 0;
        for (index, slot) in self.slots.iter().enumerate() {
            run = if matches!(*slot.lock(), State::Vacant) { run + 1 } else { 0 };
            if run == count {
                return Some(index + 1 - count);
            }
        }
        None
    }

    fn new_memory(&self, slot: usize, len: usize, kind: Kind) -> Result<PackMemory, StageError> {
        let memory = PackMemory::new(&Plan {
            region: &self.region,
            offset: slot * PACK,
            len,
            kind,
            backing: self.backing,
            node: self.config.node,
            write_view: self.config.write_view_of(self.backing),
            branch_targets: self.config.branch_targets,
            fork: self.config.fork,
            on_refusal: OnRefusal::UseBasePages,
            profiling: self.config.profiling(),
        })
        .map_err(|source| StageError::Grow { packs: self.stats().packs, source })?;
        if let Some(reason) = memory.downgraded() {
            tracing::warn!(%reason, address = memory.base(), "a pack is in base pages, though huge ones were wanted");
        }
        Ok(memory)
    }

    /// Puts a pack into a vacant slot.
    pub(super) fn install_pack(&self, index: usize, home: Home, new: NewPack) {
        let NewPack { pack, map, entries, kind } = new;
        let slot = &self.slots[index];
        let mut state = slot.lock();
        slot.set_hint(kind, map.chunks() - map.used());
        slot.set_home(home);
        *state = State::Pack { map, entries };
        // Release, partner: the Acquire loads of `Store::find` and `pack_in`. Forbids a reader that sees the pack
        // without its fields.
        slot.pack.store(pack.as_ptr(), Ordering::Release);
        drop(state);
        self.note_used(index + 1);
    }

    fn note_used(&self, slots: usize) {
        // Release, partner: the Acquire load in `find_place`.
        self.used_slots.fetch_max(slots, Ordering::Release);
    }

    fn full(&self, len: usize) -> StageError {
        StageError::Full { len, region: self.region.len(), retired: self.retired_bytes() }
    }
}

/// Which attempt to find room this is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    AfterReclaim,
}

/// A pack that nobody else sees yet.
pub(super) struct NewPack {
    pack: NonNull<Pack>,
    map: ChunkMap<Box<[u64]>>,
    entries: FreeEntries,
    kind: Kind,
}

impl NewPack {
    pub(super) fn empty(kind: Kind, memory: PackMemory) -> Self {
        let words = vec![0; (CHUNKS as usize).div_ceil(64)].into_boxed_slice();
        let pack = Box::new(Pack { memory, directory: Directory::new(CHUNKS), kind });
        let pack = NonNull::from(Box::leak(pack));
        Self { pack, map: ChunkMap::new(words, CHUNKS), entries: FreeEntries::default(), kind }
    }

    /// Takes chunks for the thread that has made the pack.
    fn take(&mut self, slot: usize, chunks: u32, align: u32) -> Option<Place> {
        let first_chunk = self.map.allocate(chunks, align)?;
        // SAFETY: leaked in `empty`, and nobody else has it.
        let entry = unsafe { self.pack.as_ref() }.directory.reserve(&mut self.entries);
        Some(Place { pack: self.pack, slot: slot as u32, first_chunk, chunks, entry })
    }
}

/// Takes chunks in one slot, if it is a pack of that kind and has enough. The caller holds the slot's lock.
fn take(index: usize, slot: &Slot, state: &mut State, kind: Kind, chunks: u32, align: u32) -> Option<Place> {
    // Acquire, partner: the Release store in `install_pack`.
    let pack = NonNull::new(slot.pack.load(Ordering::Acquire))?;
    // SAFETY: packs are removed from their slot only under the lock, which the caller holds.
    let Pack { directory, kind: found, .. } = unsafe { pack.as_ref() };
    let State::Pack { map, entries } = state else { return None };
    if *found != kind {
        return None;
    }
    let Some(first_chunk) = map.allocate(chunks, align) else {
        if align == 1 {
            slot.set_hint(kind, (chunks - 1).min(map.chunks() - map.used()));
        }
        return None;
    };
    slot.lower_hint(kind, map.chunks() - map.used());
    let entry = directory.reserve(entries);
    Some(Place { pack, slot: index as u32, first_chunk, chunks, entry })
}

/// Returns how far into its slack a program starts: a random multiple of its alignment, so that addresses are hard to
/// guess.
fn random_step(kind: Kind, slack: usize, align: usize) -> usize {
    let align = align.max(INSTRUCTION_ALIGN).max(4);
    match (kind, slack / align) {
        // The slack is less than a chunk, so that there are at most 15 steps.
        (Kind::Code, steps @ 1..) => random_below(steps + 1) * align,
        _ => 0,
    }
}
