//! Mends huge pages of ours that were split.
//!
//! A write while a child lives splits a huge page: the kernel copies the page that was written, and the one entry
//! becomes 512 (`do_huge_pmd_wp_page` in `mm/huge_memory.c`). When the child goes, the parent's pages stay as they are.
//!
//! While a child still maps the pages, they stay split: mending copies all of them, which takes memory that a plain
//! fork would not. Pieces that the program has given back in part stay split, too.

use std::ops::{ControlFlow, Range};

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, ScanWay, Wanted};
use palimpsest_sys::pages::vmas::{Label, Vma, VmaFlags};

use super::agenda::MOST_SHARED;
use super::budget::{Budget, Stopped};
use super::errands::{Request, Sender, Sent};
use super::hot::HotPieces;
use super::huge::{Asked, fills};
use super::ledger::{Amount, Ledger};
use super::piece::PIECE;
use super::places::{Anew, Places};
use super::registry::Shared;
use super::sight::{LEAST_MENDING, Sight};
use super::tables::Tables;
use super::tending::{Tended, is_late};
use super::thawing::{self, collapse, collapse_run};
use crate::clock::{CpuMoment, WallMoment, nanos};
use crate::options::{Options, Pause};

/// Mappings in which nothing is mended: the program wants base pages, or they must not be moved.
const LEFT: VmaFlags = VmaFlags::NO_HUGE_PAGE
    .union(VmaFlags::LOCKED)
    .union(VmaFlags::USERFAULT)
    .union(VmaFlags::SEALED)
    .union(VmaFlags::TAGGED);

/// Most pieces from the first to the last of an errand, whole ones among them: looking at each takes time.
const LONGEST: usize = 64;

/// Returns what there is to mend, by the figures of the mappings.
pub(super) fn work(tables: &Tables<'_>) -> Amount {
    let bytes = tables.vmas.iter().map(|vma| {
        let pieces = split_in(tables, vma).map_or(0, |places| {
            let mendable = places.filter(|place| tables.ledger.hot.mendable(*place).is_some());
            mendable.count()
        });
        (vma.anonymous - vma.huge.min(vma.anonymous)).next_multiple_of(PIECE).min(pieces * PIECE)
    });
    Amount { mappings: 0, bytes: bytes.sum() }
}

/// Mends what is split and worth it. Returns how many pieces that were.
///
/// Needs nothing of its caller but a list of mappings that is not out of date, since no contents change.
pub(super) fn mend_all(tables: &mut Tables<'_>, pagemap: &Pagemap, budget: &mut Budget) -> Result<usize, Stopped> {
    let mut mended = 0;
    for index in 0..tables.vmas.len() {
        let vma = tables.vmas[index];
        let Some(places) = split_in(tables, &vma) else { continue };
        for place in places {
            if !tables.ledger.huge.is_open() {
                return Ok(mended);
            }
            if tables.ledger.hot.mendable(place).is_none() {
                continue;
            }
            match mend_by_cost(tables, pagemap, place, budget)? {
                Some(Mended::Now) => mended += 1,
                Some(_) => {}
                None => return Ok(mended),
            }
        }
    }
    Ok(mended)
}

/// What became of a huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mended {
    /// It was whole, and is.
    Whole,
    /// It was split, and is whole again.
    Now,
    /// Another process still maps its pages.
    Shared,
    /// No huge page could be had for it, or it is not worth one now.
    Refused,
    /// It is given up: too little of it is populated, or the kernel cannot mend it.
    LetGo,
}

/// What a slice of mending needs while nothing is frozen: no contents change, and the kernel keeps threads off, so that
/// nobody is held.
pub(crate) struct Mender<'a, 't> {
    pub(crate) tables: &'a mut Tables<'t>,
    pub(crate) shared: &'a Shared,
    pub(crate) options: &'a Options,
    pub(crate) pagemap: &'a Pagemap,
    pub(crate) places: &'a Places,
    pub(crate) errands: Sender,
    /// When the slice began; and in CPU time: nobody is held.
    pub(crate) begun: WallMoment,
    pub(crate) started: CpuMoment,
}

