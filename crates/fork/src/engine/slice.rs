//! One slice of a freeze: does as much of the [agenda](super::agenda) as its time allows, while the process is held
//! still.
//!
//! A slice copies parts of pieces and shows them at once, as a freeze in one go does with whole pieces. Between slices
//! there is only plain memory and frozen memory, so that the program may do whatever it may do with either. An extent
//! lives for one slice: its descriptor is closed before anybody else runs.

use std::ops::ControlFlow;

use arrayvec::ArrayVec;
use palimpsest_sys::memory::extent::ExtentError;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::{Traits, is_droppable, is_locked};
use palimpsest_sys::pages::pagemap::{Pagemap, Wanted};
use palimpsest_sys::pages::policy::has_policy;
use palimpsest_sys::threads::own::Blocked;
use rustix::io::Errno;

use super::agenda::{Agenda, Item};
use super::budget::{Budget, Stopped};
use super::copy::collapse_frozen;
use super::fresh::Fresh;
use super::huge::fills;
use super::left_alone::LeftAlone;
use super::pace::{LEAST, Pace};
use super::piece::{Outcome, PIECE};
use super::places::{Places, is_still_eligible};
use super::registry::Shared;
use super::runs::PieceRuns;
use super::settle::publish;
use super::tables::Tables;
use super::window::Window;
use crate::clock::{CpuMoment, WallMoment};
use crate::options::Pages;

/// Most stretches without gaps that an extent shows in one slice.
const MOST_SHOWN: usize = 64;

/// What a slice leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// There is more to do.
    More,
    /// All is done.
    Nothing,
}

/// What a slice needs.
pub(crate) struct Slice<'a, 't> {
    pub(crate) tables: &'a mut Tables<'t>,
    pub(crate) shared: &'a Shared,
    pub(crate) agenda: &'a mut Agenda,
    pub(crate) pagemap: &'a Pagemap,
    pub(crate) places: &'a Places,
    /// When its time began.
    pub(crate) started: WallMoment,
    /// How long the process was looked at before, in nanoseconds: whoever waits for the slice waits for that as well.
    pub(crate) looked: u64,
    /// Called whenever a slice's time is up: returns whether nobody waits, so that the next slice may follow at once.
    pub(crate) is_idle: &'a mut dyn FnMut() -> bool,
}

impl Slice<'_, '_> {
    /// Plays the slice. The caller has blocked signals, which `_blocked` proves, holds other threads still, and has
    /// [excluded](super::own::exclude) what they use. Nothing here uses the heap.
    ///
    /// # Safety
    ///
    /// 1. No other thread runs, and none is started; the kernel writes to none of the memory on behalf of earlier
    ///    requests.
    pub(crate) unsafe fn play(self, _blocked: &Blocked) -> Result<Left, Stopped> {
        let Self { tables, shared, agenda, pagemap, places, started, looked, is_idle } = self;
        places.begin(&mut tables.vmas)?;
        let mut speed = agenda.speed;
        let mut budget = Budget::new(agenda.mappings);
        let mut worker = Worker {
            extent: agenda.extent,
            pages: agenda.pages,
            pace: Pace::new(&mut speed, agenda.budget, agenda.planned, started),
            budget: &mut budget,
            tables,
            shared,
            pagemap,
            places,
            open: None,
            looked,
            window: Window::new(),
            is_idle,
        };
        // SAFETY: 1. is this function's own.
        let worked = unsafe { worker.work(agenda) };
        let closed = worker.close();
        let last = worker.end();
        (agenda.speed, agenda.mappings) = (speed, budget.mappings());
        shared.progress.took(last, agenda.frozen());
        let left = worked?;
        closed.map(|()| left)
    }
}

/// A slice at work.
struct Worker<'a, 't> {
    tables: &'a mut Tables<'t>,
    shared: &'a Shared,
    pagemap: &'a Pagemap,
    places: &'a Places,
    extent: usize,
    pages: Pages,
    pace: Pace<'a>,
    budget: &'a mut Budget,
    open: Option<Open>,
    /// How long the look before the current slice took.
    looked: u64,
    window: Window,
    is_idle: &'a mut dyn FnMut() -> bool,
}

