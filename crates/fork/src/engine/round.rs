//! One round: all that happens while the process is held still, in a freeze and in a repair alike.

use std::time::{self, Duration};

use palimpsest_sys::pages::pagemap::{Pagemap, ScanWay};
use palimpsest_sys::pages::vmas::Detail;
use palimpsest_sys::threads::own::Blocked;

use super::budget::{Budget, Stopped, Time};
use super::copy::{Counts, Freezer, extent_len};
use super::entry::Entry;
use super::glance::{Seen, glance};
use super::mending;
use super::piece::PIECE;
use super::plan::{Expected, Planner, Sees};
use super::prices::Memory;
use super::records::{Excluded, Held};
use super::registry::Shared;
use super::repair::{Repaired, Repairer, Scope};
use super::settle::settle;
use super::subject::work;
use super::tables::Tables;
use crate::clock::{WallMoment, nanos};
use crate::error::FreezeError;
use crate::hazards::{FileSize, Headroom};
use crate::options::{Options, Pause};
use crate::report::Skip;

/// What a round did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) figures: Counts,
    pub(crate) repaired: Repaired,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) taken: Duration,
    pub(crate) way: ScanWay,
    /// The length of extents.
    pub(crate) extent: usize,
    /// How long the look took.
    pub(crate) looked: Duration,
    /// How long freezing new memory took.
    pub(crate) froze: Duration,
    /// What the repair was expected to take, in nanoseconds.
    pub(crate) quote: u64,
    /// What the plan is worth.
    pub(crate) expected: Expected,
    /// What is frozen now.
    pub(crate) frozen: Memory,
    /// Whether there was an inventory: without one nothing was looked at and nothing was done.
    pub(crate) reach: Reach,
    /// How much of the work was done.
    pub(crate) portion: Portion,
    /// What was looked at.
    pub(crate) look: Look,
}

/// What a round looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// All mappings.
    Everything,
    /// Samples of those that matter.
    Samples,
}

/// How much of its work a round has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Portion {
    /// Everything that could be done.
    Whole,
    /// As much as there was time for; the rest needs another round.
    Part,
}

/// How far a round came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// It ended before it knew what there is.
    Stopped,
    /// A glance has seen too little for a plan.
    Unclear,
    /// It knows, and did what was asked.
    Known,
}

/// What a round may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Only look.
    Survey,
    /// Only look, and [only at samples](super::glance), while everybody is held: moves pages for a moment.
    Glance {
        /// The bytes of anonymous memory.
        anonymous: usize,
    },
    /// Freeze and repair.
    Freeze,
    /// The same, unless it is expected to take more than this many nanoseconds.
    FreezeWithin(u64),
    /// Only move mappings off extents that hold something erased.
    Forget,
}

impl Mode {
    /// Whether it leaves everything as it was.
    pub(crate) const fn only_looks(self) -> bool {
        matches!(self, Self::Survey | Self::Glance { .. })
    }
}

/// What a round needs.
pub(crate) struct Round<'a, 't> {
    pub(crate) tables: &'a mut Tables<'t>,
    pub(crate) shared: &'a Shared,
    pub(crate) options: &'a Options,
    pub(crate) pagemap: &'a Pagemap,
    pub(crate) headroom: Headroom,
}

impl Round<'_, '_> {
    /// Plays the round. The caller has blocked signals, which `_blocked` proves, holds other threads still, and has
    /// [excluded](super::own::exclude) what they use. Nothing here uses the heap.
    ///
    /// # Safety
    ///
    /// 1. No other thread runs, and none is started; the kernel writes to none of the memory on behalf of earlier
    ///    requests.
    pub(crate) unsafe fn play(mut self, mode: Mode, _blocked: &Blocked) -> Result<Done, FreezeError> {
        let started = time::Instant::now();
        self.tables.ledger.hot.look_by(self.shared.tending.sight(self.pagemap.way()));
        // SAFETY: 1. is this function's own.
        let result = unsafe { self.inventory(mode) };
        // What is frozen already counts.
        let populated = self.tables.eligible_bytes() + self.shared.statistics.frozen_bytes();
        let extent = extent_len(self.options.extent, populated);
        let mut done = Done {
            figures: Counts::default(),
            repaired: Repaired::default(),
            stopped: None,
            taken: Duration::ZERO,
            way: self.pagemap.way(),
            extent,
            looked: started.elapsed(),
            froze: Duration::ZERO,
            quote: 0,
            expected: Expected::default(),
            frozen: Memory::default(),
            reach: Reach::Stopped,
            portion: Portion::Whole,
            look: if matches!(mode, Mode::Glance { .. }) { Look::Samples } else { Look::Everything },
        };
        match result {
            Ok(expected) => (done.expected, done.reach) = (expected, Reach::Known),
            Err(Early::Refused(error)) => return Err(error),
            Err(Early::Unclear) => {
                done.reach = Reach::Unclear;
                return Ok(done);
            }
            Err(Early::Stopped(stopped)) => {
                done.stopped = Some(stopped);
                return Ok(done);
            }
        }
        if let Mode::FreezeWithin(most) = mode {
            let work = work(self.tables).and(mending::work(self.tables));
            done.quote = self.tables.ledger.quote(work);
            if done.quote > most {
                return Ok(done);
            }
        }
        if !mode.only_looks() {
            // SAFETY: 1. is this function's own.
            unsafe { self.change(mode, &mut done) };
        }
        done.taken = started.elapsed();
        Ok(done)
    }

