//! Freezing what was planned, window by window, chunk by chunk, piece by piece.

use std::ops::ControlFlow;

use palimpsest_sys::memory::extent::{Extent, ExtentError, Use};
use palimpsest_sys::memory::view::View;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, Wanted};

use super::guards::Guards;
use super::piece::{Outcome, PIECE, Target, freeze_piece};
use super::plan::Skipped;
use super::registry::{Held, State};
use super::span::Span;
use super::traits::Traits;
use crate::options::{Chunk, Pages};
use crate::report::Skip;

/// Least length of what is scanned at a time.
const WINDOW: usize = 1 << 30;

/// What a freeze may use up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Further mappings.
    pub(crate) mappings: usize,
}

/// An extent that is being filled, with its descriptor. It lives for a part of a round.
#[derive(Debug)]
pub(crate) struct Fresh {
    extent: Extent,
    serial: u32,
    /// The address that is offset 0 in it.
    base: usize,
    /// The end of what was stored, as an offset.
    end: usize,
    /// Bytes that were stored.
    stored: usize,
}

impl Fresh {
    /// Makes an empty one for memory from `base` on, which is a multiple of [`PIECE`].
    pub(crate) fn create(state: &mut State, base: usize) -> Result<Self, ExtentError> {
        let extent = Extent::create(Use::Frozen)?;
        Ok(Self { extent, serial: state.contents.next_serial(), base, end: 0, stored: 0 })
    }

    /// Freezes a piece into it.
    ///
    /// # Safety
    ///
    /// As [`freeze_piece`].
    pub(crate) unsafe fn take(
        &mut self,
        state: &mut State,
        piece: Span,
        runs: &[Span],
        traits: Traits,
    ) -> Result<Outcome, ExtentError> {
        let target = Target { extent: &self.extent, base: self.base };
        // SAFETY: as this function's own.
        let outcome = unsafe { freeze_piece(target, piece, runs, traits) }?;
        if let Outcome::Frozen(bytes) = outcome {
            self.end = self.end.max(piece.end - self.base);
            self.stored += bytes;
            for run in runs {
                state.contents.note(self.serial, run.start - self.base..run.end - self.base);
            }
        }
        Ok(outcome)
    }
}

/// Why a freeze ended early. What is frozen stays so, and the rest is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    #[error(transparent)]
    Extent(#[from] ExtentError),
    #[error("{0}")]
    Pages(#[from] PagemapError),
    #[error("the process would have too many mappings; raise vm.max_map_count (`sysctl -w vm.max_map_count=…`)")]
    Mappings,
    #[error("{0}")]
    Tables(#[from] palimpsest_sys::memory::vec::Full),
}

/// The figures of a freeze.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Figures {
    pub(crate) chunks: usize,
    pub(crate) frozen: usize,
    /// Largest amount of memory that was held twice, in bytes.
    pub(crate) peak_extra: usize,
    pub(crate) collapsed: usize,
}

/// How many chunks memory is cut into. Each costs a fork and the child's exit about 1.1 µs together, for ever; one that
/// was written to costs 14 µs for each MiB that is present, until a repair cuts the written piece out.
const CHUNKS: usize = 32;

/// The chunk length for so many populated bytes.
pub(crate) fn chunk_len(chunk: Chunk, populated: usize) -> usize {
    let wanted = match chunk {
        Chunk::Auto => {
            // A little more than a power of two is rounded down.
            let wanted = populated / CHUNKS;
            wanted - wanted / 4
        }
        Chunk::Bytes(bytes) => bytes,
    };
    // Half the address space is more than any chunk needs, and a power of two.
    wanted.min(usize::MAX / 4).next_power_of_two().max(PIECE)
}

/// A freeze at work: what it needs, and what it has done.
pub(crate) struct Freezer<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) pagemap: &'a Pagemap,
    pub(crate) guards: &'a Guards,
    pub(crate) pages: Pages,
    /// Length of a chunk in bytes.
    pub(crate) chunk: usize,
    pub(crate) budget: Budget,
    pub(crate) figures: Figures,
}