/// What became of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    /// It is frozen, or there was nothing to freeze.
    Looked,
    /// The program has sealed its mapping since the plan: none of it can be frozen.
    Sealed,
}

/// The extent that is being filled.
struct Open {
    fresh: Fresh,
    /// The traits of all its mappings.
    traits: Traits,
    base: usize,
    shown: ArrayVec<Span, MOST_SHOWN>,
}

impl Worker<'_, '_> {
    /// # Safety
    ///
    /// As [`Slice::play`].
    unsafe fn work(&mut self, agenda: &mut Agenda) -> Result<Left, Stopped> {
        while agenda.current().is_some() {
            if !self.pace.may_look() && !self.go_on(agenda) {
                return Ok(Left::More);
            }
            let Some(item) = agenda.current() else { break };
            let Some((part, traits, mapping_end)) = self.find(item)? else { continue };
            let Some(most) = self.pace.next() else {
                if self.go_on(agenda) { continue } else { return Ok(Left::More) }
            };
            // Huge pages are asked for by whole pieces.
            let most = if self.pages == Pages::Collapse { PIECE } else { most };
            let end = part.start + most;
            // What is left behind it must not be so little that nobody takes it.
            let part = if part.end.saturating_sub(end) < LEAST / 2 { part } else { Span::new(part.start, end) };
            // SAFETY: 1. is this function's own. 2. found just now, while nothing else ran.
            let taken = unsafe { self.take(item, part, traits) }?;
            item.at = if taken == Taken::Sealed { mapping_end.min(item.span.end) } else { part.end };
        }
        Ok(Left::Nothing)
    }

    /// Ends a slice. Returns whether another one may follow at once. The caller reports the last one.
    fn go_on(&mut self, agenda: &Agenda) -> bool {
        let goes_on = (self.is_idle)();
        if goes_on {
            self.shared.progress.took(self.end(), agenda.frozen());
        }
        goes_on
    }

    /// Returns how long the ending slice took.
    fn end(&mut self) -> u64 {
        std::mem::take(&mut self.looked).saturating_add(self.pace.begin_again())
    }

    /// Returns the next part of an item that can be frozen, in one piece and one mapping, with its traits and the end
    /// of the mapping; `None` if finding it takes another look, from where the item then goes on.
    fn find(&mut self, item: &mut Item) -> Result<Option<(Span, Traits, usize)>, Stopped> {
        let rest = Span::new(item.at, item.span.end);
        let window = self.window.of(rest);
        let mut populated = None;
        self.pagemap.scan(window.range(), Wanted::Present, &mut |run| {
            populated = Some(run.start);
            ControlFlow::Break(())
        })?;
        self.window.searched(populated.is_some());
        let Some(populated) = populated else {
            item.at = window.end;
            return Ok(None);
        };
        // From the start of its piece on, so that what lies between populated pages joins one mapping with them.
        let start = rest.start.max(populated & !(PIECE - 1));
        let piece = Span::new(start, rest.end.min((start & !(PIECE - 1)) + PIECE));
        let mapping = self.places.next_above(&self.tables.vmas, start).filter(|vma| vma.start < piece.end);
        let Some(mapping) = mapping else {
            item.at = piece.end;
            return Ok(None);
        };
        let part = Span::from(mapping.range()).intersection(piece);
        let whole = Span::new(start & !(PIECE - 1), (start & !(PIECE - 1)) + PIECE);
        if self.tables.ledger.hot.rests(whole) {
            // A huge page by now.
            item.at = whole.end.min(rest.end);
            return Ok(None);
        }
        if !is_still_eligible(&mapping) || has_policy(mapping.start) || is_locked(part) {
            item.at = part.end;
            return Ok(None);
        }
        let excluded = self.tables.excluded.iter().map(|excluded| excluded.span.intersection(part));
        let excluded = excluded.filter(|hole| !hole.is_empty()).min_by_key(|hole| hole.start);
        let left = self.left_alone().first(part);
        let hole = excluded.into_iter().chain(left).min_by_key(|hole| hole.start);
        let part = match hole {
            Some(hole) if hole.start <= part.start => {
                item.at = hole.end;
                return Ok(None);
            }
            Some(hole) => Span::new(part.start, hole.start),
            None => part,
        };
        Ok(Some((part, Traits { permissions: mapping.permissions, ..item.traits }, mapping.end)))
    }

