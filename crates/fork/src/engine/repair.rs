//! Frozen memory that was written to since: made cheap again.
//!
//! The first write to a private mapping of a file gives the whole mapping an `anon_vma`, and from then on each fork
//! copies every page table entry of it, clean ones included (`vma_needs_copy` in `mm/memory.c`). Only a new mapping is
//! without. So in each mapping with written pages, the pieces without any are mapped afresh from the same extent, which
//! loses nothing, and the written ones are copied to a new extent: the old one is sealed, and children may show it. Of
//! a piece with few written pages only the stretches around those are copied, and its rest is mapped afresh: they
//! become small mappings of their own, and when they are written to again, they alone are dear. What is written to
//! round after round is left alone for a while, a whole piece as anonymous memory.
//!
//! A sealed file cannot give back the memory of pieces that nothing shows any more. Once these are more than half of
//! it, its other pieces are copied too, so that it goes altogether: as many bytes at most as were replaced before.

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::view::View;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::{Pagemap, Wanted};
use palimpsest_sys::pages::vmas::{Vma, VmaFlags};

use super::freeze::{Budget, Fresh, Stopped};
use super::guards::Guards;
use super::piece::{Outcome, PIECE, show_again};
use super::plan::Excluded;
use super::registry::State;
use super::runs::PieceRuns;
use super::span::Span;
use super::thawing::make_anonymous;
use super::traits::Traits;
use crate::report::Skip;

/// What is copied around a written page at least, in bytes: as much as a read fault maps at once (`fault_around_bytes`
/// in `mm/memory.c`).
const GRAIN: usize = 64 << 10;
/// Mappings up to this long are not divided any more.
const SMALL: usize = 4 * GRAIN;
/// A piece with more stretches than this is copied as a whole: each that is written to again costs a fork 1.6 µs, and 2
/// MiB of anonymous memory 4 µs.
const MOST_STRETCHES: usize = 2;
/// Rounds that a hot piece is left alone for at most. Not many, since rounds get rarer where they gain nothing.
const MOST_REST: u64 = 8;
/// From this many hot pieces on, all others that were written to are taken for hot too.
pub(crate) const MOST_HOT: usize = 1 << 13;

/// A piece, or a part of one, that was written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HotPiece {
    pub(crate) span: Span,
    /// The round that found it written to last.
    found: u64,
    /// For how many rounds it stays anonymous the next time.
    rest: u64,
    /// The round in which it may be frozen again; 0 while it is frozen.
    until: u64,
}

impl HotPiece {
    /// Whether it is left alone for now.
    pub(crate) const fn is_resting(&self, round: u64) -> bool {
        self.until > round
    }
}

/// The figures of a repair.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// Mappings with written pages.
    pub(crate) mappings: usize,
    /// Pieces that were mapped afresh from their extent.
    pub(crate) renewed: usize,
    /// Pieces that were copied to a new extent.
    pub(crate) copied: usize,
    /// Pieces that became anonymous.
    pub(crate) thawed: usize,
    /// Pieces, and stretches between them, that could not be worked on.
    pub(crate) failed: usize,
}

/// Flags of a mapping that must not be replaced even if it is ours.
const UNTOUCHABLE: VmaFlags = VmaFlags::LOCKED
    .union(VmaFlags::USERFAULT)
    .union(VmaFlags::DONT_FORK)
    .union(VmaFlags::SEALED)
    .union(VmaFlags::TAGGED);

impl State {
    /// Excludes pieces that rest from what will be frozen. Forgets those that were not written to for long.
    pub(crate) fn exclude_resting(&mut self, round: u64) -> Result<(), Stopped> {
        let mut kept = 0;
        for index in 0..self.hot.len() {
            let mut piece = self.hot[index];
            if piece.is_resting(round) {
                self.excluded.push(Excluded { span: piece.span, reason: Skip::Hot })?;
            } else if piece.until != 0 {
                piece.until = 0;
                piece.found = round;
            } else if round - piece.found > 2 * piece.rest {
                continue;
            }
            self.hot[kept] = piece;
            kept += 1;
        }
        self.hot.truncate(kept);
        Ok(())
    }

