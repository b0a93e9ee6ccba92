//! Huge pages of ours that were split since, put together again.
//!
//! A write beside a child splits a huge page: the kernel copies the page that was written, and the entry of the whole
//! becomes 512 (`do_huge_pmd_wp_page` in `mm/huge_memory.c`). The child goes, and the parent's pages stay as they are.
//!
//! As long as a child shows the pages, they stay apart: to put them together copies all of them, which is memory that a
//! plain fork would not take. And so does what the program has given back a part of.

use std::ops::{ControlFlow, Range};

use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, Wanted};
use palimpsest_sys::pages::vmas::{Label, Vma, VmaFlags};

use super::budget::Stopped;
use super::huge::fills;
use super::ledger::Work;
use super::piece::PIECE;
use super::span::Span;
use super::tables::Tables;
use super::thawing::{Asked, collapse};

/// Mappings of which nothing is put together: what the program wants otherwise, or may not be moved.
const LEFT: VmaFlags = VmaFlags::NO_HUGE_PAGE
    .union(VmaFlags::LOCKED)
    .union(VmaFlags::USERFAULT)
    .union(VmaFlags::SEALED)
    .union(VmaFlags::TAGGED);

/// What there is to mend, as far as the figures of the mappings tell.
pub(super) fn work(tables: &Tables<'_>) -> Work {
    let bytes = tables.vmas.iter().map(|vma| {
        let pieces = split_in(tables, vma).map_or(0, |places| {
            let mendable = places.filter(|place| tables.ledger.hot.mendable(*place).is_some());
            mendable.count()
        });
        (vma.anonymous - vma.huge.min(vma.anonymous)).next_multiple_of(PIECE).min(pieces * PIECE)
    });
    Work { mappings: 0, bytes: bytes.sum() }
}

/// Mends what is split and worth it; how many pieces that were.
///
/// No contents change, so that this asks nothing of its caller.
pub(super) fn mend_all(tables: &mut Tables<'_>, pagemap: &Pagemap) -> Result<usize, Stopped> {
    let mut mended = 0;
    for index in 0..tables.vmas.len() {
        let vma = tables.vmas[index];
        let Some(places) = split_in(tables, &vma) else { continue };
        for place in places {
            if !tables.ledger.huge.is_open() {
                return Ok(mended);
            }
            let Some(piece) = tables.ledger.hot.mendable(place) else { continue };
            match look_at(pagemap, piece)? {
                Found::Whole | Found::Shared => continue,
                Found::Sparse => {
                    tables.ledger.hot.let_go(place);
                    continue;
                }
                Found::Split => {}
            }
            if !tables.ledger.hot.is_worth_mending(place) {
                continue;
            }
            match collapse(piece) {
                Asked::Made => {
                    tables.ledger.huge.made();
                    mended += 1;
                }
                Asked::Refused => tables.ledger.huge.refused(),
            }
        }
    }
    Ok(mended)
}

/// Where the huge pages of a mapping are found that has split ones, by its figures; nothing of any other mapping.
fn split_in(tables: &Tables<'_>, vma: &Vma) -> Option<Range<usize>> {
    let is_anonymous = vma.inode == 0 && matches!(vma.label, Label::None | Label::Heap | Label::Named);
    let is_private = !vma.permissions.contains(Permissions::SHARED);
    let is_split = vma.anonymous > vma.huge;
    let is_ours_to_mend = is_anonymous && is_private && is_split && !vma.flags.intersects(LEFT);
    is_ours_to_mend.then(|| tables.ledger.hot.in_span(vma.range().into()))
}

/// How a piece is that was a huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// It is one.
    Whole,
    /// It is in base pages.
    Split,
    /// So it is, and another process shows them too.
    Shared,
    /// Too little of it is populated.
    Sparse,
}

fn look_at(pagemap: &Pagemap, piece: Span) -> Result<Found, PagemapError> {
    let count = |wanted| {
        let mut bytes = 0;
        pagemap.scan(piece.range(), wanted, &mut |run| {
            bytes += run.len();
            ControlFlow::Continue(())
        })?;
        Ok::<_, PagemapError>(bytes)
    };
    if count(Wanted::Huge)? == PIECE {
        return Ok(Found::Whole);
    }
    if !fills(count(Wanted::Present)?) {
        return Ok(Found::Sparse);
    }
    // A page or two may be shared by chance, as one that a pipe holds.
    let is_shared = count(Wanted::Shared)? > PIECE / 64;
    Ok(if is_shared { Found::Shared } else { Found::Split })
}
