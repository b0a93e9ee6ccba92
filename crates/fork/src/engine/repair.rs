//! Repairs frozen memory that was written to, so that forks are cheap again.
//!
//! The first write to a private mapping of a file gives the whole mapping an `anon_vma`, and from then on each fork
//! copies all of its page table entries, clean ones included (`vma_needs_copy` in `mm/memory.c`). Only a new mapping
//! has none. So in each mapping with written pages, pieces without any are renewed in place, which loses nothing, and
//! written pieces are copied to a new extent: the old one is sealed, and children may map it. Of a piece with few
//! written pages only the stretches around those are copied, and the rest is renewed: the stretches become small
//! mappings of their own, and when they are written to again, they alone are dear. A piece that is written to round
//! after round is left alone for a while, as anonymous memory.
//!
//! If huge pages can be had, a written piece becomes one at once, as [`hot`](super::hot) says.
//!
//! A sealed file cannot give back memory of pieces that no mapping shows any more. Once these are more than half of it,
//! its other pieces are copied too, so that the whole file goes: at most as many bytes as were replaced before.

use std::ops::ControlFlow;

use arrayvec::ArrayVec;
use palimpsest_sys::memory::extent::ExtentError;
use palimpsest_sys::memory::remap;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, Wanted};

use super::budget::{Budget, Stopped};
use super::fresh::Fresh;
use super::huge::{Asked, suits};
use super::piece::{Outcome, PIECE};
use super::runs::PieceRuns;
use super::subject::{GRAIN, SMALL, Subject, Way};
use super::tables::Tables;
use super::thawing::{make_anonymous, make_huge};

/// A piece with more stretches than this is copied as a whole: each stretch that is written to again costs a fork 1.6
/// µs, and 2 MiB of anonymous memory 4 µs.
const MOST_STRETCHES: usize = 2;

/// What a repair counts.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// Mappings with written pages.
    pub(crate) mappings: usize,
    /// Pieces renewed.
    pub(crate) renewed: usize,
    /// Pieces copied to a new extent.
    pub(crate) copied: usize,
    /// Pieces that became anonymous, in base pages.
    pub(crate) thawed: usize,
    /// Pieces that became huge pages.
    pub(crate) huge: usize,
    /// Huge pages that were mended.
    pub(crate) mended: usize,
    /// Pieces, and stretches between them, whose repair failed.
    pub(crate) failed: usize,
}

/// A repair at work: what it needs and what it has done.
pub(super) struct Repairer<'a, 't> {
    pub(super) tables: &'a mut Tables<'t>,
    pub(super) pagemap: &'a Pagemap,
    pub(super) budget: &'a mut Budget,
    pub(super) repaired: Repaired,
    /// How much is copied at a time, at most: a piece, or an even part of one.
    pub(super) part: usize,
    /// The first piece that was left for lack of time.
    pub(super) left: Option<usize>,
}

/// What to repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// Every mapping that needs it.
    All,
    /// Mappings of extents that hold something erased.
    Erased,
}

/// What becomes of a written part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is frozen again, in another extent.
    Frozen,
    /// It becomes anonymous, since it is written to all the time.
    Anonymous,
    /// It stays as it is: such a small mapping costs a fork little.
    Left,
}

impl Repairer<'_, '_> {
    /// Repairs every frozen mapping of `scope` with written pages. Leaves mappings that cannot be repaired, continues
    /// with the rest, and returns the first error.
    ///
    /// # Safety
    ///
    /// 1. As [`freeze_all`](super::copy::Freezer::freeze_all), for frozen memory.
    pub(super) unsafe fn repair_all(&mut self, scope: Scope) -> Result<(), Stopped> {
        let mut result = Ok(());
        for index in 0..self.tables.vmas.len() {
            let vma = self.tables.vmas[index];
            let Some(subject) = Subject::of(self.tables, &vma) else { continue };
            if scope == Scope::Erased && !subject.is_erased {
                continue;
            }
            self.repaired.mappings += 1;
            // SAFETY: 1. is this function's own; the mapping is one of the extent, by the list that was read while
            // nothing else ran.
            result = result.and(unsafe { self.repair_mapping(subject) });
            if self.budget.has_left() {
                break;
            }
        }
        result
    }

