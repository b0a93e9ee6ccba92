//! Gathering: puts pieces of anonymous memory into huge pages where they are, in slices. The first step of a freeze
//! with `Pages::Gather` that is to pay soon.
//!
//! A fork copies one entry for a huge page. Gathering spares nearly as much as freezing the piece, and the first write
//! does not undo it: writes between forks cost nothing. It takes from a third to three times the time of freezing,
//! which is learned; where it seems too dear, it is tried again after some plans, since a busy minute may have told.
//! Freezing memory that is huge already pays only after a thousand forks or more. So where that is too late, pieces are
//! gathered, and what cannot be gathered is frozen.
//!
//! Contents, rights and mappings stay as they are, with the flags and keys that they have by then. So memory that the
//! program has changed since the plan is gathered like any other; only slices that freeze leave it alone. Nobody is
//! held, since the kernel keeps threads off meanwhile.
//!
//! # Mappings that change meanwhile
//!
//! Where the kernel tells of no mapping alone (before Linux 6.11) each slice lists all; other threads map and unmap
//! after that, as they do between any look and the call. So the list only tells where to look, and what it says is
//! believed in nothing that matters:
//!
//! - How many pages are populated, whether they are anonymous, huge or shown by a child, the page tables tell right
//!   before the call: nothing that was unmapped, discarded or replaced by a file or by sparse memory is filled up.
//! - Locks and policies for nodes are asked for at the same time.
//! - The kernel itself refuses memory that wants no huge pages, special mappings, and what a userfaultfd has registered
//!   and is not populated. In a file in memory that somebody maps there just then it may fill a piece with zeros, which
//!   read the same; of any other file it takes nothing.
//! - A page is written to, for old kernels, only after another list ([`collapse_run`]).
//!
//! # Where the kernel does not tell which pages are huge
//!
//! Before Linux 6.7 [what was made is remembered](super::sight). A piece that was gathered before and may be split is
//! asked for again, and not counted as split. Page tables show pages of zeros that were only read like shared ones, so
//! that only what the process alone shows counts as populated.
//!
//! Pieces that a child still maps wait until it is gone: gathering would copy them, which takes memory that a plain
//! fork does not.

use std::ops::ControlFlow;

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::{Traits, is_locked};
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, Wanted};
use palimpsest_sys::pages::policy::has_policy;
use palimpsest_sys::threads::own::Blocked;

use super::agenda::{Agenda, Gathered, Gathering, Where};
use super::budget::Stopped;
use super::errands::{Request, Sender, Sent};
use super::hot::HotPieces;
use super::huge::{Asked, suits};
use super::mending::{count, is_made, is_whole};
use super::piece::PIECE;
use super::places::{Anew, Places, is_still_eligible};
use super::registry::Shared;
use super::sight::Sight;
use super::tables::Tables;
use super::tending::is_late;
use super::thawing::collapse_run;
use super::window::Window;
use crate::clock::{CpuMoment, WallMoment, nanos};

/// Places at which a slice looks when its time is up and it has gathered nothing.
const MOST_LOOKS: u32 = 32;

/// What a slice needs.
pub(crate) struct Gatherer<'a, 't> {
    pub(crate) tables: &'a mut Tables<'t>,
    pub(crate) shared: &'a Shared,
    pub(crate) agenda: &'a mut Agenda,
    pub(crate) pagemap: &'a Pagemap,
    pub(crate) places: &'a Places,
    pub(crate) errands: Sender,
    /// When it began.
    pub(crate) started: WallMoment,
    /// How long the process was looked at before, in nanoseconds.
    pub(crate) looked: u64,
    /// Called whenever a slice's time is up: returns whether nobody waits, so that the next slice may follow at once.
    pub(crate) is_idle: &'a mut dyn FnMut() -> bool,
}