impl Mender<'_, '_> {
    /// Takes a slice. Returns how far it came, and how many pieces it mended.
    pub(crate) fn play(self) -> Result<(Tended, usize), PagemapError> {
        let Self { tables, shared, options, pagemap, places, mut errands, begun, started } = self;
        let tending = &shared.tending;
        let Pause::Within(time) = options.pause else { return Ok((Tended::Done, 0)) };
        let sight = tending.sight(pagemap.way());
        tables.ledger.hot.look_by(sight);
        tables.ledger.hot.note_whole(errands.begin(sight));
        let mut at = tending.at();
        if at == 0 {
            tables.ledger.begin_pass(options.pays);
        }
        let wall = WallMoment::now();
        let (mut worked, mut tried, mut in_a_row) = (errands.mended(), 0, 0);
        loop {
            if !tables.ledger.huge.is_open() {
                return Ok((Tended::Done, worked));
            }
            let Some((place, piece)) = tables.ledger.hot.next_huge(at) else {
                return Ok((tending.end_of_pass(), worked));
            };
            // Looking takes time as well, but the pass must end some day.
            let has_looked = at != tending.at() && started.elapsed() > nanos(time);
            let has_slept = tried > 0 && is_late(wall.elapsed(), time);
            if has_looked || has_slept || !tending.fits(tried, started.elapsed(), time) {
                return Ok((Tended::More { at: piece.start }, worked));
            }
            let own = tending.room(started.elapsed(), time);
            let is_for_deputy = errands.sends(piece);
            let room = errands.room(piece, own, time);
            let (found, mut run, split) = split_run(tables, pagemap, (place, piece), room, is_for_deputy)?;
            if found == Found::Split && is_for_deputy {
                if errands.sends(run) {
                    tables.give_back();
                    if errands.send(Request::split(run, split), begun.elapsed(), time) != Sent::Nobody {
                        // The next slice looks at them again.
                        return Ok((Tended::More { at: run.start }, worked));
                    }
                    if tables.make_room().is_err() {
                        return Ok((Tended::More { at: run.start }, worked));
                    }
                }
                // None can be made: as much as the thread has time for.
                run = split_run(tables, pagemap, (place, piece), own, false)?.1;
            }
            at = run.end;
            in_a_row = found.shared_in_a_row(in_a_row);
            if matches!(found, Found::Shared | Found::Veiled) {
                tending.note_child();
            }
            if in_a_row == MOST_SHARED {
                return Ok((Tended::Later { at }, worked));
            }
            match found {
                Found::Whole | Found::Shared | Found::Veiled => {}
                Found::Sparse => tables.ledger.hot.let_go(place),
                Found::Gone => tables.ledger.hot.note_gone(place),
                Found::Split => {
                    let before = CpuMoment::now();
                    let is_huge = is_made(pagemap);
                    let Tables { vmas, ledger, .. } = &mut *tables;
                    let mut anew = Anew::new(places, time);
                    let is_private = |piece| anew.is_private(vmas, piece);
                    let mut mended = 0;
                    at = collapse_run(run, is_huge, is_private, |piece, came| {
                        let place = ledger.hot.in_span(piece).start;
                        tried += 1;
                        mended += usize::from(treat_split(ledger, place, came) == Mended::Now);
                    });
                    // If there is no list, the piece is split still, and another slice comes.
                    let (took, listing) = (before.elapsed(), anew.end().unwrap_or(0));
                    let took = took.saturating_sub(listing);
                    if sight != Sight::Told && took < LEAST_MENDING * mended as u64 {
                        // All were whole: no work that keeps a new plan waiting.
                        continue;
                    }
                    worked += mended;
                    // A failed call is quick, and does not tell how many were mended.
                    if mended == run.len() / PIECE {
                        tending.took_piece(took / mended as u64);
                    }
                }
            }
        }
    }
}

/// Looks at the huge page at this place; if it is split, extends it by its split neighbours, and for a deputy by those
/// behind whole ones, `room` split ones at most. Returns what was found, the run, and how many of it are split.
fn split_run(
    tables: &Tables<'_>,
    pagemap: &Pagemap,
    (place, piece): (usize, Span),
    room: usize,
    is_for_deputy: bool,
) -> Result<(Found, Span, usize), PagemapError> {
    let found = look_at(tables, pagemap, place)?;
    let mut run = piece;
    if found != Found::Split {
        return Ok((found, run, 0));
    }
    let (mut split, mut upto) = (1, piece.end);
    while split < room && (upto - run.start) / PIECE < LONGEST {
        let next = tables.ledger.hot.next_huge(upto).filter(|(_, next)| next.start == upto);
        let Some((place, next)) = next else { break };
        match look_at(tables, pagemap, place)? {
            Found::Split => (split, run.end) = (split + 1, next.end),
            // The kernel skips it.
            Found::Whole if is_for_deputy => {}
            _ => break,
        }
        upto = next.end;
    }
    Ok((found, run, split))
}