    fn left_alone(&self) -> &LeftAlone {
        &self.shared.left_alone
    }

    /// Freezes a part, if it is populated and has no guard.
    ///
    /// # Safety
    ///
    /// 1. As [`Slice::play`].
    /// 2. `part` is in a private anonymous mapping with these traits.
    unsafe fn take(&mut self, item: &mut Item, part: Span, traits: Traits) -> Result<Taken, Stopped> {
        let before = CpuMoment::now();
        let mut runs = PieceRuns::new();
        self.pagemap.scan(part.range(), Wanted::Present, &mut |run| match runs.push(run.into()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })?;
        let populated: usize = runs.iter().map(|run| run.len()).sum();
        if populated == 0 || populated < part.len() && self.pagemap.has_guards(part.range()) {
            return Ok(Taken::Looked);
        }
        self.open(part, traits)?;
        // The C library maps such memory unseen, where planned memory was unmapped: frozen, a child would read it.
        // SAFETY: 1. none was planned, and what the program has wiped in children since is left alone.
        if unsafe { is_droppable(part) } {
            return Ok(Taken::Looked);
        }
        let Some(open) = &mut self.open else { return Ok(Taken::Looked) };
        // SAFETY: 1. by (2), seen in this slice. 2. (1). 3. the runs are what the kernel calls populated.
        match unsafe { open.fresh.take(self.tables, part, &runs, traits) } {
            Ok(Outcome::Frozen(bytes)) => {
                match open.shown.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => open.shown.push(part),
                }
                item.frozen += bytes;
            }
            Ok(Outcome::Unreadable) => {}
            // The program has sealed it (`mseal`): it stays as it is, with its bytes.
            Err(ExtentError::Map { errno: Errno::PERM, .. }) => {
                self.pace.took(0, before);
                return Ok(Taken::Sealed);
            }
            Err(error) => return Err(error.into()),
        }
        if self.pages == Pages::Collapse && fills(populated) {
            collapse_frozen(part);
        }
        self.pace.took(populated, before);
        Ok(Taken::Looked)
    }

    /// Makes sure that an extent is open for `part`: the one being filled, or a new one.
    fn open(&mut self, part: Span, traits: Traits) -> Result<(), Stopped> {
        let extent = self.extent;
        let goes_on = |open: &Open| open.shown.last().is_some_and(|last| last.end == part.start);
        let fits = |open: &Open| {
            let is_within = open.base <= part.start && part.end - open.base <= extent;
            let is_behind = open.shown.last().is_none_or(|last| last.end <= part.start);
            is_within && is_behind && open.traits == traits && (goes_on(open) || !open.shown.is_full())
        };
        if !self.open.as_ref().is_some_and(fits) {
            self.close()?;
            if !self.shared.has_room() {
                return Err(Stopped::Extents);
            }
            let base = part.start & !(PIECE - 1);
            let fresh = Fresh::create(self.tables, base)?;
            self.open = Some(Open { fresh, traits, base, shown: ArrayVec::new() });
        }
        // A part that does not continue the extent becomes a mapping of its own, and so does the memory behind it.
        if self.open.as_ref().is_some_and(goes_on) { Ok(()) } else { self.budget.take_mappings(2) }
    }

    /// Seals what was filled, and publishes it.
    fn close(&mut self) -> Result<(), Stopped> {
        let Some(Open { fresh, traits, shown, .. }) = self.open.take() else { return Ok(()) };
        let id = fresh.id();
        let kept = fresh.keep(self.tables, traits);
        publish(self.tables, self.shared, id, &shown, traits);
        kept
    }
}
