//! One slice between forks, while the process is held still: mends split huge pages, and makes huge pages of frozen
//! pieces that were written to, or [freezes them again](super::refreeze).
//!
//! The table of hot pieces and the map tell what there is; each piece is looked at again before it is touched.

use std::ops::ControlFlow;
use std::time::Duration;

use arrayvec::ArrayVec;
use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::is_locked;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, Wanted};
use palimpsest_sys::pages::vmas::Vma;
use palimpsest_sys::threads::own::Blocked;

use super::agenda::MOST_SHARED;
use super::budget::{Budget, Stopped};
use super::huge::{Asked, suits};
use super::mending::{Mended, mend};
use super::piece::PIECE;
use super::places::Places;
use super::prices::Memory;
use super::records::frozen;
use super::refreeze::{Refreezer, Refrozen};
use super::registry::Shared;
use super::runs::PieceRuns;
use super::settle::{forget_unmapped, withdraw};
use super::subject::Subject;
use super::tables::Tables;
use super::tending::Tended;
use super::thawing::{MOST_PARTS, Parts, make_huge};
use crate::clock::{CpuMoment, WallMoment, nanos};
use crate::options::{Options, Pause};

/// How much is searched for written pages between two looks at the clock: whole pieces.
const WINDOW: usize = 16 * PIECE;
/// Most extents that one slice's pieces leave.
const MOST_LEFT: usize = 64;

/// What a slice needs.
pub(crate) struct Tender<'a, 't> {
    pub(crate) tables: &'a mut Tables<'t>,
    pub(crate) shared: &'a Shared,
    pub(crate) options: &'a Options,
    pub(crate) pagemap: &'a Pagemap,
    pub(crate) places: &'a Places,
    /// When the process was held.
    pub(crate) started: WallMoment,
}

/// What a slice comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Played {
    pub(crate) tended: Tended,
    /// Pieces and mappings done.
    pub(crate) worked: usize,
    /// Those of them that were frozen again.
    pub(crate) refrozen: usize,
    pub(crate) pass: Pass,
    /// Whether something was written to that only a round may know how to repair.
    pub(crate) is_for_round: bool,
}

/// How far a pass is that freezes again what was written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// It is under way, or does no such thing.
    UnderWay,
    /// It has come by everything. This is frozen now.
    Over(Memory),
}

impl Played {
    /// There was nothing to do.
    pub(crate) const NOTHING: Self =
        Self { tended: Tended::Done, worked: 0, refrozen: 0, pass: Pass::UnderWay, is_for_round: false };
}

/// What became of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Did {
    /// It is a huge page now.
    Work,
    /// There was nothing to do, or it may not be touched.
    Nothing,
    /// A child still maps it.
    Waits,
}

