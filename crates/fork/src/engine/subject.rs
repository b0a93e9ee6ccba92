//! Which frozen mappings need a repair, of which kind, and how much work it is.

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::pages::vmas::Vma;

use super::contents::Contents;
use super::fresh::Fresh;
use super::ledger::Amount;
use super::piece::PIECE;
use super::records::may_be_replaced;
use super::runs::PieceRuns;
use super::tables::Tables;

/// The least that is copied around a written page, in bytes: as much as a read fault maps at once (`fault_around_bytes`
/// in `mm/memory.c`).
pub(super) const GRAIN: usize = 64 << 10;
/// Mappings up to this length are not divided any further.
pub(super) const SMALL: usize = 4 * GRAIN;

/// A frozen mapping under repair.
pub(super) struct Subject {
    pub(super) vma: Vma,
    /// The number of its extent.
    pub(super) serial: u32,
    /// The traits of its replacement.
    pub(super) traits: Traits,
    pub(super) way: Way,
    /// Whether its extent holds something that the program has erased.
    pub(super) is_erased: bool,
    /// The extent that its written parts are copied to, once there are any.
    pub(super) fresh: Option<Fresh>,
    /// The piece that is copied as a whole, if its parts are taken one by one.
    pub(super) scattered: Span,
}

/// How to repair a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Copy its written parts, and renew the rest.
    Renew,
    /// Copy all of it, so that its extent has no mapping any more.
    Move,
}

impl Subject {
    /// Returns what to do about a mapping; `None` if it has no written pages, or may not be touched.
    pub(super) fn of(tables: &mut Tables<'_>, vma: &Vma) -> Option<Self> {
        if !may_be_replaced(vma) {
            return None;
        }
        let held = tables.held(FileId { device: vma.device, inode: vma.inode })?;
        let way = match (held.is_to_go(), vma.anonymous) {
            (true, _) => Way::Move,
            (false, 0) => return None,
            (false, _) => Way::Renew,
        };
        Some(Self {
            vma: *vma,
            serial: held.serial,
            traits: held.traits(vma),
            way,
            is_erased: held.is_erased,
            fresh: None,
            scattered: Span::default(),
        })
    }

    /// Returns which file it shows.
    pub(super) const fn id(&self) -> FileId {
        FileId { device: self.vma.line.device, inode: self.vma.line.inode }
    }

    /// Returns the address of the extent's offset 0: below the mapping, since offsets are small.
    pub(super) const fn base(&self) -> usize {
        self.vma.line.start.wrapping_sub(self.vma.line.offset as usize)
    }

    /// Returns where a part of it has bytes that are not zero: the written runs, and what its extent holds.
    pub(super) fn runs(&self, contents: &Contents, part: Span, written: &[Span]) -> PieceRuns {
        let mut runs = PieceRuns::inside(written, part);
        contents.add_to(&mut runs, self.serial, self.base(), part);
        runs
    }

    /// Returns the work on it, by the figures of the mapping.
    fn work(&self, page: usize, grain: usize) -> Amount {
        let len = self.vma.range().len();
        if self.way == Way::Move {
            return Amount { mappings: len.div_ceil(PIECE), bytes: len };
        }
        // Scattered as badly as possible.
        let stretches = (self.vma.anonymous / page).min(len / grain + 1);
        Amount { mappings: len / PIECE + 1 + 2 * stretches, bytes: (stretches * grain).min(len) }
    }
}

/// Returns the work of the coming repair, and of freezing what is new.
pub(super) fn work(tables: &mut Tables<'_>) -> Amount {
    let page = rustix::param::page_size();
    // A piece that becomes a huge page is copied whole.
    let grain = if tables.ledger.huge.is_open() { PIECE } else { GRAIN };
    let mut all = Amount { mappings: 0, bytes: tables.eligible_bytes() };
    for index in 0..tables.vmas.len() {
        let vma = tables.vmas[index];
        let Some(subject) = Subject::of(tables, &vma) else { continue };
        let span = Span::from(vma.range());
        if subject.way != Way::Move && span.len() <= SMALL && tables.ledger.hot.rests(span) {
            continue;
        }
        all = all.and(subject.work(page, grain));
    }
    all
}