impl Freezer<'_> {
    /// Freezes everything eligible.
    ///
    /// # Safety
    ///
    /// 1. Nothing else in the process runs or writes to eligible memory, the kernel on behalf of earlier requests
    ///    included.
    pub(crate) unsafe fn freeze_all(&mut self) -> Result<(), Stopped> {
        for index in 0..self.state.eligible.len() {
            let whole = self.state.eligible[index].span;
            for window in whole.cut(self.chunk.max(WINDOW)) {
                let mut from = window.start;
                while from < window.end {
                    let next = self.collect_runs(Span::new(from, window.end))?;
                    for part in Span::new(from, next).cut(self.chunk) {
                        // SAFETY: 1. is this function's own.
                        unsafe { self.freeze_chunk(index, part) }?;
                    }
                    from = next;
                }
            }
        }
        Ok(())
    }

    /// Fills the table of runs with the populated ones of `span`, and tells up to where: a chunk's end, or the span's.
    /// If there are more than fit, the last chunk is left for the next time.
    fn collect_runs(&mut self, span: Span) -> Result<usize, PagemapError> {
        let runs = &mut self.state.runs;
        runs.clear();
        let mut full_at = None;
        self.pagemap.scan(span.range(), Wanted::Present, &mut |run| match runs.push(run.clone().into()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => {
                full_at = Some(run.start);
                ControlFlow::Break(())
            }
        })?;
        let end = full_at.map_or(span.end, |at| at & !(self.chunk - 1));
        // A chunk with more runs than the table has room for, which takes a chunk above 1 GiB: its pieces are done in
        // several rounds.
        Ok(if end > span.start { end } else { full_at.unwrap_or(span.end) & !(PIECE - 1) })
    }

    /// Freezes the populated pieces of `part`, which is in one chunk of the eligible memory `index`, into one extent.
    ///
    /// # Safety
    ///
    /// As [`freeze_all`](Self::freeze_all).
    unsafe fn freeze_chunk(&mut self, index: usize, part: Span) -> Result<(), Stopped> {
        let mut extent = None;
        // SAFETY: as this function's own.
        let result = unsafe { self.freeze_pieces(index, part, &mut extent) };
        // Whatever happened, mappings of it may be there.
        let kept = extent.map_or(Ok(()), |fresh| {
            self.figures.chunks += 1;
            let traits = self.state.eligible[index].traits;
            self.state.keep(fresh, traits, &mut self.budget)
        });
        result.and(kept)
    }

    /// # Safety
    ///
    /// As [`freeze_all`](Self::freeze_all).
    unsafe fn freeze_pieces(&mut self, index: usize, part: Span, extent: &mut Option<Fresh>) -> Result<(), Stopped> {
        let traits = self.state.eligible[index].traits;
        let base = part.start & !(PIECE - 1);
        let mut next = self.state.runs.partition_point(|run| run.end <= part.start);
        let mut frozen_to = 0;
        for piece in part.cut(PIECE) {
            let (runs, populated, after) = runs_of(&self.state.runs, next, piece);
            next = after;
            if populated == 0 {
                continue;
            }
            if populated < piece.len() && self.guards.any_in(piece) {
                self.state.skipped.push(Skipped { span: piece, populated, reason: Skip::Guarded })?;
                continue;
            }
            // A piece that does not continue the one before becomes a mapping of its own, and so does what is left
            // behind it.
            self.budget.take_mappings(if frozen_to == piece.start { 0 } else { 2 })?;
            let extent = match extent {
                Some(extent) => extent,
                None => extent.insert(Fresh::create(self.state, base)?),
            };
            // SAFETY: 1. a part of an eligible mapping, as the inventory has it, and nothing has changed the mappings
            // since but us. 2. is the caller's. 3. the runs are what the kernel calls populated, cut to the piece.
            match unsafe { extent.take(self.state, piece, runs.as_slice(), traits) }? {
                Outcome::Frozen(bytes) => {
                    frozen_to = piece.end;
                    self.figures.frozen += bytes;
                    self.figures.peak_extra = self.figures.peak_extra.max(bytes);
                    self.state.eligible[index].frozen += bytes;
                    if self.pages == Pages::Collapse && populated * 4 >= piece.len() * 3 && collapse(piece) {
                        self.figures.collapsed += 1;
                    }
                }
                Outcome::Unreadable => {
                    self.state.skipped.push(Skipped { span: piece, populated, reason: Skip::Guarded })?;
                }
            }
        }
        Ok(())
    }
}

