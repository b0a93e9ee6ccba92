//! Frozen memory that was written to since: made cheap again.
//!
//! The first write to a private mapping of a file gives the whole mapping an `anon_vma`, and from then on each fork copies every page table entry of it, clean
//! ones included (`vma_needs_copy` in `mm/memory.c`). Only a new mapping is without. So in each mapping with written pages, the pieces
//! without any are mapped afresh from the same extent, which loses nothing, and the written ones are copied to a new extent: the old one is sealed, and children
//! may show it. A piece that is written to round after round becomes anonymous memory for a while.

use std::ops::ControlFlow;

use palimpsest_sys::extent::{Extent, ExtentError, FileId, map_zeros_over};
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

/// A piece that was written to.
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
    /// Whether it is anonymous memory for now.
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
const UNTOUCHABLE: VmaFlags =
    VmaFlags::LOCKED.union(VmaFlags::USERFAULT).union(VmaFlags::DONT_FORK).union(VmaFlags::SEALED);

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
            let again = round - known.found <= 1;
            known.found = round;
            if again {
                known.rest = (known.rest * 2).min(1 << 10);
                known.until = round + known.rest;
            }
            return Ok(again);
        }
        self.hot.push(HotPiece { span: piece, found: round, rest: 2, until: 0 })?;
        Ok(false)
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
            let id = FileId { device: vma.device, inode: vma.inode };
            let Some(held) = self.held(id) else { continue };
            let extent = held.extent;
            let is_code = vma.permissions.contains(Permissions::EXECUTE);
            let is_shared = vma.permissions.contains(Permissions::SHARED);
            if vma.anonymous == 0 || is_code || is_shared || vma.flags.intersects(UNTOUCHABLE) {
                continue;
            }
            repaired.mappings += 1;
            // SAFETY: 1. is this function's own; the mapping is one of `extent`, says the list that was read with nothing else running.
            let done = unsafe { self.repair_mapping(pages, round, budget, vma, extent, &mut repaired) };
            if let Err(stopped) = done {
                return (repaired, Err(stopped));
            }
        }
        (repaired, Ok(()))
    }

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
        let result = Span::from(vma.range()).cut(PIECE).try_for_each(|piece| {
            // SAFETY: 1. is this function's own. 2. the piece is in the mapping (2).
            unsafe { self.repair_piece(pages, round, budget, vma, (extent, is_open), &mut fresh, piece, repaired) }
        });
        // Whatever happened, mappings of it may be there.
        let kept = fresh.map_or(Ok(()), |fresh| keep(self, fresh, budget));
        result.and(kept)
    }

    /// # Safety
    ///
    /// 1. As [`State::repair`].
    /// 2. `piece` is in `vma`, which is a private mapping of `extent`.
    #[expect(clippy::too_many_arguments, reason = "what a mapping's pieces have in common, and what they change")]
    unsafe fn repair_piece(
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
        let Vma { permissions, flags, .. } = vma;
        // Offset 0 of the file would lie here; below the mapping, since offsets are small.
        let base = vma.start.wrapping_sub(vma.offset as usize);
        let mut runs = PieceRuns::new();
        pagemap.scan(piece.range(), Wanted::Written, &mut |run| runs.push(run.into()))?;
        let is_written = runs.len > 0;
        if guards.any_in(piece) {
            return Ok(());
        }
        if !is_written && is_open {
            // SAFETY: 1. without written pages, the piece shows the extent's bytes and nothing else.
            unsafe { show(&extent, base, piece, permissions) }?;
            restore_flags(piece, flags);
            repaired.renewed += 1;
            return Ok(());
        }
        add_contents(&mut runs, &extent, base, piece)?;
        if budget.mappings < 2 {
            return Err(Stopped::Mappings);
        }
        budget.mappings -= 2;
        if is_written && self.is_hot(piece, round)? {
            // SAFETY: 1. the runs are all bytes that are not zero, and nothing writes to them (1 above).
            unsafe { make_anonymous(piece, runs.as_slice(), permissions, flags) }?;
            repaired.thawed += 1;
            return Ok(());
        }
        let fresh = match fresh {
            Some(fresh) => fresh,
            None => fresh.insert(Extent::create()?),
        };
        let fresh_base = vma.start & !(PIECE - 1);
        // SAFETY: 1. a private mapping, whose bytes outside the runs are zeros. 2. is (1). 3. written pages and contents of the file.
        match unsafe { freeze_piece(fresh, fresh_base, piece, runs.as_slice(), permissions, flags) }? {
            Outcome::Frozen(_) => repaired.copied += 1,
            Outcome::Unreadable => {}
        }
        Ok(())
    }
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
    let mut copy = Extent::create()?;
    let offset = |at: usize| (at - piece.start) as u64;
    let stored = runs.iter().try_for_each(|run| copy.store(run.range(), offset(run.start)));
    if let Err(error) = stored {
        copy.close();
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
        let rights = rustix::mm::MprotectFlags::from_bits_retain(rights(permissions));
        let at = std::ptr::with_exposed_provenance_mut(piece.start);
        // SAFETY: takes away a right that the memory did not have before.
        let _: Result<(), Errno> = unsafe { rustix::mm::mprotect(at, piece.len(), rights) };
    }
    restore_flags(piece, flags);
    Ok(())
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