    /// Takes the written parts away first, then renews what is between them in one go: renewing works for whole
    /// mappings only.
    ///
    /// # Safety
    ///
    /// 1. As [`repair_all`](Self::repair_all).
    /// 2. The subject's mapping is a private one of its extent.
    pub(super) unsafe fn repair_mapping(&mut self, mut subject: Subject) -> Result<(), Stopped> {
        let whole = Span::from(subject.vma.range());
        self.tables.runs.clear();
        let mut result = Ok(());
        for piece in whole.cut(self.part) {
            // SAFETY: 1. is this function's own. 2. the piece is in the mapping (2).
            let taken = unsafe { self.take_written(&mut subject, piece) };
            if taken.is_err() {
                self.repaired.failed += 1;
            }
            // A table is full, so that it may not list all that was written.
            let is_listed = !matches!(taken, Err(Stopped::Tables(_)));
            result = result.and(taken);
            if self.budget.has_left() {
                // Leaves this piece and those behind it to another round.
                self.left = Some(piece.start);
                if self.tables.runs.push(Span::new(piece.start, whole.end)).is_err() {
                    self.tables.runs.clear();
                    // There is room for one.
                    let _ = self.tables.runs.push(whole);
                }
                break;
            }
            if !is_listed {
                self.tables.runs.clear();
                // There is room for one.
                let _ = self.tables.runs.push(whole);
                break;
            }
        }
        let mut at = whole.start;
        for index in 0..=self.tables.runs.len() {
            let taken = self.tables.runs.get(index).copied().unwrap_or(Span::new(whole.end, whole.end));
            let clean = Span::new(at, taken.start);
            at = taken.end;
            if clean.is_empty() {
                continue;
            }
            if subject.way != Way::Renew {
                continue;
            }
            // SAFETY: 1. a part of the subject's mapping (2), no page of which was written. 2. (1).
            match unsafe { remap::renew(clean) } {
                Ok(()) => self.repaired.renewed += clean.len().div_ceil(PIECE),
                Err(errno) => {
                    self.repaired.failed += 1;
                    result = result.and(Err(ExtentError::unmapped(clean, errno).into()));
                }
            }
        }
        // Kept after an error too: some of its parts may be mapped already.
        let traits = subject.traits;
        let kept = subject.fresh.map_or(Ok(()), |fresh| fresh.keep(self.tables, traits));
        result.and(kept)
    }

    /// Copies the written parts of a piece, or leaves them alone, and adds them to the table of runs. If the extent
    /// cannot be mapped again, takes the whole piece.
    ///
    /// # Safety
    ///
    /// 1. As [`repair_all`](Self::repair_all).
    /// 2. `piece` is in the subject's mapping, which is a private one of its extent.
    unsafe fn take_written(&mut self, subject: &mut Subject, piece: Span) -> Result<(), Stopped> {
        let mut written = PieceRuns::new();
        let scanned = self.find_written(piece, &mut written).and_then(|()| self.look_around(subject, piece));
        // Running code may use it by now: a new thread gets the stack of one that has ended.
        if scanned.is_err() || self.tables.is_in_use(piece) || self.pagemap.has_guards(piece.range()) {
            self.tables.runs.push(piece)?;
            return Ok(scanned?);
        }
        let is_scattered = subject.scattered.intersection(piece) == piece;
        let is_work = !written.is_empty() || is_scattered || subject.way == Way::Move;
        if is_work && !self.budget.begin_piece() {
            return Ok(());
        }
        let is_small = subject.vma.range().len() <= SMALL;
        let is_for_huge = self.is_for_huge(subject, piece, &written);
        let stretches = match subject.way {
            Way::Renew if is_scattered => whole(piece),
            Way::Renew if !is_small && !is_for_huge => stretches(piece, &written),
            Way::Renew | Way::Move => whole(piece),
        };
        // Whatever becomes of these stretches below, none of them is renewed.
        stretches.iter().try_for_each(|stretch| self.tables.runs.push(*stretch))?;
        let mut result = Ok(());
        for stretch in &stretches {
            // SAFETY: 1. and 2. are this function's own. 3. all written runs.
            if is_for_huge && unsafe { self.make_huge(subject, piece, &written) }? == Asked::Made {
                break;
            }
            let is_hot = !written.is_empty() && *stretch == piece && self.tables.ledger.hot.note_written(piece);
            // Memory that must leave its extent is never left in place.
            let is_small = is_small && subject.way != Way::Move;
            let fate = match (is_hot, is_small) {
                (false, _) => Fate::Frozen,
                (true, false) => Fate::Anonymous,
                (true, true) => Fate::Left,
            };
            // SAFETY: 1. and 2. are this function's own, for a part of the piece. 3. all written runs, from which it
            // takes its own.
            result = result.and(unsafe { self.copy_part(subject, *stretch, &written, fate) });
        }
        result
    }

    /// Finds the written runs of a piece, as many as there is room for.
    fn find_written(&self, piece: Span, written: &mut PieceRuns) -> Result<(), PagemapError> {
        self.pagemap.scan(piece.range(), Wanted::Written, &mut |run| match written.push(run.into()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })
    }