/// Mends the piece at this place of the table if it is split, unless it was split again after each mending. Returns
/// `None` if there is no time for it.
fn mend_by_cost(
    tables: &mut Tables<'_>,
    pagemap: &Pagemap,
    place: usize,
    budget: &mut Budget,
) -> Result<Option<Mended>, PagemapError> {
    let found = look_at(tables, pagemap, place)?;
    if found == Found::Split && !budget.begin_piece() {
        return Ok(None);
    }
    let is_told = tables.ledger.hot.sight() == Sight::Told;
    if found == Found::Split && is_told && !tables.ledger.hot.note_split(place) {
        return Ok(Some(Mended::Refused));
    }
    // The list is as old as the round, which holds the process still.
    Ok(Some(treat(tables, &Places::Listed, place, found)))
}

/// Mends the piece at this place if it is split. The caller holds the process still.
pub(super) fn mend(
    tables: &mut Tables<'_>,
    pagemap: &Pagemap,
    places: &Places,
    place: usize,
) -> Result<Mended, PagemapError> {
    let found = look_at(tables, pagemap, place)?;
    Ok(treat(tables, places, place, found))
}

fn treat(tables: &mut Tables<'_>, places: &Places, place: usize, found: Found) -> Mended {
    match (found, tables.ledger.hot.piece(place)) {
        (Found::Whole, _) | (_, None) => Mended::Whole,
        (Found::Shared | Found::Veiled, _) => Mended::Shared,
        (Found::Sparse, _) => {
            tables.ledger.hot.let_go(place);
            Mended::LetGo
        }
        (Found::Gone, _) => {
            tables.ledger.hot.note_gone(place);
            Mended::LetGo
        }
        (Found::Split, Some(piece)) => {
            let before = CpuMoment::now();
            let came = collapse(piece, |piece| places.is_private(&tables.vmas, piece));
            let is_quick = before.elapsed() < LEAST_MENDING;
            match treat_split(tables.ledger, place, came) {
                Mended::Now if is_quick && tables.ledger.hot.sight() != Sight::Told => Mended::Whole,
                mended => mended,
            }
        }
    }
}

/// Notes what came of mending the piece at this place.
fn treat_split(ledger: &mut Ledger, place: usize, came: Asked) -> Mended {
    match came {
        Asked::Made => {
            ledger.huge.made();
            if let Some(piece) = ledger.hot.piece(place) {
                ledger.hot.note_whole(piece);
            }
            Mended::Now
        }
        Asked::Refused => {
            ledger.huge.refused();
            Mended::Refused
        }
        // Another piece may do.
        Asked::Unfit => {
            ledger.hot.let_go(place);
            Mended::LetGo
        }
    }
}

/// Returns the places of a mapping's huge pages if its figures show split ones.
fn split_in(tables: &Tables<'_>, vma: &Vma) -> Option<Range<usize>> {
    let is_anonymous = vma.inode == 0 && matches!(vma.label, Label::None | Label::Heap | Label::Named);
    let is_private = !vma.permissions.contains(Permissions::SHARED);
    let is_split = vma.anonymous > vma.huge;
    let is_ours_to_mend = is_anonymous && is_private && is_split && !vma.flags.intersects(LEFT);
    is_ours_to_mend.then(|| tables.ledger.hot.in_span(vma.range().into()))
}

/// The state of a piece that was a huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// It still is one.
    Whole,
    /// It is in base pages.
    Split,
    /// In base pages, which another process maps, too.
    Shared,
    /// Another process maps all its pages, and nobody remembers whether it was split before that was forked.
    Veiled,
    /// Too little of it is populated, or with something else than anonymous memory.
    Sparse,
    /// Nothing of it is left.
    Gone,
}

impl Found {
    /// Returns how many pieces in a row a child still maps, after `before` of them and this one. Whole ones between
    /// them do not count: beside a child most are, and looking at all of them each time would use up the time for
    /// mending.
    const fn shared_in_a_row(self, before: u32) -> u32 {
        match self {
            Self::Shared => before + 1,
            Self::Whole | Self::Veiled => before,
            Self::Split | Self::Sparse | Self::Gone => 0,
        }
    }
}

/// Whether a piece is one huge page. If that is remembered, one of which nothing is known counts as split.
pub(super) fn is_whole(pagemap: &Pagemap, hot: &HotPieces, piece: Span) -> Result<bool, PagemapError> {
    Ok(match hot.sight() {
        Sight::Told => count(pagemap, piece, Wanted::Huge)? == PIECE,
        Sight::Remembered { .. } => hot.is_as_made(piece) && count(pagemap, piece, Wanted::Written)? == PIECE,
    })
}

