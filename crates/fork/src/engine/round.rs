//! One round: everything that happens while the process is held still, for a freeze and for a repair alike.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::{Pagemap, ScanWay};
use palimpsest_sys::pages::vmas::{Detail, Label};
use palimpsest_sys::threads::own::Blocked;

use super::freeze::{Budget, Figures, Freezer, Stopped, chunk_len};
use super::frozen_map::Entry;
use super::guards::Guards;
use super::registry::{Held, Locked, State};
use super::repair::{Repaired, Repairer};
use super::span::Span;
use crate::error::FreezeError;
use crate::hazards::{FileSize, Headroom};
use crate::options::{Chunk, Options};

/// What a round did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) figures: Figures,
    pub(crate) repaired: Repaired,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) taken: Duration,
    pub(crate) way: ScanWay,
    pub(crate) chunk: usize,
    /// How long it took to look.
    pub(crate) looked: Duration,
    /// What a repair was expected to take, in nanoseconds.
    pub(crate) quote: u64,
}

/// Whether anything is to be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Only look.
    Survey,
    /// Freeze and repair.
    Freeze,
    /// The same, unless it is expected to take more nanoseconds than this.
    FreezeWithin(u64),
}

impl Locked {
    /// Plays one round. The caller has blocked signals, as `_blocked` shows, and holds other threads still. Nothing
    /// here uses the heap.
    ///
    /// # Safety
    ///
    /// 1. No other thread runs, and none is started; the kernel writes to none of the memory on behalf of earlier
    ///    requests.
    pub(crate) unsafe fn play(
        &mut self,
        mode: Mode,
        options: &Options,
        (pagemap, guards): (&Pagemap, &Guards),
        headroom: Headroom,
        _blocked: &Blocked,
    ) -> Result<Done, FreezeError> {
        let started = Instant::now();
        let round = self.shared.counters.rounds.load(Ordering::Relaxed) + 1;
        let result = self.inventory(options, round);
        let chunk = match options.chunk {
            // What is frozen already counts.
            Chunk::Auto => chunk_len(Chunk::Auto, self.eligible_bytes() + crate::frozen_bytes()),
            bytes => chunk_len(bytes, 0),
        };
        let mut done = Done {
            figures: Figures::default(),
            repaired: Repaired::default(),
            stopped: None,
            taken: Duration::ZERO,
            way: pagemap.way(),
            chunk,
            looked: started.elapsed(),
            quote: 0,
        };
        match result {
            Ok(()) => {}
            Err(Early::Refused(error)) => return Err(error),
            Err(Early::Stopped(stopped)) => {
                done.stopped = Some(stopped);
                return Ok(done);
            }
        }
        if let Mode::FreezeWithin(most) = mode {
            let counters = &self.shared.counters;
            let (per_mib, scale) = (counters.per_mib.load(Ordering::Relaxed), counters.scale.load(Ordering::Relaxed));
            // In the light of how the last quotes have turned out.
            done.quote = self.quote(round, per_mib).saturating_mul(scale) / SCALE;
            if done.quote > most {
                return Ok(done);
            }
        }
        if mode != Mode::Survey {
            let _file_size = FileSize::raise();
            let mut budget = Budget { mappings: headroom.mappings };
            let mut repairer = Repairer {
                state: &mut *self,
                pagemap,
                guards,
                round,
                budget: &mut budget,
                repaired: Repaired::default(),
            };
            // SAFETY: 1. is this function's own.
            let repair = unsafe { repairer.repair_all() };
            done.repaired = repairer.repaired;
            let figures = Figures::default();
            let mut freezer =
                Freezer { state: &mut *self, pagemap, guards, pages: options.pages, chunk, budget, figures };
            // SAFETY: 1. is this function's own.
            let freeze = unsafe { freezer.freeze_all() };
            done.figures = freezer.figures;
            done.stopped = repair.and(freeze).err();
            self.settle(chunk, round);
        }
        done.taken = started.elapsed();
        Ok(done)
    }