impl Budget {
    /// Uses up so many mappings.
    pub(crate) fn take_mappings(&mut self, count: usize) -> Result<(), Stopped> {
        self.mappings = self.mappings.checked_sub(count).ok_or(Stopped::Mappings)?;
        Ok(())
    }
}

impl State {
    /// Seals a finished extent, whose mappings have these traits, closes its descriptor and remembers it. It gets a
    /// view if there is room for one; without, a repair copies all of it.
    pub(crate) fn keep(&mut self, fresh: Fresh, traits: Traits, budget: &mut Budget) -> Result<(), Stopped> {
        let Fresh { mut extent, serial, end, stored, .. } = fresh;
        let sealed = extent.seal();
        let view = match budget.take_mappings(1) {
            Ok(()) if end > 0 => View::of(&extent, end, self.views_start()).ok(),
            _ => None,
        };
        extent.close();
        self.add_extent(Held::new(extent.id(), serial, view, stored, traits))?;
        Ok(sealed?)
    }
}

/// Up to one run for each other page of a piece.
struct Runs {
    all: [Span; PIECE / 4096 / 2],
    len: usize,
}

impl Runs {
    fn as_slice(&self) -> &[Span] {
        &self.all[..self.len]
    }
}

/// The runs of `piece` among the sorted `runs` from `first` on, cut to it; their length; and where the next piece's
/// begin.
fn runs_of(runs: &[Span], first: usize, piece: Span) -> (Runs, usize, usize) {
    let mut own = Runs { all: [Span::default(); PIECE / 4096 / 2], len: 0 };
    let (mut next, mut populated) = (first, 0);
    while let Some(run) = runs.get(next).filter(|run| run.start < piece.end) {
        let part = run.intersection(piece);
        if !part.is_empty() {
            own.all[own.len] = part;
            own.len += 1;
            populated += part.len();
        }
        if run.end > piece.end {
            break;
        }
        next += 1;
    }
    (own, populated, next)
}

/// Asks for a huge page. Refusal is no error: the piece stays as it is.
fn collapse(piece: Span) -> bool {
    if piece.len() != PIECE {
        return false;
    }
    // SAFETY: a collapse keeps contents and rights.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(piece.start), piece.len(), libc::MADV_COLLAPSE) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_with_what_is_frozen() {
        assert_eq!(chunk_len(Chunk::Auto, 100), 2 << 20);
        assert_eq!(chunk_len(Chunk::Auto, 512 << 20), 16 << 20);
        assert_eq!(chunk_len(Chunk::Auto, 520 << 20), 16 << 20);
        assert_eq!(chunk_len(Chunk::Auto, (4 << 30) + 1), 128 << 20);
        assert_eq!(chunk_len(Chunk::Bytes(3 << 20), 0), 4 << 20);
        assert!(chunk_len(Chunk::Bytes(usize::MAX), 0).is_power_of_two());
    }

    #[test]
    fn runs_are_cut_to_their_piece() {
        let runs = [Span::new(0x1000, PIECE + 0x2000), Span::new(PIECE + 0x4000, PIECE + 0x5000)];
        let (first, populated, next) = runs_of(&runs, 0, Span::new(0, PIECE));
        assert_eq!((first.as_slice(), populated, next), (&[Span::new(0x1000, PIECE)][..], PIECE - 0x1000, 0));
        let (second, populated, next) = runs_of(&runs, next, Span::new(PIECE, 2 * PIECE));
        assert_eq!(second.as_slice(), [Span::new(PIECE, PIECE + 0x2000), runs[1]]);
        assert_eq!((populated, next), (0x3000, 2));
    }
}