    /// Reads the mappings and plans, without excluded memory and what rests.
    ///
    /// # Safety
    ///
    /// 1. As [`play`](Self::play), for a glance.
    unsafe fn inventory(&mut self, mode: Mode) -> Result<Expected, Early> {
        let (mut least, pays) = (self.options.least_bytes(), self.options.pays);
        if let Mode::Glance { anonymous } = mode {
            let limits = (least, self.headroom.mappings);
            // SAFETY: 1. is (1), and `hazards::may_move_pages` of whoever asks for a glance. 2. as the caller of `play`
            // has seen to.
            let seen = unsafe { glance(self.tables, self.pagemap, limits, anonymous) };
            // What kept it from looking at samples need not keep everything from being looked at.
            if !matches!(seen, Ok(Seen::Enough)) {
                return Err(Early::Unclear);
            }
            // What counts as empty was not asked about.
            least = least.max(1);
        }
        let Tables { ledger, excluded, vmas, extents, .. } = &mut *self.tables;
        let rests = |span| excluded.push(Excluded { span, reason: Skip::Hot });
        ledger.begin_round(self.options.pays, self.headroom.huge, rests).map_err(Stopped::from)?;
        excluded.sort_unstable_by_key(|excluded| excluded.span);
        if !matches!(mode, Mode::Glance { .. }) {
            vmas.read(Detail::Figures).map_err(FreezeError::from)?;
        }
        let vmas_now = &*vmas;
        ledger.hot.look_for_gone(|piece| {
            let after = vmas_now.partition_point(|vma| vma.end <= piece.start);
            vmas_now.get(after).is_some_and(|vma| vma.start < piece.end && vma.inode == 0)
        });
        let sees = if matches!(mode, Mode::Glance { .. }) { Sees::New } else { Sees::Everything };
        if sees == Sees::Everything {
            extents.iter_mut().for_each(Held::look_again);
        }
        let (map, has_erased) = (&self.shared.map, self.shared.has_erased());
        for held in extents.iter_mut() {
            // If the map is not sure, the mark may be missing.
            let is_marked = |entry: Entry| entry.is_erased() || !entry.is_sure();
            let is_its_own = |entry: Entry| is_marked(entry) && entry.extent() == Some(held.serial);
            held.is_erased = has_erased && (map.is_in_doubt() || map.find(|_, entry| is_its_own(entry)).is_some());
        }
        Ok(Planner { tables: self.tables, least, pays, sees }.plan().map_err(Stopped::from)?)
    }

    /// Returns how long this round may work after its look. If pauses are to be short, a repair works for one pause at
    /// a time, or for as long as its look took if that is longer: each part needs a look, and looks should take no more
    /// than half of the time. With a pause of zero it does one piece.
    fn time(&self, mode: Mode, looked: Duration) -> Time {
        match (mode, self.options.pause) {
            (Mode::FreezeWithin(_), Pause::Within(Duration::ZERO)) => Time::For { nanos: 0, since: WallMoment::now() },
            (Mode::FreezeWithin(_), Pause::Within(pause)) => {
                Time::For { nanos: nanos(pause.max(looked)), since: WallMoment::now() }
            }
            _ => Time::Unlimited,
        }
    }

    /// Repairs, freezes, and settles.
    ///
    /// # Safety
    ///
    /// 1. As [`play`](Self::play).
    unsafe fn change(&mut self, mode: Mode, done: &mut Done) {
        let _file_size = FileSize::raise();
        let mut budget = Budget::new(self.headroom.mappings).within(self.time(mode, done.looked));
        let pagemap = self.pagemap;
        let scope = if mode == Mode::Forget { Scope::Erased } else { Scope::All };
        let repaired = Repaired::default();
        let mut repairer =
            Repairer { tables: self.tables, pagemap, budget: &mut budget, repaired, part: PIECE, left: None };
        // SAFETY: 1. is this function's own.
        let repair = unsafe { repairer.repair_all(scope) };
        done.repaired = repairer.repaired;
        let mend = match scope {
            Scope::All => {
                mending::mend_all(self.tables, pagemap, &mut budget).map(|mended| done.repaired.mended = mended)
            }
            Scope::Erased => Ok(()),
        };
        let repair = repair.and(mend);
        let mut freezer = Freezer {
            tables: self.tables,
            pagemap,
            pages: self.options.pages,
            extent: done.extent,
            budget: &mut budget,
            figures: Counts::default(),
        };
        let started = time::Instant::now();
        let freeze = match mode {
            Mode::Forget => Ok(()),
            // SAFETY: 1. is this function's own.
            _ => unsafe { freezer.freeze_all() },
        };
        done.froze = started.elapsed();
        done.figures = freezer.figures;
        done.portion = if budget.has_left() { Portion::Part } else { Portion::Whole };
        done.stopped = repair.and(freeze).err();
        // All parts of a repair are one round, however many forks they take, since rounds tell what is hot.
        if done.portion == Portion::Whole {
            self.tables.ledger.hot.end();
        }
        done.frozen = settle(self.tables, self.shared);
    }
}

/// Why a round ended before it began.
enum Early {
    Unclear,
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