    /// Reads the mappings and plans, leaving out what was excluded before.
    fn inventory(&mut self, options: &Options, round: u64) -> Result<(), Early> {
        self.exclude_resting(round)?;
        self.excluded.sort_unstable_by_key(|excluded| excluded.span);
        self.vmas.read(Detail::Figures).map_err(FreezeError::from)?;
        self.extents.iter_mut().for_each(Held::look_again);
        if self.shared.has_erased() {
            let map = &self.shared.map;
            for held in self.extents.iter_mut() {
                let is_its_own = |entry: Entry| entry.is_erased() && entry.extent() == Some(held.serial);
                held.is_erased = map.find(|_, entry| is_its_own(entry)).is_some();
            }
        }
        self.plan(options.least).map_err(Stopped::from)?;
        Ok(())
    }

    /// Forgets extents that nothing maps any more, and brings the figures up to date.
    fn settle(&mut self, chunk: usize, round: u64) {
        let shared = self.shared;
        // The mappings have changed, so extents that a repair has emptied are seen only by a new reading. If that
        // fails, they are kept, and the map says nothing that it is sure of.
        let state: &mut State = &mut *self;
        let is_read = state.vmas.read(Detail::Places).is_ok();
        state.extents.iter_mut().for_each(Held::look_again);
        if is_read {
            shared.map.clear();
            shared.forget_replacements();
            shared.forget_erased();
            let mut has_erased = false;
            let (mut bytes, mut open, mut said) = (0, Span::default(), None);
            for index in 0..state.vmas.len() {
                let vma = state.vmas[index];
                let entry = match state.held(FileId { device: vma.device, inode: vma.inode }) {
                    Some(held) if held.is_view(&vma) => {
                        held.see(&vma);
                        Entry::of_view(held.serial)
                    }
                    Some(held) => {
                        held.seen = true;
                        bytes += vma.range().len();
                        let entry = Entry::new(vma.permissions, held.flags, held.serial);
                        has_erased |= held.is_erased;
                        if held.is_erased { entry.erased() } else { entry }
                    }
                    None if vma.label == Label::Snapshot && !vma.permissions.contains(Permissions::SHARED) => {
                        Entry::of_snapshot(vma.permissions)
                    }
                    None => continue,
                };
                if open.end == vma.start && said == Some(entry) {
                    open.end = vma.end;
                    continue;
                }
                if let Some(said) = said {
                    shared.map.append(open, said);
                }
                (open, said) = (vma.range().into(), Some(entry));
            }
            if let Some(said) = said {
                shared.map.append(open, said);
            }
            if has_erased {
                shared.note_erased();
            }
            let mut kept = 0;
            for index in 0..state.extents.len() {
                let mut held = state.extents[index];
                if !held.seen {
                    held.drop_view();
                    continue;
                }
                state.extents[kept] = held;
                kept += 1;
            }
            state.extents.truncate(kept);
            let State { contents, extents, .. } = state;
            contents.retain(|serial| extents.iter().any(|held| held.serial == serial));
            // Relaxed, here and below: figures for reading.
            shared.counters.frozen_bytes.store(bytes, Ordering::Relaxed);
            shared.counters.chunks.store(kept, Ordering::Relaxed);
        } else {
            shared.map.doubt();
        }
        let resting = state.hot.iter().filter(|piece| piece.is_resting(round)).count();
        shared.counters.hot_pieces.store(resting, Ordering::Relaxed);
        shared.counters.rounds.store(round, Ordering::Relaxed);
        shared.counters.chunk.store(chunk, Ordering::Relaxed);
    }
}

/// What quotes are multiplied by, as the unit of [`Counters::scale`](super::registry::Counters).
pub(crate) const SCALE: u64 = 1 << 10;

/// Why a round ended before it began.
enum Early {
    Refused(FreezeError),
    Stopped(Stopped),
}

impl From<FreezeError> for Early {
    fn from(error: FreezeError) -> Self {
        Self::Refused(error)
    }
}

impl From<Stopped> for Early {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}