    /// Notes, at the first part of a piece, whether so much was written all over it that all of it is copied, part by
    /// part: as if it were copied in one go.
    fn look_around(&self, subject: &mut Subject, part: Span) -> Result<(), PagemapError> {
        let start = part.start & !(PIECE - 1);
        let piece = Span::new(start, start + PIECE).intersection(subject.vma.range().into());
        if part.start != piece.start || part.len() >= piece.len() || subject.way != Way::Renew {
            return Ok(());
        }
        let mut written = PieceRuns::new();
        self.find_written(piece, &mut written)?;
        let is_scattered = !written.is_empty() && stretches(piece, &written) == whole(piece);
        subject.scattered = if is_scattered { piece } else { Span::default() };
        Ok(())
    }

    /// Whether to make a piece a huge page: it was written to, and is fit for one.
    fn is_for_huge(&self, subject: &Subject, piece: Span, written: &[Span]) -> bool {
        !written.is_empty()
            && self.tables.ledger.huge.is_open()
            && suits(piece, self.all_runs(subject, piece, written).bytes(), subject.traits)
    }

    /// Returns where a part has bytes that are not zero: its written runs, and what its extent holds.
    fn all_runs(&self, subject: &Subject, part: Span, written: &[Span]) -> PieceRuns {
        subject.runs(self.tables.contents, part, written)
    }

    /// Makes a piece a huge page, if one can be had.
    ///
    /// # Safety
    ///
    /// 1. As [`repair_all`](Self::repair_all).
    /// 2. `piece` is in the subject's mapping, which is a private one of its extent.
    /// 3. `written` are its written runs.
    unsafe fn make_huge(&mut self, subject: &Subject, piece: Span, written: &[Span]) -> Result<Asked, Stopped> {
        // The old mapping moved aside, the new one, and what is left on both sides.
        self.budget.take_mappings(3)?;
        let runs = |_, part| self.all_runs(subject, part, written);
        // SAFETY: 1. a part of a private mapping that can be read, whose bytes outside the runs are zeros; nothing uses
        // it (1 and 2 above).
        let asked = unsafe { make_huge(piece, &std::iter::once(piece).collect(), runs, subject.traits) }?;
        self.tables.ledger.asked(piece, asked);
        self.repaired.huge += usize::from(asked == Asked::Made);
        Ok(asked)
    }

    /// Copies a part of a frozen mapping that was written to.
    ///
    /// # Safety
    ///
    /// 1. As [`repair_all`](Self::repair_all).
    /// 2. `part` is in the subject's mapping, which is a private one of its extent.
    /// 3. `written` are its written runs, and perhaps others.
    unsafe fn copy_part(
        &mut self,
        subject: &mut Subject,
        part: Span,
        written: &[Span],
        fate: Fate,
    ) -> Result<(), Stopped> {
        if fate == Fate::Left {
            return Ok(());
        }
        let traits = subject.traits;
        let runs = self.all_runs(subject, part, written);
        self.budget.take_mappings(2)?;
        if fate == Fate::Anonymous {
            // SAFETY: 1. whole pages of a private mapping, whose bytes outside the runs are zeros; nothing writes to
            // them (1 above).
            unsafe { make_anonymous(part, &runs, traits) }?;
            self.repaired.thawed += 1;
            return Ok(());
        }
        let fresh = match &mut subject.fresh {
            Some(fresh) => fresh,
            None => subject.fresh.insert(Fresh::create(self.tables, subject.vma.start & !(PIECE - 1))?),
        };
        // SAFETY: 1. a private mapping, whose bytes outside the runs are zeros. 2. is (1). 3. written pages and
        // contents of the file.
        match unsafe { fresh.take(self.tables, part, &runs, traits) }? {
            Outcome::Frozen(_) => self.repaired.copied += 1,
            Outcome::Unreadable => {}
        }
        Ok(())
    }
}

/// The parts of a piece around its written pages.
type Stretches = ArrayVec<Span, MOST_STRETCHES>;

fn whole(piece: Span) -> Stretches {
    std::iter::once(piece).collect()
}

/// Returns the parts of a piece around what was written; the whole piece if there are many, or if they are most of it.
fn stretches(piece: Span, written: &[Span]) -> Stretches {
    let mut found = Stretches::new();
    let mut bytes = 0;
    for run in written {
        let wide = run.rounded_out(GRAIN).intersection(piece);
        if let Some(last) = found.last_mut().filter(|last| last.end >= wide.start) {
            last.end = wide.end;
        } else if found.try_push(wide).is_err() {
            return whole(piece);
        }
        bytes += run.len();
    }
    if bytes * 2 >= piece.len() { whole(piece) } else { found }
}
