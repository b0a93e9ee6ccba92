//! Frozen memory that was written to since: made cheap again.
//!
//! The first write to a private mapping of a file gives the whole mapping an `anon_vma`, and from then on each fork copies every page table entry of it, clean
//! ones included (`vma_needs_copy` in `mm/memory.c`). Only a new mapping is without. So in each mapping with written pages, the pieces
//! without any are mapped afresh from the same extent, which loses nothing, and the written ones are copied to a new extent: the old one is sealed, and children
//! may show it. Of a piece with few written pages only the stretches around those are copied, and its rest is mapped afresh: they become small mappings of their own, and
//! when they are written to again, they alone are dear. What is written to round after round is left alone for a while, a whole piece as anonymous memory.

use std::ops::ControlFlow;

use palimpsest_sys::extent::{Extent, ExtentError, Use, map_zeros_over};
use palimpsest_sys::pagemap::{Pagemap, Wanted};
use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::{Vma, VmaFlags};
use rustix::io::Errno;

use super::freeze::{Budget, Stopped, keep};
use super::guards::Guards;
use super::piece::{Outcome, PIECE, freeze_piece, give_up, restore_flags, show};
use super::plan::Excluded;
use super::registry::State;
use super::span::Span;
use crate::report::Skip;

/// What is copied around a written page at least, in bytes: as much as a read fault maps at once (`fault_around_bytes` in `mm/memory.c`).
const GRAIN: usize = 64 << 10;
/// Mappings up to this long are not divided any more.
const SMALL: usize = 4 * GRAIN;
/// A piece with more stretches than this is copied as a whole: each that is written to again costs a fork 1.6 µs, and 2 MiB of anonymous memory 4 µs.
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
}

/// Flags of a mapping that must not be replaced even if it is ours.
const UNTOUCHABLE: VmaFlags = VmaFlags::LOCKED
    .union(VmaFlags::USERFAULT)
    .union(VmaFlags::DONT_FORK)
    .union(VmaFlags::SEALED)
    .union(VmaFlags::TAGGED);

/// Runs of pages in a piece, ascending and apart.
pub(crate) struct PieceRuns {
    all: [Span; PIECE / 4096],
    len: usize,
}