impl<'t> Tender<'_, 't> {
    /// Plays the slice. The caller has blocked signals, which `_blocked` proves, holds other threads still, and has
    /// [excluded](super::own::exclude) what they use. Nothing here uses the heap.
    ///
    /// # Safety
    ///
    /// 1. No other thread runs, and none is started; the kernel writes to none of the memory on behalf of earlier
    ///    requests.
    pub(crate) unsafe fn play(mut self, _blocked: &Blocked) -> Result<Played, Stopped> {
        let tending = &self.shared.tending;
        let Pause::Within(time) = self.options.pause else { return Ok(Played::NOTHING) };
        let mut at = tending.at();
        if at == 0 {
            self.tables.ledger.begin_pass(self.options.pays);
        }
        self.tables.ledger.hot.look_by(tending.sight(self.pagemap.way()));
        self.places.begin(&mut self.tables.vmas)?;
        let mut budget = Budget::new(tending.mappings());
        let (mut worked, mut made, mut refrozen, mut in_a_row) = (0, 0, 0, 0);
        let (mut is_for_round, mut is_over) = (false, false);
        let mut left = ArrayVec::<u32, MOST_LEFT>::new();
        let is_any_to_go = self.refreezer(time).is_any_to_go();
        let outcome = loop {
            let refreezes = self.refreezer(time).refreezes();
            if !(refreezes || self.tables.ledger.huge.is_open()) || self.shared.map.is_in_doubt() {
                break Tended::Done;
            }
            let (piece, kind) = match self.next(at, time, is_any_to_go)? {
                Next::Piece(piece, kind) => (piece, kind),
                Next::Later { at } => break Tended::More { at },
                Next::Nothing => {
                    is_over = refreezes;
                    break tending.end_of_pass();
                }
            };
            let has_room = left.remaining_capacity() >= MOST_PARTS;
            if !(has_room && tending.fits(worked, self.started.elapsed(), time)) {
                // A piece may begin below what is done.
                break Tended::More { at: piece.start.max(at) };
            }
            let before = CpuMoment::now();
            let is_open = self.tables.ledger.huge.is_open();
            let did = match kind {
                Kind::Huge(place) => self.mend(place),
                // SAFETY: 1. is this function's own.
                Kind::Frozen { .. } if is_open => unsafe { self.make(piece, &mut budget, &mut left) },
                Kind::Frozen { .. } => Ok(Did::Nothing),
            };
            // Publish what was made so far in any case.
            let Ok(mut did) = did else { break Tended::Done };
            at = piece.end;
            let is_made = did == Did::Work && matches!(kind, Kind::Frozen { .. });
            if let Kind::Frozen { written } = kind
                && did == Did::Nothing
                && refreezes
            {
                // SAFETY: 1. is this function's own.
                match unsafe { self.refreezer(time).refreeze(written, &mut budget) } {
                    Refrozen::Upto(end) => (at, did, refrozen) = (end, Did::Work, refrozen + 1),
                    Refrozen::Left(from) => {
                        (worked, refrozen) = (worked + 1, refrozen + 1);
                        break Tended::More { at: from };
                    }
                    Refrozen::Untouched(end) => at = end,
                    Refrozen::Unknown(end) => (at, is_for_round) = (end, true),
                }
            }
            in_a_row = if did == Did::Waits { in_a_row + 1 } else { 0 };
            if did == Did::Waits {
                tending.note_child();
            }
            if in_a_row == MOST_SHARED {
                break Tended::Later { at };
            }
            match did {
                Did::Waits | Did::Nothing => {
                    // Looking takes time as well.
                    if self.started.elapsed() > nanos(time) {
                        break Tended::More { at };
                    }
                }
                Did::Work => {
                    if is_made || matches!(kind, Kind::Huge(_)) {
                        tending.took_piece(before.elapsed());
                    }
                    worked += 1;
                    made += usize::from(is_made);
                }
            }
        };
        tending.set_mappings(budget.mappings());
        if !left.is_empty() {
            withdraw(self.tables, self.shared, &left, made * PIECE);
        }
        // Behind that, since it counts anew what is frozen.
        let is_counted = is_over && forget_unmapped(self.tables, self.shared, self.places).is_ok();
        let pass = if is_counted { Pass::Over(frozen(self.tables.extents)) } else { Pass::UnderWay };
        Ok(Played { tended: outcome, worked, refrozen, pass, is_for_round })
    }

    /// Returns the next piece from `at` on that may need work. Searching takes time as well: searches at least one
    /// window.
    fn next(&mut self, at: usize, time: Duration, is_any_to_go: bool) -> Result<Next, PagemapError> {
        let is_open = self.tables.ledger.huge.is_open();
        let hot = self.tables.ledger.hot.next_huge(at).filter(|_| is_open);
        let mut from = at;
        let frozen = loop {
            let end = hot.map_or(usize::MAX, |(_, piece)| piece.start);
            if from >= end {
                break None;
            }
            let Some((part, entry)) = self.shared.map.first(Span::new(from, end)) else { break None };
            let part = Span::new(part.start, part.end.min((part.start & !(WINDOW - 1)) + WINDOW));
            let is_first = from == at;
            from = part.end;
            if !is_first && self.started.elapsed() > nanos(time) {
                return Ok(Next::Later { at: part.start });
            }
            if entry.extent().is_none() {
                continue;
            }
            let mut written = (is_any_to_go && self.refreezer(time).is_to_go(part.start)).then_some(part.start);
            if written.is_none() {
                self.pagemap.scan(part.range(), Wanted::Written, &mut |run| {
                    written = Some(run.start);
                    ControlFlow::Break(())
                })?;
            }
            if let Some(written) = written {
                break Some(written);
            }
        };
        // A piece that begins below `at` is done already.
        let frozen = frozen.map(|written| {
            let start = written & !(PIECE - 1);
            Next::Piece(Span::new(start, start + PIECE), Kind::Frozen { written })
        });
        let hot = hot.map(|(place, piece)| Next::Piece(piece, Kind::Huge(place)));
        Ok(frozen.or(hot).unwrap_or(Next::Nothing))
    }

    fn refreezer(&mut self, most: Duration) -> Refreezer<'_, 't> {
        let Tender { tables, shared, pagemap, places, started, .. } = self;
        Refreezer { tables, shared, pagemap, places, started: *started, most }
    }

    fn mend(&mut self, place: usize) -> Result<Did, Stopped> {
        Ok(match mend(self.tables, self.pagemap, self.places, place)? {
            Mended::Whole | Mended::Refused | Mended::LetGo => Did::Nothing,
            Mended::Shared => Did::Waits,
            Mended::Now => Did::Work,
        })
    }

    /// Makes a huge page of a frozen piece that was written to, and adds the extent that it leaves.
    ///
    /// # Safety
    ///
    /// 1. As [`play`](Self::play).
    unsafe fn make(
        &mut self,
        piece: Span,
        budget: &mut Budget,
        left: &mut ArrayVec<u32, MOST_LEFT>,
    ) -> Result<Did, Stopped> {
        let (mut parts, mut subjects) = (Parts::new(), ArrayVec::<Subject, MOST_PARTS>::new());
        while let Some(part) = rest_of(piece, &parts) {
            let Some((part, subject)) = self.subject_at(part) else { return Ok(Did::Nothing) };
            let is_alike = subjects.first().is_none_or(|first| first.traits == subject.traits);
            if !is_alike || parts.is_full() {
                return Ok(Did::Nothing);
            }
            parts.push(part);
            subjects.push(subject);
        }
        let Some(traits) = subjects.first().map(|subject| subject.traits) else { return Ok(Did::Nothing) };
        if self.tables.is_in_use(piece) || self.pagemap.has_guards(piece.range()) || is_locked(piece) {
            return Ok(Did::Nothing);
        }
        let (mut written, mut shared) = (PieceRuns::new(), 0);
        self.pagemap.scan(piece.range(), Wanted::Written, &mut |run| match written.push(run.into()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })?;
        self.pagemap.scan(piece.range(), Wanted::Shared, &mut |run| {
            shared += run.len();
            ControlFlow::Continue(())
        })?;
        if shared > written.bytes() / 2 {
            return Ok(Did::Waits);
        }
        let contents = &*self.tables.contents;
        let runs = |index: usize, part| subjects[index].runs(contents, part, &written);
        let populated = parts.iter().enumerate().map(|(index, part)| runs(index, *part).bytes()).sum();
        if !suits(piece, populated, traits) {
            return Ok(Did::Nothing);
        }
        // The old mappings moved aside, the new one, and what is left on both sides.
        budget.take_mappings(2 + parts.len())?;
        // SAFETY: 1. each part was just found in a private mapping of an extent that can be read; its bytes outside the
        // runs are zeros; nothing else runs (1).
        let asked = unsafe { make_huge(piece, &parts, runs, traits) }?;
        self.tables.ledger.asked(piece, asked);
        if asked != Asked::Made {
            return Ok(Did::Nothing);
        }
        self.shared.map.thaw(piece);
        for (subject, part) in subjects.iter().zip(&parts) {
            if let Some(held) = self.tables.held(subject.id()) {
                held.maps(0, part.len());
            }
            if !left.contains(&subject.serial) {
                left.push(subject.serial);
            }
        }
        Ok(Did::Work)
    }

    /// Returns the frozen mapping at the start of `rest`, as far as one entry of the map reaches, if it may be
    /// replaced.
    fn subject_at(&mut self, rest: Span) -> Option<(Span, Subject)> {
        let vma = self.places.next_above(&self.tables.vmas, rest.start).filter(|vma| vma.start <= rest.start)?;
        let (part, entry) = self.shared.map.first(rest).filter(|(part, _)| part.start == rest.start)?;
        // The program may have given advice since the last round: only the map knows.
        let flags = entry.flags().filter(|_| entry.key() == 0 && entry.permissions() == vma.permissions)?;
        let id = FileId { device: vma.device, inode: vma.inode };
        let is_its_own = self.tables.held(id).is_some_and(|held| entry.extent() == Some(held.serial));
        if !is_its_own {
            return None;
        }
        let part = part.intersection(vma.range().into());
        // The page tables tell whether anything was written.
        let subject = Subject::of(self.tables, &Vma { flags, anonymous: vma.range().len(), ..vma })?;
        Some((part, subject))
    }
}

/// Returns what of a piece is in none of the parts, which follow each other from its start on.
fn rest_of(piece: Span, parts: &Parts) -> Option<Span> {
    let rest = Span::new(parts.last().map_or(piece.start, |last| last.end), piece.end);
    (!rest.is_empty()).then_some(rest)
}

/// What a search found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// This piece may need work.
    Piece(Span, Kind),
    /// The time is up; there may be more from here on.
    Later {
        /// Where to go on.
        at: usize,
    },
    /// There is nothing.
    Nothing,
}

/// What a piece is that may need work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A huge page, at this place of the table.
    Huge(usize),
    /// Frozen, and written to.
    Frozen {
        /// The first page that was written, or that must leave its extent.
        written: usize,
    },
}