impl Gatherer<'_, '_> {
    /// Takes a slice, or several while nobody waits. The caller has blocked signals, which `_blocked` proves.
    pub(crate) fn play(mut self, mut gathering: Gathering, _blocked: &Blocked) -> Result<Gathered, Stopped> {
        let budget = self.agenda.budget;
        // Nobody is held: if a busy machine puts a thread aside meanwhile, it would have done so anyway.
        let (cpu, mut begun) = (CpuMoment::now(), CpuMoment::now());
        let (mut bytes, mut worked, mut looks, mut window) = (0, 0, 0, Window::new());
        self.agenda.had_deputies(self.errands.spent());
        self.shared.progress.beside(self.agenda.beside());
        let (sight, tables) = (self.shared.tending.sight(self.pagemap.way()), &mut *self.tables);
        tables.ledger.hot.look_by(sight);
        tables.ledger.hot.note_whole(self.errands.begin(sight));
        gathering.note_split(self.errands.mended());
        gathering.note_made(self.errands.mended());
        let outcome = loop {
            if looks == 0
                && let Err(stopped) = self.tables.list(self.places, budget)
            {
                break Err(stopped);
            }
            looks += 1;
            let elapsed = begun.elapsed();
            let may_look = worked == 0 && looks <= MOST_LOOKS || elapsed < nanos(budget);
            // A call that sleeps takes no processor time.
            let may_work = worked == 0 || !is_late(self.started.elapsed(), budget);
            if !(may_look && may_work && self.shared.tending.fits(worked, elapsed, budget)) {
                if !(self.is_idle)() {
                    break Ok(Gathered::More);
                }
                self.end_slice(bytes);
                (worked, looks, begun) = (0, 0, CpuMoment::now());
                continue;
            }
            let next = match gathering.place {
                Where::Planned => self.agenda.to_gather(&mut gathering),
                Where::Everywhere => self.anywhere(&mut gathering),
            };
            let Some((whole, traits)) = next else { break Ok(gathering.end_pass()) };
            let searched = window.of(whole);
            let found = match self.first_populated(searched) {
                Ok(found) => found,
                Err(error) => break Err(error.into()),
            };
            window.searched(found.is_some());
            let Some(piece) = found else {
                gathering.go_on_at(searched.end);
                continue;
            };
            let room = self.shared.tending.room(elapsed, budget);
            let taken = self.take(Span::new(piece.start, whole.end), room, traits);
            let Taken { upto, worked: tried, made, mended, split, waits, is_refused, is_sent } = match taken {
                Ok(taken) => taken,
                Err(stopped) => break Err(stopped),
            };
            gathering.go_on_at(upto);
            gathering.note_made(made + mended);
            gathering.note_split(split);
            (bytes, worked) = (bytes + made * PIECE, worked + tried);
            if is_refused {
                break Ok(Gathered::Done);
            }
            if is_sent {
                break Ok(Gathered::More);
            }
            if let Some(waits) = waits.then(|| gathering.note_child()).flatten() {
                break Ok(waits);
            }
        };
        self.agenda.gathered_until(gathering, bytes, cpu.elapsed());
        self.end_slice(0);
        if bytes > 0 {
            // From now on forks are accounted for.
            self.shared.statistics.count_round();
        }
        outcome
    }

    /// Ends a slice that gathered `uncounted` bytes which are not counted yet.
    fn end_slice(&mut self, uncounted: usize) {
        let taken = std::mem::take(&mut self.looked).saturating_add(self.started.elapsed());
        self.started = WallMoment::now();
        let progress = &self.shared.progress;
        progress.took(taken, self.agenda.frozen());
        progress.gathered(self.agenda.gathered() + uncounted);
    }

    /// Returns the next whole pieces of a mapping that may be gathered, wherever it is. Flags need not be read: the
    /// kernel knows them, and makes no huge page where none is wanted.
    fn anywhere(&self, gathering: &mut Gathering) -> Option<(Span, Traits)> {
        loop {
            let mapping = self.places.next_above(&self.tables.vmas, gathering.at)?;
            let start = gathering.at.max(mapping.start).next_multiple_of(PIECE);
            let whole = Span::new(start, mapping.end & !(PIECE - 1));
            if whole.start < whole.end && is_still_eligible(&mapping) {
                let traits = Traits::bare(mapping.permissions);
                return Some((whole, traits));
            }
            gathering.go_on_at(mapping.end);
        }
    }

