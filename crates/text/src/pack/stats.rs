//! Numbers about packs.

use std::ops::Range;

use palimpsest_sys::numa::placement::Place;
use palimpsest_sys::numa::policy::NumaError;

use super::CHUNK;
use super::backing::Backing;
use super::contents::Pack;
use super::memory::Kind;
use super::policy::WriteView;
use super::slot::State;
use super::store::Store;
use super::tally::{Counter, Tally};

/// A snapshot of what packs hold. Counts code and data together, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// What the packs are made of.
    pub backing: Backing,
    /// When the memory of code can be written.
    pub write_view: WriteView,
    /// Number of packs; a program longer than a pack counts as many as it fills.
    pub packs: usize,
    /// Number of packs in base pages, though huge ones were wanted.
    pub downgraded_packs: usize,
    /// Number of programs and data, in place or retired.
    pub programs: usize,
    /// Bytes in taken chunks: of programs, data, staged images, and what is retired.
    pub used_bytes: usize,
    /// Bytes in packs.
    pub reserved_bytes: usize,
    /// Bytes of address space for packs.
    pub region_bytes: usize,
    /// The longest free piece in packs of any kind, in bytes.
    pub largest_free_run: usize,
    /// Bytes in chunks of programs and data that are retired and not yet reclaimed.
    pub retired_bytes: usize,
    /// Threads that are pinned at the moment.
    pub pinned_threads: usize,
    /// Programs and data put in place so far.
    pub loads: u64,
    /// Programs and data reclaimed so far.
    pub frees: u64,
    /// Ranges that were refilled with traps so far.
    pub refills: u64,
    /// Rounds of reclaiming so far that found something to look at.
    pub reclaims: u64,
    /// Core synchronisations so far.
    pub core_syncs: u64,
    /// Flushes of the instruction cache so far: one for each program (which does nothing on x86-64).
    pub cache_flushes: u64,
    /// How often write views of the present packs were opened ([`WriteView::DuringCopies`]).
    pub view_openings: u64,
    /// Calls of observers that failed so far.
    pub observer_errors: u64,
    /// Mappings of this process that the packs use; the region and the fork witness use a few more.
    pub mappings: usize,
}

/// How many bytes of the executable views are really mapped by huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugeMapped {
    /// Bytes mapped by page middle directory entries, according to `/proc/self/smaps`.
    pub bytes: usize,
    /// Bytes in packs for code.
    pub reserved_bytes: usize,
}

impl Store {
    pub(super) fn stats(&self) -> Stats {
        let mut stats = self.stats_without_packs();
        for slot in &self.slots[..] {
            let state = slot.lock();
            let Some(pack) = self.pack_in(slot) else { continue };
            match &*state {
                State::Pack { map, .. } => {
                    stats.packs += 1;
                    stats.used_bytes += map.used() as usize * CHUNK;
                    stats.largest_free_run = stats.largest_free_run.max(map.largest_free_run() as usize * CHUNK);
                }
                State::RunHead { slots } => {
                    stats.packs += *slots as usize;
                    stats.used_bytes += pack.memory.len();
                }
                State::Vacant | State::RunTail | State::Leaving => continue,
            }
            stats.reserved_bytes += pack.memory.len();
            stats.view_openings += pack.memory.openings();
            stats.mappings += pack.memory.mappings();
            stats.downgraded_packs += usize::from(pack.memory.downgraded().is_some());
        }
        stats
    }

    pub(super) fn stats_without_packs(&self) -> Stats {
        let counters = &self.counters;
        let sum = |counter: fn(&Tally) -> &Counter| self.tallies.iter().map(|tally| counter(tally).get()).sum::<u64>();
        // Reads frees before loads: a program that comes and goes in between must not count as minus one.
        let frees = counters.frees.get();
        let loads = sum(|tally| &tally.loads);
        Stats {
            backing: self.backing,
            write_view: self.config.write_view_of(self.backing),
            packs: 0,
            downgraded_packs: 0,
            programs: loads.saturating_sub(frees) as usize,
            used_bytes: 0,
            reserved_bytes: 0,
            region_bytes: self.region.len(),
            largest_free_run: 0,
            retired_bytes: self.retired_bytes(),
            pinned_threads: self.epochs.epochs.pinned(),
            loads,
            frees,
            refills: counters.refills.get(),
            reclaims: counters.reclaims.get(),
            core_syncs: self.sync.syncs(),
            cache_flushes: sum(|tally| &tally.cache_flushes),
            view_openings: 0,
            observer_errors: counters.observer_errors.get(),
            mappings: 0,
        }
    }

    /// Returns why some pack's memory could not be requested from its node.
    pub(super) fn unplaced(&self) -> Option<NumaError> {
        self.with_each_pack(|pack| pack.memory.unplaced()).flatten().next()
    }

    /// Returns where each page of all packs is.
    pub(super) fn places(&self) -> Result<Vec<Place>, NumaError> {
        let all: Result<Vec<_>, _> = self.with_each_pack(|pack| pack.memory.places()).collect();
        Ok(all?.concat())
    }

    /// Returns the addresses of every pack for code.
    pub(super) fn code_ranges(&self) -> Vec<Range<usize>> {
        let range = |pack: &Pack| pack.memory.base()..pack.memory.base() + pack.memory.len();
        self.with_each_pack(|pack| (pack.kind == Kind::Code).then(|| range(pack))).flatten().collect()
    }

    /// Returns what `of` returns for each pack, with the pack's lock held.
    fn with_each_pack<'s, T>(&'s self, of: impl Fn(&Pack) -> T + 's) -> impl Iterator<Item = T> + 's {
        self.slots.iter().filter_map(move |slot| {
            let state = slot.lock();
            let is_one = matches!(*state, State::Pack { .. } | State::RunHead { .. });
            self.pack_in(slot).filter(|_| is_one).map(&of)
        })
    }
}
