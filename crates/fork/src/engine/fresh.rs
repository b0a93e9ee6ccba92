//! An extent that is being filled.

use palimpsest_sys::memory::extent::{Extent, ExtentError, FileId, Use};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;

use super::budget::Stopped;
use super::piece::{Outcome, Target, freeze_piece};
use super::records::Held;
use super::tables::Tables;

/// An extent that is being filled, with its descriptor. It lives for part of a round.
#[derive(Debug)]
pub(super) struct Fresh {
    extent: Extent,
    serial: u32,
    /// The address stored at its offset 0.
    base: usize,
    /// The addresses whose contents were stored, even if the store failed.
    origin: Span,
    /// Bytes stored.
    stored: usize,
}

impl Fresh {
    /// Makes an empty extent for memory from `base` on, a multiple of [`PIECE`](super::piece::PIECE).
    pub(super) fn create(tables: &mut Tables<'_>, base: usize) -> Result<Self, ExtentError> {
        let extent = Extent::create(Use::Frozen)?;
        let Tables { contents, extents, .. } = tables;
        let serial = contents.next_serial(|serial| extents.iter().any(|held| held.serial == serial));
        Ok(Self { extent, serial, base, origin: Span::default(), stored: 0 })
    }

    /// Returns which file it is.
    pub(super) const fn id(&self) -> FileId {
        self.extent.id()
    }

    /// Freezes a piece into it.
    ///
    /// # Safety
    ///
    /// As [`freeze_piece`].
    pub(super) unsafe fn take(
        &mut self,
        tables: &mut Tables<'_>,
        piece: Span,
        runs: &[Span],
        traits: Traits,
    ) -> Result<Outcome, ExtentError> {
        let start = if self.origin.is_empty() { piece.start } else { self.origin.start.min(piece.start) };
        self.origin = Span::new(start, self.origin.end.max(piece.end));
        let target = Target { extent: &self.extent, base: self.base };
        // SAFETY: as this function's own.
        let outcome = unsafe { freeze_piece(target, piece, runs, traits) }?;
        if let Outcome::Frozen(bytes) = outcome {
            self.stored += bytes;
            for run in runs {
                tables.contents.note(self.serial, run.start - self.base..run.end - self.base);
            }
        }
        Ok(outcome)
    }

    /// Seals it, closes its descriptor and enters it in the tables; its mappings have `traits`.
    pub(super) fn keep(self, tables: &mut Tables<'_>, traits: Traits) -> Result<(), Stopped> {
        let Self { mut extent, serial, origin, stored, .. } = self;
        let sealed = extent.seal();
        extent.close();
        tables.add_extent(Held::new(extent.id(), serial, (stored, origin), traits))?;
        Ok(sealed?)
    }
}