    /// Returns the first of these pieces that has a populated page.
    fn first_populated(&self, pieces: Span) -> Result<Option<Span>, PagemapError> {
        let mut found = None;
        self.pagemap.scan(pieces.range(), Wanted::Present, &mut |run| {
            found = Some(run.start & !(PIECE - 1));
            ControlFlow::Break(())
        })?;
        Ok(found.map(|start| Span::new(start, start + PIECE)))
    }

    /// Gathers pieces at the start of `rest`: `own` at most, or as many as a deputy may. All have these traits.
    fn take(&mut self, rest: Span, own: usize, traits: Traits) -> Result<Taken, Stopped> {
        let mut run = Span::new(rest.start, rest.start);
        let (upto, waits, is_refused, is_sent) = (rest.start, false, false, false);
        let mut taken = Taken { upto, worked: 0, made: 0, mended: 0, split: 0, waits, is_refused, is_sent };
        let first = Span::new(rest.start, rest.start + PIECE);
        for piece in rest.cut(PIECE).take(self.errands.room(first, own, self.agenda.budget)) {
            let found = self.look_at(piece, traits)?;
            if matches!(found, Found::Fit | Found::Split) {
                run.end = piece.end;
                continue;
            }
            taken.upto = piece.end;
            match found {
                Found::Huge => taken.made += self.tables.ledger.asked(piece, Asked::Made).count(),
                Found::Waits => taken.waits = true,
                Found::SplitAndShown => taken.split += 1,
                Found::Fit | Found::Split | Found::Unfit => {}
            }
            break;
        }
        taken.upto = taken.upto.max(run.end);
        if run.is_empty() {
            return Ok(taken);
        }
        // What was gathered before, and is not huge.
        let known_in = |hot: &HotPieces, run: Span| run.cut(PIECE).filter(|piece| hot.rests(*piece)).count();
        let is_told = self.tables.ledger.hot.sight() == Sight::Told;
        // Of what is asked for again in case it is split, most may be whole.
        let split_of = |known: usize| if is_told { known } else { 0 };
        if self.errands.sends(run) {
            let request = Request::all(run, split_of(known_in(&self.tables.ledger.hot, run)));
            self.tables.give_back();
            let elapsed = self.looked.saturating_add(self.started.elapsed());
            if self.errands.send(request, elapsed, self.agenda.budget) != Sent::Nobody {
                taken.go_back_to(run.start);
                return Ok(Taken { is_sent: true, ..taken });
            }
            self.tables.make_room()?;
            self.tables.list(self.places, self.agenda.budget)?;
        }
        if run.len() / PIECE > own {
            // No deputy can be made: as much as the thread has time for.
            run.end = run.start + own * PIECE;
            taken.go_back_to(run.end);
        }
        let known = known_in(&self.tables.ledger.hot, run);
        let split = split_of(known);
        let before = CpuMoment::now();
        let is_huge = is_made(self.pagemap);
        let (mut made, mut mended, mut done) = (0, 0, 0);
        let Tables { vmas, ledger, .. } = &mut *self.tables;
        let mut anew = Anew::new(self.places, self.agenda.budget);
        let is_private = |piece| anew.is_private(vmas, piece);
        let upto = collapse_run(run, is_huge, is_private, |piece, came| {
            taken.worked += 1;
            // If it was split and mended, its bytes are counted already.
            let is_known = ledger.hot.rests(piece);
            mended += usize::from(came == Asked::Made && is_known);
            made += ledger.asked(piece, came).count();
            done += usize::from(came == Asked::Made);
            taken.is_refused |= came == Asked::Refused;
        });
        let took = before.elapsed();
        let listing = anew.end()?;
        // A failed call is quick, and does not tell how many were made; so is one for pieces that were whole.
        if done == run.len() / PIECE && (is_told || known == 0) {
            self.shared.tending.took_piece(took.saturating_sub(listing) / done as u64);
        }
        if upto < run.end {
            taken.go_back_to(upto);
        }
        (taken.made, taken.mended, taken.split) = (taken.made + made, mended, taken.split + split);
        Ok(taken)
    }

