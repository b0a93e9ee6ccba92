//! Freezes what was planned: window by window, extent by extent, piece by piece.

use std::ops::ControlFlow;

use arrayvec::ArrayVec;
use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, Wanted};

use super::budget::{Budget, Stopped};
use super::fresh::Fresh;
use super::huge::fills;
use super::piece::{Outcome, PIECE};
use super::prices::extents_of;
use super::records::Skipped;
use super::tables::Tables;
use crate::options::{ExtentLen, Pages};
use crate::report::Skip;

/// Least length of a window, which is scanned in one go.
const WINDOW: usize = 1 << 30;

/// What a freeze counts.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    /// Extents made.
    pub(crate) extents: usize,
    pub(crate) frozen: usize,
    /// Most memory held twice at one time, in bytes.
    pub(crate) peak_extra: usize,
    pub(crate) collapsed: usize,
}

/// Returns the length of extents for this many populated bytes. Each extent costs every fork and its child's exit about
/// 0.65 µs together, for ever; one that was written to costs 14 µs for each present MiB, until a repair cuts the
/// written piece out.
pub(super) fn extent_len(wanted: ExtentLen, populated: usize) -> usize {
    let wanted = match wanted {
        ExtentLen::Auto => {
            // Rounds down what is only a little more than a power of two.
            let wanted = populated / extents_of(populated);
            wanted - wanted / 4
        }
        ExtentLen::Bytes(bytes) => bytes,
    };
    // A power of two, and half the address space is more than any extent needs.
    wanted.min(usize::MAX / 4).next_power_of_two().max(PIECE)
}

/// A freeze at work: what it needs and what it has done.
pub(super) struct Freezer<'a, 't> {
    pub(super) tables: &'a mut Tables<'t>,
    pub(super) pagemap: &'a Pagemap,
    pub(super) pages: Pages,
    /// Length of an extent in bytes.
    pub(super) extent: usize,
    pub(super) budget: &'a mut Budget,
    pub(super) figures: Counts,
}

impl Freezer<'_, '_> {
    /// Freezes everything eligible.
    ///
    /// # Safety
    ///
    /// 1. Nothing else in the process runs or writes to eligible memory, the kernel on behalf of earlier requests
    ///    included.
    pub(super) unsafe fn freeze_all(&mut self) -> Result<(), Stopped> {
        for index in 0..self.tables.eligible.len() {
            let whole = self.tables.eligible[index].span;
            for window in whole.cut(self.extent.max(WINDOW)) {
                let mut from = window.start;
                while from < window.end {
                    let next = self.collect_runs(Span::new(from, window.end))?;
                    for part in Span::new(from, next).cut(self.extent) {
                        // SAFETY: 1. is this function's own.
                        unsafe { self.freeze_part(index, part) }?;
                    }
                    from = next;
                }
            }
        }
        Ok(())
    }

    /// Fills the table of runs with the populated runs of `span`. Returns up to where: the end of an extent, or of the
    /// span. If not all fit, the last extent is left for the next call.
    fn collect_runs(&mut self, span: Span) -> Result<usize, PagemapError> {
        let runs = &mut self.tables.runs;
        runs.clear();
        let mut full_at = None;
        self.pagemap.scan(span.range(), Wanted::Present, &mut |run| match runs.push(run.clone().into()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => {
                full_at = Some(run.start);
                ControlFlow::Break(())
            }
        })?;
        let end = full_at.map_or(span.end, |at| at & !(self.extent - 1));
        // One extent has more runs than fit, which takes more than 1 GiB: freeze its pieces in several calls.
        Ok(if end > span.start { end } else { full_at.unwrap_or(span.end) & !(PIECE - 1) })
    }

    /// Freezes the populated pieces of `part`, a part of the eligible memory `index`, into one extent.
    ///
    /// # Safety
    ///
    /// As [`freeze_all`](Self::freeze_all).
    unsafe fn freeze_part(&mut self, index: usize, part: Span) -> Result<(), Stopped> {
        let mut extent = None;
        // SAFETY: as this function's own.
        let result = unsafe { self.freeze_pieces(index, part, &mut extent) };
        // Mappings of it may exist, whatever happened.
        let kept = extent.map_or(Ok(()), |fresh: Fresh| {
            self.figures.extents += 1;
            let traits = self.tables.eligible[index].traits;
            fresh.keep(self.tables, traits)
        });
        result.and(kept)
    }

