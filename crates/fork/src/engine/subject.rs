//! Which frozen mappings need a repair, of what kind, and how much work that is.

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::pages::vmas::Vma;

use super::contents::Contents;
use super::fresh::Fresh;
use super::ledger::Work;
use super::piece::PIECE;
use super::records::may_be_replaced;
use super::runs::PieceRuns;
use super::span::Span;
use super::tables::Tables;
use super::traits::Traits;

/// What is copied around a written page at least, in bytes: as much as a read fault maps at once (`fault_around_bytes`
/// in `mm/memory.c`).
pub(super) const GRAIN: usize = 64 << 10;
/// Mappings up to this long are not divided any more.
pub(super) const SMALL: usize = 4 * GRAIN;

/// A frozen mapping under repair.
pub(super) struct Subject {
    pub(super) vma: Vma,
    /// The number of the extent that it shows.
    pub(super) serial: u32,
    /// What replaces it must have.
    pub(super) traits: Traits,
    pub(super) way: Way,
    /// Whether its extent holds something that the program has erased.
    pub(super) is_erased: bool,
    /// What its written parts are copied to, once there are any.
    pub(super) fresh: Option<Fresh>,
}

/// How a mapping is repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Its written parts are copied, and the rest is made as good as new.
    Renew,
    /// All of it is copied, so that its extent has no mapping any more.
    Move,
}

impl Subject {
    /// What is to be done about a mapping; nothing if it has no written pages, or may not be touched.
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
        })
    }

    /// The address where the extent's offset 0 would lie: below the mapping, since offsets are small.
    pub(super) const fn base(&self) -> usize {
        self.vma.line.start.wrapping_sub(self.vma.line.offset as usize)
    }

    /// Where a part of it has bytes that are not zero: the written runs, and what its extent holds.
    pub(super) fn runs(&self, contents: &Contents, part: Span, written: &[Span]) -> PieceRuns {
        let mut runs = PieceRuns::inside(written, part);
        contents.add_to(&mut runs, self.serial, self.base(), part);
        runs
    }

    /// The work on it, as far as the figures of the mapping tell.
    fn work(&self, page: usize, grain: usize) -> Work {
        let len = self.vma.range().len();
        if self.way == Way::Move {
            return Work { mappings: len.div_ceil(PIECE), bytes: len };
        }
        // Scattered as badly as can be.
        let stretches = (self.vma.anonymous / page).min(len / grain + 1);
        Work { mappings: len / PIECE + 1 + 2 * stretches, bytes: (stretches * grain).min(len) }
    }
}

/// The work that a repair is going to be, and the freeze of what is new.
pub(super) fn work(tables: &mut Tables<'_>) -> Work {
    let page = rustix::param::page_size();
    // What becomes a huge page is copied whole.
    let grain = if tables.ledger.huge.is_open() { PIECE } else { GRAIN };
    let mut all = Work { mappings: 0, bytes: tables.eligible_bytes() };
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