/// Returns a test whether a piece of a run that could not be made as a whole is one huge page. Where the kernel does
/// not tell, it is asked for.
pub(super) fn is_made(pagemap: &Pagemap) -> impl Fn(Span) -> bool {
    move |piece| match pagemap.way() {
        ScanWay::Ioctl => count(pagemap, piece, Wanted::Huge).is_ok_and(|bytes| bytes == PIECE),
        ScanWay::Entries => thawing::makes(piece),
    }
}

/// Returns the bytes of wanted pages in a piece.
pub(super) fn count(pagemap: &Pagemap, piece: Span, wanted: Wanted) -> Result<usize, PagemapError> {
    let mut bytes = 0;
    pagemap.scan(piece.range(), wanted, &mut |run| {
        bytes += run.len();
        ControlFlow::Continue(())
    })?;
    Ok(bytes)
}

fn look_at(tables: &Tables<'_>, pagemap: &Pagemap, place: usize) -> Result<Found, PagemapError> {
    match tables.ledger.hot.piece(place) {
        Some(piece) => {
            let hot = &tables.ledger.hot;
            let untouched = match hot.sight() {
                Sight::Told => None,
                Sight::Remembered { .. } if hot.was_whole_at_fork(piece) => Some(Found::Whole),
                Sight::Remembered { .. } => Some(Found::Veiled),
            };
            found(is_whole(pagemap, hot, piece)?, untouched, |wanted| count(pagemap, piece, wanted))
        }
        None => Ok(Found::Whole),
    }
}

/// Returns the state of a piece by the bytes of its pages, which `count` tells; `untouched` if the process has no page
/// of it for itself, unless the kernel tells which pieces are whole.
fn found(
    is_whole: bool,
    untouched: Option<Found>,
    count: impl Fn(Wanted) -> Result<usize, PagemapError>,
) -> Result<Found, PagemapError> {
    if is_whole {
        return Ok(Found::Whole);
    }
    let populated = count(Wanted::Written)?;
    if populated == 0 && count(Wanted::Present)? == 0 {
        return Ok(Found::Gone);
    }
    if !fills(populated) {
        return Ok(Found::Sparse);
    }
    let shared = count(Wanted::Shared)?;
    if let Some(untouched) = untouched.filter(|_| shared == populated) {
        return Ok(untouched);
    }
    // A page or two may be shared by chance, such as one in a pipe.
    let is_shared = shared > PIECE / 64;
    Ok(if is_shared { Found::Shared } else { Found::Split })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: looking at everything again and again while a child lives, until no time is left for mending.
    #[test]
    fn what_is_whole_between_what_a_child_shows_is_no_progress() {
        let all = |found: &[Found]| found.iter().fold(0, |before, found| found.shared_in_a_row(before));
        assert_eq!(all(&[Found::Shared, Found::Whole, Found::Whole, Found::Shared, Found::Whole, Found::Shared]), 3);
        for found in [Found::Split, Found::Sparse, Found::Gone] {
            assert_eq!(all(&[Found::Shared, Found::Shared, found, Found::Shared]), 1, "{found:?}");
        }
    }

    /// Fails on: taking what was given back for sparse, so that its place in the table stays taken for thousands of
    /// forks. Once the table is full, nothing that is written to is frozen again.
    #[test]
    fn what_was_given_back_is_gone_and_what_shows_something_else_is_not() {
        let of = |bytes: [usize; 4]| {
            let told = move |wanted| {
                let place = [Wanted::Huge, Wanted::Written, Wanted::Present, Wanted::Shared];
                Ok(place.iter().position(|known| *known == wanted).map_or(0, |place| bytes[place]))
            };
            found(bytes[0] == PIECE, None, told).expect("told")
        };
        let page = 4096;
        assert_eq!(of([0, 0, 0, 0]), Found::Gone);
        // Pages of a file.
        assert_eq!(of([0, 0, PIECE, 0]), Found::Sparse);
        assert_eq!(of([0, page, page, 0]), Found::Sparse);
        assert_eq!(of([PIECE, PIECE, PIECE, PIECE]), Found::Whole, "whether a child shows it or not");
        assert_eq!(of([0, PIECE, PIECE, PIECE / 64]), Found::Split);
        assert_eq!(of([0, PIECE, PIECE, PIECE / 64 + page]), Found::Shared);
        // Where it is remembered what is whole: nobody has written to it since the fork, or somebody has.
        let seen = |shared: usize| {
            let told = move |wanted| Ok(if wanted == Wanted::Shared { shared } else { PIECE });
            found(false, Some(Found::Veiled), told).expect("told")
        };
        assert_eq!([PIECE, PIECE - page, 0].map(seen), [Found::Veiled, Found::Shared, Found::Split]);
    }
}