    /// # Safety
    ///
    /// As [`freeze_all`](Self::freeze_all).
    unsafe fn freeze_pieces(&mut self, index: usize, part: Span, extent: &mut Option<Fresh>) -> Result<(), Stopped> {
        let traits = self.tables.eligible[index].traits;
        let base = part.start & !(PIECE - 1);
        let mut next = self.tables.runs.partition_point(|run| run.end <= part.start);
        let mut frozen_to = 0;
        for piece in part.cut(PIECE) {
            let (runs, populated, after) = runs_of(&self.tables.runs, next, piece);
            next = after;
            if populated == 0 {
                continue;
            }
            if populated < piece.len() && self.pagemap.has_guards(piece.range()) {
                self.tables.skipped.push(Skipped { span: piece, populated, reason: Skip::Guarded })?;
                continue;
            }
            if !self.budget.begin_piece() {
                return Err(Stopped::Time);
            }
            // A piece that does not continue the previous one becomes a mapping of its own, and so does the memory
            // behind that one.
            self.budget.take_mappings(if frozen_to == piece.start { 0 } else { 2 })?;
            let extent = match extent {
                Some(extent) => extent,
                None => extent.insert(Fresh::create(self.tables, base)?),
            };
            // SAFETY: 1. a part of an eligible mapping, as the inventory has it, and nothing has changed the mappings
            // since but us. 2. is the caller's. 3. the runs are what the kernel calls populated, cut to the piece.
            match unsafe { extent.take(self.tables, piece, &runs, traits) }? {
                Outcome::Frozen(bytes) => {
                    frozen_to = piece.end;
                    self.figures.frozen += bytes;
                    self.figures.peak_extra = self.figures.peak_extra.max(bytes);
                    self.tables.eligible[index].frozen += bytes;
                    if self.pages == Pages::Collapse && fills(populated) && collapse_frozen(piece) {
                        self.figures.collapsed += 1;
                    }
                }
                Outcome::Unreadable => {
                    self.tables.skipped.push(Skipped { span: piece, populated, reason: Skip::Guarded })?;
                }
            }
        }
        Ok(())
    }
}

/// The populated runs of a piece: at most every other page is one.
type Runs = ArrayVec<Span, { PIECE / 4096 / 2 }>;

/// Cuts the sorted `runs`, from `first` on, to `piece`. Returns them, their length, and where the next piece's begin.
fn runs_of(runs: &[Span], first: usize, piece: Span) -> (Runs, usize, usize) {
    let mut own = Runs::new();
    let (mut next, mut populated) = (first, 0);
    while let Some(run) = runs.get(next).filter(|run| run.start < piece.end) {
        let part = run.intersection(piece);
        if !part.is_empty() {
            own.push(part);
            populated += part.len();
        }
        if run.end > piece.end {
            break;
        }
        next += 1;
    }
    (own, populated, next)
}

/// Asks for a huge page in place of a frozen piece. A refusal is no error: the piece stays as it is.
pub(super) fn collapse_frozen(piece: Span) -> bool {
    // SAFETY: 1. a collapse keeps contents and rights.
    piece.len() == PIECE && unsafe { calls::advise(piece, libc::MADV_COLLAPSE) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_grow_with_what_is_frozen() {
        assert_eq!(extent_len(ExtentLen::Auto, 100), 2 << 20);
        assert_eq!(extent_len(ExtentLen::Auto, 512 << 20), 32 << 20);
        assert_eq!(extent_len(ExtentLen::Auto, 520 << 20), 32 << 20);
        assert_eq!(extent_len(ExtentLen::Auto, 2 << 30), 256 << 20);
        assert_eq!(extent_len(ExtentLen::Auto, (4 << 30) + 1), 1 << 30);
        assert_eq!(extent_len(ExtentLen::Bytes(3 << 20), 0), 4 << 20);
        assert!(extent_len(ExtentLen::Bytes(usize::MAX), 0).is_power_of_two());
    }

    #[test]
    fn runs_are_cut_to_their_piece() {
        let runs = [Span::new(0x1000, PIECE + 0x2000), Span::new(PIECE + 0x4000, PIECE + 0x5000)];
        let (first, populated, next) = runs_of(&runs, 0, Span::new(0, PIECE));
        assert_eq!((&*first, populated, next), (&[Span::new(0x1000, PIECE)][..], PIECE - 0x1000, 0));
        let (second, populated, next) = runs_of(&runs, next, Span::new(PIECE, 2 * PIECE));
        assert_eq!(*second, [Span::new(PIECE, PIECE + 0x2000), runs[1]]);
        assert_eq!((populated, next), (0x3000, 2));
    }
}