    /// Whether a written piece is better left anonymous in this round; remembers it.
    fn is_hot(&mut self, piece: Span, round: u64) -> Result<bool, Stopped> {
        if let Some(known) = self.hot.iter_mut().find(|known| known.span == piece) {
            if known.is_resting(round) {
                return Ok(true);
            }
            // Its rest has ended in this very round.
            if known.found == round {
                return Ok(false);
            }
            let again = round - known.found <= 1;
            known.found = round;
            if again {
                known.rest = (known.rest * 2).min(MOST_REST);
                known.until = round + known.rest;
            }
            return Ok(again);
        }
        if self.hot.len() >= MOST_HOT {
            return Ok(true);
        }
        self.hot.push(HotPiece { span: piece, found: round, rest: 2, until: 0 })?;
        Ok(false)
    }

    /// What is to be done about a mapping; nothing if it has no written pages, or may not be touched.
    fn work_on(&mut self, vma: &Vma) -> Option<Subject> {
        if !may_be_replaced(vma) {
            return None;
        }
        let held = self.held(FileId { device: vma.device, inode: vma.inode })?;
        if held.is_view(vma) {
            return None;
        }
        let work = match (held.is_to_go(), vma.anonymous, held.view()) {
            (true, ..) => Work::Move,
            (false, 0, _) => return None,
            (false, _, Some(view)) => Work::Renew(view),
            (false, _, None) => Work::Move,
        };
        Some(Subject { vma: *vma, serial: held.serial, traits: held.traits(vma), work, fresh: None })
    }

    /// What a repair is going to take, in nanoseconds, as far as the figures of the mappings tell: new mappings, and
    /// copies.
    pub(crate) fn quote(&mut self, round: u64, per_mib: u64) -> u64 {
        /// A mapping that replaces one with present pages.
        const MAPPING: usize = 6_000;
        let page = rustix::param::page_size();
        let (mut mappings, mut bytes) = (0, self.eligible_bytes());
        for index in 0..self.vmas.len() {
            let vma = self.vmas[index];
            let Some(subject) = self.work_on(&vma) else { continue };
            let len = vma.range().len();
            if subject.work == Work::Move {
                mappings += len.div_ceil(PIECE);
                bytes += len;
                continue;
            }
            let span = Span::from(vma.range());
            if len <= SMALL && self.hot.iter().any(|known| known.span == span && known.is_resting(round)) {
                continue;
            }
            // Scattered as badly as can be.
            let stretches = (vma.anonymous / page).min(len / GRAIN + 1);
            mappings += len / PIECE + 1 + 2 * stretches;
            bytes += (stretches * GRAIN).min(len);
        }
        (mappings * MAPPING) as u64 + (bytes as u64 >> 10) * (per_mib >> 10)
    }
}

/// A repair at work: what it needs, and what it has done.
pub(crate) struct Repairer<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) pagemap: &'a Pagemap,
    pub(crate) guards: &'a Guards,
    pub(crate) round: u64,
    pub(crate) budget: &'a mut Budget,
    pub(crate) repaired: Repaired,
}

/// A frozen mapping under repair.
struct Subject {
    vma: Vma,
    /// The number of the extent that it shows.
    serial: u32,
    /// What replaces it must have.
    traits: Traits,
    work: Work,
    /// What its written parts are copied to, once there are any.
    fresh: Option<Fresh>,
}

impl Subject {
    /// The address where the extent's offset 0 would lie: below the mapping, since offsets are small.
    fn base(&self) -> usize {
        self.vma.start.wrapping_sub(self.vma.offset as usize)
    }
}

/// What is done about a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Its written parts are copied, and the rest is mapped afresh from this.
    Renew(View),
    /// All of it is copied, so that its extent has no mapping any more.
    Move,
}