    /// Returns the state of a planned piece.
    fn look_at(&self, piece: Span, traits: Traits) -> Result<Found, PagemapError> {
        let hot = &self.tables.ledger.hot;
        let (is_known, is_told) = (hot.rests(piece), hot.sight() == Sight::Told);
        let is_huge = is_whole(self.pagemap, hot, piece)? || self.errands.has_made(piece);
        // Most pieces of a later pass: one call.
        if is_known && is_huge {
            return Ok(Found::Unfit);
        }
        let mapping = self.places.next_above(&self.tables.vmas, piece.start);
        let is_whole = |start, end| start <= piece.start && piece.end <= end;
        let fits = mapping.is_some_and(|vma| is_still_eligible(&vma) && is_whole(vma.start, vma.end));
        if !fits || has_policy(piece.start) || is_locked(piece) {
            return Ok(Found::Unfit);
        }
        // Pages of files do not count: a list may be out of date.
        let populated = count(self.pagemap, piece, Wanted::Written)?;
        if !suits(piece, populated, traits) || populated < PIECE && self.pagemap.has_guards(piece.range()) {
            return Ok(Found::Unfit);
        }
        if is_huge {
            return Ok(Found::Huge);
        }
        let shared = count(self.pagemap, piece, Wanted::Shared)?;
        if !is_told && is_known && shared == populated {
            // Nobody has written to it since the fork whose child shows it.
            return Ok(Found::Unfit);
        }
        let is_shared = shared > populated / 2;
        if !is_told && !is_shared && !suits(piece, populated - shared, traits) {
            // Pages of zeros, which look shared.
            return Ok(Found::Unfit);
        }
        Ok(match (is_shared, is_known) {
            (false, false) => Found::Fit,
            (false, true) => Found::Split,
            (true, false) => Found::Waits,
            (true, true) => Found::SplitAndShown,
        })
    }
}

/// The state of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// In base pages that may be gathered.
    Fit,
    /// The same, and was gathered before.
    Split,
    /// Was gathered before and split since, and a child still maps it: it is mended between forks later.
    SplitAndShown,
    /// A huge page already.
    Huge,
    /// There is nothing to do, or it is left to be frozen.
    Unfit,
    /// A child still maps it.
    Waits,
}

/// What became of some pieces.
struct Taken {
    /// Up to where they were done.
    upto: usize,
    /// Pieces that the kernel was asked to gather, whether it did or not.
    worked: usize,
    /// Huge pages that are new; and those that were split, and are whole again.
    made: usize,
    mended: usize,
    /// Pieces that were gathered before, and split since.
    split: usize,
    /// Whether a child still maps one that was looked at.
    waits: bool,
    /// Whether there are no huge pages left.
    is_refused: bool,
    /// Whether a deputy gathers some: it was sent, or will be in a later slice.
    is_sent: bool,
}

impl Taken {
    /// Notes that what is behind `upto` is looked at again. What is huge by then is known, and not counted again.
    fn go_back_to(&mut self, upto: usize) {
        (self.upto, self.waits, self.split) = (upto, false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a split piece that counts twice, or a child that is waited for in vain.
    #[test]
    fn what_is_looked_at_again_was_not_seen() {
        let (waits, is_refused, is_sent) = (true, false, false);
        let mut taken = Taken { upto: 9, worked: 0, made: 1, mended: 2, split: 3, waits, is_refused, is_sent };
        taken.go_back_to(5);
        assert_eq!((taken.upto, taken.made, taken.mended), (5, 1, 2));
        assert_eq!((taken.split, taken.waits), (0, false));
    }
}
