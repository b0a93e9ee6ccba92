//! Gives places and packs back.

use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::PACK;
use super::contents::{LaidOut, Meta, Place};
use super::directory::Directory;
use super::slot::{Home, State};
use super::store::Store;

/// Maximum number of places given back under one lock: loaders wait for it.
const AT_ONCE: usize = 64;

/// Which empty packs to give back to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thrift {
    /// Not those that a shard would soon make again.
    KeepHomes,
    /// All but one of each kind.
    Strict,
}

impl Store {
    /// Gives places back; fastest if those of one slot stand together, the last first. Nobody is inside, and nobody
    /// finds them any more.
    pub(super) fn give_back(&self, vacated: &[Place]) {
        for places in vacated.chunk_by(|one, next| one.slot == next.slot).flat_map(|places| places.chunks(AT_ONCE)) {
            self.give_back_to(places[0].slot as usize, places);
        }
    }

    /// Gives back the chunks after the first `kept` of a place that is in no run.
    pub(super) fn give_back_behind(&self, place: &Place, kept: u32) {
        let slot = &self.slots[place.slot as usize];
        let mut state = slot.lock();
        match &mut *state {
            State::Pack { map, .. } => {
                map.release(place.first_chunk + kept, place.chunks - kept);
                if let Some(pack) = self.pack_in(slot) {
                    slot.set_hint(pack.kind, map.chunks() - map.used());
                }
            }
            _ => unreachable!("slot {} has no programs, but a part of {place:?} is to be given back", place.slot),
        }
    }

    fn give_back_to(&self, index: usize, places: &[Place]) {
        let slot = &self.slots[index];
        let mut state = slot.lock();
        let out_of_use = match &mut *state {
            State::Pack { map, entries } => {
                // At once what lies side by side.
                for run in places.chunk_by(|one, next| next.end_chunk() == one.first_chunk) {
                    let first = run[run.len() - 1].first_chunk;
                    map.release(first, run[0].end_chunk() - first);
                }
                for place in places {
                    Directory::<Meta>::recycle(entries, place.entry);
                }
                if let Some(pack) = self.pack_in(slot) {
                    slot.set_hint(pack.kind, map.chunks() - map.used());
                }
                None
            }
            State::RunHead { .. } => Some(self.take_out(index, &mut state)),
            State::Vacant | State::RunTail | State::Leaving => {
                unreachable!("slot {index} has no programs, but is to take back {places:?}")
            }
        };
        drop(state);
        if let Some(pack) = out_of_use {
            self.lay_out(pack);
            self.bury();
        }
    }

    /// Takes empty packs out of use, except the lowest of each kind, and except homes unless `thrift` is strict.
    /// Returns how many.
    pub(super) fn release_empty_packs(&self, thrift: Thrift) -> usize {
        let mut spared = [false; 3];
        let mut released = 0;
        // Acquire, partner: the Release in `note_used`.
        for index in 0..self.used_slots.load(Ordering::Acquire) {
            let slot = &self.slots[index];
            let mut state = slot.lock();
            let (State::Pack { map, .. }, Some(pack)) = (&*state, self.pack_in(slot)) else { continue };
            let spare = &mut spared[pack.kind as usize - 1];
            let is_kept = thrift == Thrift::KeepHomes && slot.home() != Home::OfNobody;
            if map.used() > 0 || is_kept || !std::mem::replace(spare, true) {
                continue;
            }
            if let Home::OfShard(number) = slot.home() {
                self.tallies[number].unsettle();
            }
            let pack = self.take_out(index, &mut state);
            drop(state);
            self.lay_out(pack);
            released += 1;
        }
        self.bury();
        released
    }

    /// Removes an empty pack, or a run, from its slots. The slots stay taken until it is buried. The caller holds the
    /// first slot's lock.
    fn take_out(&self, first: usize, state: &mut State) -> LaidOut {
        let count = match *state {
            State::RunHead { slots } => slots as usize,
            _ => 1,
        };
        *state = State::Leaving;
        self.slots[first].clear_hint();
        let mut pack = ptr::null_mut();
        for slot in &self.slots[first..first + count] {
            // AcqRel: Acquire, partner: the Release stores that put it there. `Readers::leave` waits for readers who
            // still see it.
            pack = slot.pack.swap(ptr::null_mut(), Ordering::AcqRel);
        }
        let pack = NonNull::new(pack).unwrap_or_else(|| unreachable!("slot {first} has no pack to take out"));
        LaidOut { first, pack }
    }

    /// Queues a pack for burial.
    fn lay_out(&self, pack: LaidOut) {
        self.graveyard.lock().unwrap_or_else(PoisonError::into_inner).push(pack);
    }

    /// Unmaps packs that are out of use, if no reader can see them any more.
    pub(super) fn bury(&self) {
        let mut graveyard = self.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        if graveyard.is_empty() || !self.readers.leave() {
            return;
        }
        for LaidOut { first, pack } in graveyard.drain(..) {
            // SAFETY: leaked when it was installed, removed from its slots once, and no reader sees it any more.
            let pack = unsafe { Box::from_raw(pack.as_ptr()) };
            let count = pack.memory.len() / PACK;
            drop(pack);
            for (index, slot) in self.slots.iter().enumerate().skip(first).take(count) {
                // A place that the kernel did not give back is never used again.
                let is_free = self.region.is_free(index * PACK, PACK);
                *slot.lock() = if is_free { State::Vacant } else { State::Leaving };
            }
        }
    }

    /// Ends everything that is left, when nobody holds anything of the store any more.
    pub(super) fn forget_everything(&mut self) {
        let state = self.reclaiming.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (mut unannounced, announced) = state.take_everything();
        unannounced.extend(self.tallies.iter().flat_map(|tally| tally.retired.take_all()));
        for item in &unannounced {
            // SAFETY: published and not yet taken.
            self.announce(unsafe { item.as_ref() });
        }
        for item in unannounced.into_iter().chain(announced) {
            // SAFETY: as above, and nobody else refers to it any more.
            let meta = unsafe { item.as_ref() };
            // SAFETY: 1. no reader is left; 2. each entry comes once.
            drop(unsafe { meta.pack().directory.take(meta.place.entry) });
        }
        for index in 0..self.slots.len() {
            let mut state = self.slots[index].lock();
            if matches!(*state, State::Pack { .. } | State::RunHead { .. }) {
                let pack = self.take_out(index, &mut state);
                drop(state);
                self.lay_out(pack);
            }
        }
        self.bury();
    }
}