impl PieceRuns {
    pub(crate) const fn new() -> Self {
        Self { all: [Span::new(0, 0); PIECE / 4096], len: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[Span] {
        &self.all[..self.len]
    }

    /// Adds a run; after all are there, [`join`](Self::join) puts them in order.
    pub(crate) fn push(&mut self, run: Span) -> ControlFlow<()> {
        match self.all.get_mut(self.len) {
            Some(place) => {
                *place = run;
                self.len += 1;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }

    fn join(&mut self) {
        self.all[..self.len].sort_unstable();
        let mut joined = 0;
        for index in 0..self.len {
            let run = self.all[index];
            if joined > 0 && run.start <= self.all[joined - 1].end {
                self.all[joined - 1].end = self.all[joined - 1].end.max(run.end);
            } else {
                self.all[joined] = run;
                joined += 1;
            }
        }
        self.len = joined;
    }
}

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

    /// The extent that a mapping shows, if it has written pages and may be repaired.
    fn dirty_extent(&mut self, vma: &Vma) -> Option<Extent> {
        let has = |permission| vma.permissions.contains(permission);
        let is_ordinary = has(Permissions::READ) && !has(Permissions::EXECUTE) && !has(Permissions::SHARED);
        if vma.anonymous == 0 || !is_ordinary || vma.flags.intersects(UNTOUCHABLE) || vma.protection_key != 0 {
            return None;
        }
        self.extent_of(vma)
    }

    /// What a repair is going to take, in nanoseconds, as far as the figures of the mappings tell: new mappings, and copies.
    pub(crate) fn quote(&mut self, round: u64, per_mib: u64) -> u64 {
        /// A mapping that replaces one with present pages.
        const MAPPING: usize = 6_000;
        let page = rustix::param::page_size();
        let (mut mappings, mut bytes) = (0, self.eligible_bytes());
        for index in 0..self.vmas.len() {
            let vma = self.vmas[index];
            if self.dirty_extent(&vma).is_none() {
                continue;
            }
            let len = vma.range().len();
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

    /// Makes every frozen mapping with written pages cheap again.
    ///
    /// # Safety
    ///
    /// 1. As [`freeze_all`](super::freeze::freeze_all), for frozen memory.
    pub(crate) unsafe fn repair(
        &mut self,
        pages: (&Pagemap, &Guards),
        round: u64,
        budget: &mut Budget,
    ) -> (Repaired, Result<(), Stopped>) {
        let mut repaired = Repaired::default();
        for index in 0..self.vmas.len() {
            let vma = self.vmas[index];
            let Some(extent) = self.dirty_extent(&vma) else { continue };
            repaired.mappings += 1;
            // SAFETY: 1. is this function's own; the mapping is one of `extent`, says the list that was read with nothing else running.
            let done = unsafe { self.repair_mapping(pages, round, budget, vma, extent, &mut repaired) };
            if let Err(stopped) = done {
                return (repaired, Err(stopped));
            }
        }
        (repaired, Ok(()))
    }

    /// First the written parts are taken away, then what is between them is mapped afresh in one go: a new mapping that lies beside a part of the old one is
    /// joined to it by the kernel, and has its `anon_vma` at once.
    ///
    /// # Safety
    ///
    /// 1. As [`State::repair`].
    /// 2. `vma` is a private mapping of `extent`.
    unsafe fn repair_mapping(
        &mut self,
        pages: (&Pagemap, &Guards),
        round: u64,
        budget: &mut Budget,
        vma: Vma,
        extent: Extent,
        repaired: &mut Repaired,
    ) -> Result<(), Stopped> {
        let mut fresh = None;
        let is_open = extent.is_open();
        self.runs.clear();
        let result = Span::from(vma.range()).cut(PIECE).try_for_each(|piece| {
            // SAFETY: 1. is this function's own. 2. the piece is in the mapping (2).
            unsafe { self.take_written(pages, round, budget, vma, (extent, is_open), &mut fresh, piece, repaired) }
        });
        let result = result.and_then(|()| {
            let mut at = vma.start;
            for index in 0..=self.runs.len() {
                let taken = self.runs.get(index).copied().unwrap_or(Span::new(vma.end, vma.end));
                let clean = Span::new(at, taken.start);
                at = taken.end;
                if clean.is_empty() {
                    continue;
                }
                // SAFETY: 1. without written pages, this part shows the extent's bytes and nothing else.
                unsafe { show(&extent, vma.start.wrapping_sub(vma.offset as usize), clean, vma.permissions) }?;
                restore_flags(clean, vma.flags);
                repaired.renewed += clean.len().div_ceil(PIECE);
            }
            Ok(())
        });
        // Whatever happened, mappings of it may be there.
        let kept = fresh.map_or(Ok(()), |fresh| keep(self, fresh, budget));
        result.and(kept)
    }

    /// Copies the written parts of a piece, or leaves them alone, and adds them to `runs`. Where the extent cannot be mapped again, all of it is taken.
    ///
    /// # Safety
    ///
    /// 1. As [`State::repair`].
    /// 2. `piece` is in `vma`, which is a private mapping of `extent`.
    #[expect(clippy::too_many_arguments, reason = "what a mapping's pieces have in common, and what they change")]
    unsafe fn take_written(
        &mut self,
        (pagemap, guards): (&Pagemap, &Guards),
        round: u64,
        budget: &mut Budget,
        vma: Vma,
        (extent, is_open): (Extent, bool),
        fresh: &mut Option<Extent>,
        piece: Span,
        repaired: &mut Repaired,
    ) -> Result<(), Stopped> {
        let mut written = PieceRuns::new();
        pagemap.scan(piece.range(), Wanted::Written, &mut |run| written.push(run.into()))?;
        // Used by running code is, for one, the stack of a thread that was started in the place of one that had ended.
        if self.is_in_use(piece) || guards.any_in(piece) {
            return Ok(self.runs.push(piece)?);
        }
        let stretches = if is_open { Stretches::new(piece, &vma, &written) } else { Stretches::whole(piece) };
        for stretch in stretches.as_slice() {
            self.runs.push(*stretch)?;
            let is_hot = written.len > 0 && *stretch == piece && self.is_hot(piece, round)?;
            if is_hot && vma.range().len() <= SMALL {
                continue;
            }
            // SAFETY: 1. and 2. are this function's own, for a part of the piece. 3. all written runs, of which it takes its own.
            unsafe { copy_part(vma, &extent, fresh, *stretch, &written, is_hot, budget, repaired) }?;
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

/// Copies a part of a frozen mapping that was written to: to the extent `fresh`, or, if it is hot, to anonymous memory.
///
/// # Safety
///
/// 1. As [`State::repair`].
/// 2. `part` is in `vma`, which is a private mapping of `extent`.
/// 3. `written` are its written runs, and perhaps others.
#[expect(clippy::too_many_arguments, reason = "what a mapping's parts have in common, and what they change")]
unsafe fn copy_part(
    vma: Vma,
    extent: &Extent,
    fresh: &mut Option<Extent>,
    part: Span,
    written: &PieceRuns,
    is_hot: bool,
    budget: &mut Budget,
    repaired: &mut Repaired,
) -> Result<(), Stopped> {
    let Vma { permissions, flags, .. } = vma;
    // Offset 0 of the file would lie here; below the mapping, since offsets are small.
    let base = vma.start.wrapping_sub(vma.offset as usize);
    let mut runs = PieceRuns::new();
    for run in written.as_slice() {
        let inside = run.intersection(part);
        if !inside.is_empty() {
            let _ = runs.push(inside);
        }
    }
    add_contents(&mut runs, extent, base, part)?;
    budget.mappings = budget.mappings.checked_sub(2).ok_or(Stopped::Mappings)?;
    if is_hot {
        // SAFETY: 1. whole pages of a private mapping, whose bytes outside the runs are zeros; nothing writes to them (1 above).
        unsafe { make_anonymous(part, runs.as_slice(), permissions, flags) }?;
        repaired.thawed += 1;
        return Ok(());
    }
    let fresh = match fresh {
        Some(fresh) => fresh,
        None => fresh.insert(Extent::create(Use::Frozen)?),
    };
    let fresh_base = vma.start & !(PIECE - 1);
    // SAFETY: 1. a private mapping, whose bytes outside the runs are zeros. 2. is (1). 3. written pages and contents of the file.
    match unsafe { freeze_piece(fresh, fresh_base, part, runs.as_slice(), permissions, flags) }? {
        Outcome::Frozen(_) => repaired.copied += 1,
        Outcome::Unreadable => {}
    }
    Ok(())
}

/// Adds the runs of `piece` for which the extent has contents; all of it where that cannot be told.
pub(crate) fn add_contents(runs: &mut PieceRuns, extent: &Extent, base: usize, piece: Span) -> Result<(), ExtentError> {
    let page = rustix::param::page_size();
    let offsets = piece.start.wrapping_sub(base) as u64..piece.end.wrapping_sub(base) as u64;
    let mut is_whole = false;
    let told = extent.contents(offsets, &mut |run| {
        let start = base.wrapping_add(run.start as usize) & !(page - 1);
        let end = base.wrapping_add(run.end as usize).next_multiple_of(page);
        let flow = runs.push(Span::new(start, end).intersection(piece));
        is_whole |= flow.is_break();
        flow
    });
    if is_whole || matches!(told, Err(ExtentError::Closed { .. })) {
        runs.len = 0;
        let _ = runs.push(piece);
        return Ok(());
    }
    runs.join();
    told
}

/// Replaces `piece` by anonymous memory with the same bytes. An error leaves the bytes as they were.
///
/// # Safety
///
/// 1. `piece` is whole pages of private memory of this process, `runs` hold all bytes of it that are not zero, and nothing writes to it.
pub(crate) unsafe fn make_anonymous(
    piece: Span,
    runs: &[Span],
    permissions: Permissions,
    flags: VmaFlags,
) -> Result<(), ExtentError> {
    let mut copy = Extent::create(Use::Frozen)?;
    let offset = |at: usize| (at - piece.start) as u64;
    if !permissions.contains(Permissions::READ) {
        protect(piece, permissions.union(Permissions::READ));
    }
    let stored = runs.iter().try_for_each(|run| copy.store(run.range(), offset(run.start)));
    if let Err(error) = stored {
        copy.close();
        protect(piece, permissions);
        return Err(error);
    }
    let writable = permissions.union(Permissions::READ).union(Permissions::WRITE);
    // SAFETY: 1. all bytes are in `copy`.
    let mapped = unsafe { map_zeros_over(piece.range(), writable) };
    let filled = mapped.and_then(|()| {
        // SAFETY: 1. mapped writable above, and the caller's.
        runs.iter().try_for_each(|run| unsafe { copy.load(run.range(), offset(run.start)) })
    });
    if let Err(error) = filled {
        // What was there may be gone, but it is in the copy: show that instead.
        // SAFETY: 1. all bytes are in `copy`.
        if let Err(second) = unsafe { show(&copy, piece.start, piece, permissions) } {
            give_up(piece, second);
        }
        let _ = copy.seal();
        copy.close();
        return Err(error);
    }
    copy.close();
    if permissions != writable {
        protect(piece, permissions);
    }
    restore_flags(piece, flags);
    Ok(())
}

/// Gives a piece the rights that the program gave it, and for a moment the right to be read.
fn protect(piece: Span, permissions: Permissions) {
    let rights = rustix::mm::MprotectFlags::from_bits_retain(rights(permissions));
    let at = std::ptr::with_exposed_provenance_mut(piece.start);
    // SAFETY: no code that runs meanwhile uses the memory. A refusal, for too many mappings, is met again by who reads or writes it.
    let _: Result<(), Errno> = unsafe { rustix::mm::mprotect(at, piece.len(), rights) };
}

fn rights(permissions: Permissions) -> u32 {
    [(Permissions::READ, libc::PROT_READ), (Permissions::WRITE, libc::PROT_WRITE)]
        .into_iter()
        .filter(|(permission, _)| permissions.contains(*permission))
        .fold(0, |all, (_, right)| all | right.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined() {
        let mut runs = PieceRuns::new();
        for (start, end) in [(30, 40), (0, 10), (10, 20), (35, 36), (39, 50)] {
            let _ = runs.push(Span::new(start, end));
        }
        runs.join();
        assert_eq!(runs.as_slice(), [Span::new(0, 20), Span::new(30, 50)]);
    }
}