/// Whether a mapping of an extent may be replaced by another one with the same bytes.
pub(crate) fn may_be_replaced(vma: &Vma) -> bool {
    let has = |permission| vma.permissions.contains(permission);
    let is_ordinary = has(Permissions::READ) && !has(Permissions::EXECUTE) && !has(Permissions::SHARED);
    is_ordinary && !vma.flags.intersects(UNTOUCHABLE) && vma.protection_key == 0
}

/// What becomes of a written part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is frozen again, in another extent.
    Frozen,
    /// It becomes anonymous, since it is written to all the time.
    Anonymous,
    /// It stays as it is: so small a mapping costs a fork little.
    Left,
}

impl Repairer<'_> {
    /// Makes every frozen mapping with written pages cheap again. What cannot be stays as it is, and the others are
    /// gone on with; the first reason is given.
    ///
    /// # Safety
    ///
    /// 1. As [`freeze_all`](super::freeze::Freezer::freeze_all), for frozen memory.
    pub(crate) unsafe fn repair_all(&mut self) -> Result<(), Stopped> {
        let mut result = Ok(());
        for index in 0..self.state.vmas.len() {
            let vma = self.state.vmas[index];
            let Some(subject) = self.state.work_on(&vma) else { continue };
            self.repaired.mappings += 1;
            // SAFETY: 1. is this function's own; the mapping is one of the extent, says the list that was read with
            // nothing else running.
            result = result.and(unsafe { self.repair_mapping(subject) });
        }
        result
    }

    /// First the written parts are taken away, then what is between them is mapped afresh in one go: a new mapping that
    /// lies beside a part of the old one is joined to it by the kernel, and has its `anon_vma` at once.
    ///
    /// # Safety
    ///
    /// 1. As [`repair_all`](Self::repair_all).
    /// 2. The subject's mapping is a private one of its extent.
    unsafe fn repair_mapping(&mut self, mut subject: Subject) -> Result<(), Stopped> {
        let whole = Span::from(subject.vma.range());
        self.state.runs.clear();
        let mut result = Ok(());
        for piece in whole.cut(PIECE) {
            // SAFETY: 1. is this function's own. 2. the piece is in the mapping (2).
            let taken = unsafe { self.take_written(&mut subject, piece) };
            if taken.is_err() {
                self.repaired.failed += 1;
            }
            // A table is full, so that not all that was written may be in it.
            let is_listed = !matches!(taken, Err(Stopped::Tables(_)));
            result = result.and(taken);
            if !is_listed {
                self.state.runs.clear();
                // There is room for one.
                let _ = self.state.runs.push(whole);
                break;
            }
        }
        let mut at = whole.start;
        for index in 0..=self.state.runs.len() {
            let taken = self.state.runs.get(index).copied().unwrap_or(Span::new(whole.end, whole.end));
            let clean = Span::new(at, taken.start);
            at = taken.end;
            if clean.is_empty() {
                continue;
            }
            let Work::Renew(view) = subject.work else { continue };
            // SAFETY: 1. seen by the inventory; without written pages, this part shows the extent's bytes and nothing
            // else. 2. (1).
            match unsafe { show_again(view, subject.base(), clean, subject.traits) } {
                Ok(()) => self.repaired.renewed += clean.len().div_ceil(PIECE),
                Err(error) => {
                    self.repaired.failed += 1;
                    result = result.and(Err(error.into()));
                }
            }
        }
        // Whatever happened, mappings of it may be there.
        let traits = subject.traits;
        let kept = subject.fresh.map_or(Ok(()), |fresh| self.state.keep(fresh, traits, self.budget));
        result.and(kept)
    }

    /// Copies the written parts of a piece, or leaves them alone, and adds them to the table of runs. Where the extent
    /// cannot be mapped again, all of it is taken.
    ///
    /// # Safety
    ///
    /// 1. As [`repair_all`](Self::repair_all).
    /// 2. `piece` is in the subject's mapping, which is a private one of its extent.
    unsafe fn take_written(&mut self, subject: &mut Subject, piece: Span) -> Result<(), Stopped> {
        let mut written = PieceRuns::new();
        let scanned = self.pagemap.scan(piece.range(), Wanted::Written, &mut |run| written.push(run.into()));
        // Used by running code is, for one, the stack of a thread that was started in the place of one that had ended.
        if scanned.is_err() || self.state.is_in_use(piece) || self.guards.any_in(piece) {
            self.state.runs.push(piece)?;
            return Ok(scanned?);
        }
        let stretches = match subject.work {
            Work::Renew(_) => Stretches::new(piece, &subject.vma, &written),
            Work::Move => Stretches::whole(piece),
        };
        let is_small = subject.vma.range().len() <= SMALL;
        // Whatever becomes of them, none is mapped afresh.
        stretches.as_slice().iter().try_for_each(|stretch| self.state.runs.push(*stretch))?;
        let mut result = Ok(());
        for stretch in stretches.as_slice() {
            let is_hot = written.len() > 0 && *stretch == piece && self.state.is_hot(piece, self.round)?;
            let fate = match (is_hot, is_small) {
                (false, _) => Fate::Frozen,
                (true, false) => Fate::Anonymous,
                (true, true) => Fate::Left,
            };
            // SAFETY: 1. and 2. are this function's own, for a part of the piece. 3. all written runs, of which it
            // takes its own.
            result = result.and(unsafe { self.copy_part(subject, *stretch, &written, fate) });
        }
        result
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
        written: &PieceRuns,
        fate: Fate,
    ) -> Result<(), Stopped> {
        if fate == Fate::Left {
            return Ok(());
        }
        let traits = subject.traits;
        let mut runs = written.inside(part);
        self.state.contents.add_to(&mut runs, subject.serial, subject.base(), part);
        self.budget.take_mappings(2)?;
        if fate == Fate::Anonymous {
            // SAFETY: 1. whole pages of a private mapping, whose bytes outside the runs are zeros; nothing writes to
            // them (1 above).
            unsafe { make_anonymous(part, runs.as_slice(), traits) }?;
            self.repaired.thawed += 1;
            return Ok(());
        }
        let fresh = match &mut subject.fresh {
            Some(fresh) => fresh,
            None => subject.fresh.insert(Fresh::create(self.state, subject.vma.start & !(PIECE - 1))?),
        };
        // SAFETY: 1. a private mapping, whose bytes outside the runs are zeros. 2. is (1). 3. written pages and
        // contents of the file.
        match unsafe { fresh.take(self.state, part, runs.as_slice(), traits) }? {
            Outcome::Frozen(_) => self.repaired.copied += 1,
            Outcome::Unreadable => {}
        }
        Ok(())
    }
}

/// The parts of a piece around its written pages.
struct Stretches {
    all: [Span; MOST_STRETCHES],
    len: usize,
}

impl Stretches {
    fn whole(piece: Span) -> Self {
        let mut all = [Span::default(); MOST_STRETCHES];
        all[0] = piece;
        Self { all, len: 1 }
    }

    /// The whole piece if it has many, or if they are most of it anyway.
    fn new(piece: Span, vma: &Vma, written: &PieceRuns) -> Self {
        if vma.range().len() <= SMALL {
            return Self::whole(piece);
        }
        let mut found = Self { all: [Span::default(); MOST_STRETCHES], len: 0 };
        let mut bytes = 0;
        for run in written.as_slice() {
            let wide = run.rounded_out(GRAIN).intersection(piece);
            match found.all[..found.len].last_mut() {
                Some(last) if last.end >= wide.start => last.end = wide.end,
                _ if found.len == MOST_STRETCHES => return Self::whole(piece),
                _ => {
                    found.all[found.len] = wide;
                    found.len += 1;
                }
            }
            bytes += run.len();
        }
        if bytes * 2 >= piece.len() { Self::whole(piece) } else { found }
    }

    fn as_slice(&self) -> &[Span] {
        &self.all[..self.len]
    }
}
