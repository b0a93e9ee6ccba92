//! A look at all mappings that takes a millisecond or two, however much memory there is: at samples.
//!
//! A look at everything (`smaps`) walks all page tables, 11 to 14 µs for each MiB of base pages: 45 ms for 4 GiB, in
//! one go. A glance lists the places of mappings, counts pages in some pieces of each, takes those for all of it, and
//! asks for the flags of one page of each mapping that matters ([`FlagReader`]). What a plan says is a hint anyway: a
//! slice believes only what it sees. But flags are believed, and so always read.
//!
//! It sees too little where more than a thirty-second of the memory may lie in mappings that are short or of which no
//! sample shows a base page, where there are many mappings, and where samples count clearly more or less than there is.
//! Then everything is looked at. Memory of a mapping that is asked about is planned whatever samples show of it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::is_locked;
use palimpsest_sys::pages::apart::FlagReader;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::{Pagemap, PagemapError, ScanWay, Wanted};
use palimpsest_sys::pages::vmas::{Detail, Label, Vma, VmasError};

use super::budget::Stopped;
use super::piece::PIECE;
use super::places::Places;
use super::records::Excluded;
use super::tables::Tables;

/// Pieces in which pages are counted, in all long mappings together, and one more for each at most. Each takes some 8
/// µs for each kind of page.
const SAMPLES: usize = 48;
/// In mappings of this length pages are counted in all pieces: threads' stacks have it.
const SHORT: usize = 8 << 20;
/// Mappings that are listed at most, and mappings that may be frozen; the list takes up to a microsecond for each.
const MOST_LISTED: usize = 512;
const MOST_SAMPLED: usize = 24;
/// Mappings whose flags are asked for at most: each takes some 60 µs.
const MOST_ASKED: usize = 16;
/// Mappings that may be added while a page is apart.
const MAPPINGS: usize = 16;
/// Mappings that an extent may have besides.
const MOST_OF_AN_EXTENT: usize = 4;
/// One part in this many of the memory may be left out of a plan.
const LITTLE: usize = 32;

/// Whether a page that was moved has left a userfaultfd of another process: no other is moved then. Relaxed: a hint.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether glances have not failed in a way that harms.
pub(crate) fn is_harmless() -> bool {
    !HAS_FAILED.load(Ordering::Relaxed)
}

/// What a glance has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// Nearly all memory.
    Enough,
    /// Too little for a plan.
    TooLittle,
}

/// What samples of a mapping tell.
#[derive(Clone, Copy, Default, Debug)]
struct Sample {
    /// Populated bytes, and those of them in huge pages, as estimated.
    populated: usize,
    huge: usize,
    /// A populated base page that nobody uses now.
    page: Option<usize>,
    /// Whether every piece was looked at.
    is_exact: bool,
}

/// Lists the mappings of a process with this many `anonymous` bytes, with figures and flags of those that may be frozen
/// and have base pages, and figures of private files and stacks. All others count as empty. So many `mappings` may be
/// added.
///
/// # Safety
///
/// 1. No other thread runs, and none is started; the kernel neither reads nor writes to memory on behalf of earlier
///    requests.
/// 2. The excluded memory contains what the calling thread uses.
pub(super) unsafe fn glance(
    tables: &mut Tables<'_>,
    pagemap: &Pagemap,
    (least, mappings): (usize, usize),
    anonymous: usize,
) -> Result<Seen, Stopped> {
    // Only where the kernel tells of each mapping can it be seen whether one is whole again.
    let Ok(places @ Places::Asked(_)) = Places::open() else { return Ok(Seen::TooLittle) };
    // Who reads entries does not know huge pages.
    if mappings < MAPPINGS || pagemap.way() != ScanWay::Ioctl {
        return Ok(Seen::TooLittle);
    }
    // Frozen memory is not looked at, but has mappings.
    match tables.vmas.read_most(Detail::Places, MOST_LISTED + MOST_OF_AN_EXTENT * tables.extents.len()) {
        Err(VmasError::TooMany(_)) => return Ok(Seen::TooLittle),
        other => other?,
    }
    let sampled = || tables.vmas.iter().filter(|vma| may_be_frozen(vma)).map(|vma| vma.range().len());
    let (total, count) = (sampled().sum::<usize>(), sampled().count());
    let Some(lowest) = tables.vmas.first().map(|vma| vma.start).filter(|_| count <= MOST_SAMPLED) else {
        return Ok(Seen::TooLittle);
    };
    let Ok(flags) = FlagReader::below(lowest) else { return Ok(Seen::TooLittle) };
    // Bytes as estimated, and those that may be populated in mappings of which nothing is planned.
    // Short pieces that are hot have no mappings that are long enough for samples.
    let (mut seen, mut unseen, mut asked) = (tables.ledger.hot.short_at_rest(), 0_usize, 0);
    for index in 0..tables.vmas.len() {
        let vma = tables.vmas[index];
        let span = Span::from(vma.range());
        if tables.held(FileId { device: vma.device, inode: vma.inode }).is_some() {
            continue;
        }
        if !may_be_frozen(&vma) {
            if is_told(&vma) {
                let bytes = count_pages(pagemap, span, Wanted::Written, &mut |_| ())?;
                tables.vmas.all_mut()[index].anonymous = bytes;
                seen += bytes;
            }
            continue;
        }
        let share = (SAMPLES as u128 * span.len() as u128 / total as u128) as usize + 1;
        let samples = if span.len() <= SHORT { usize::MAX } else { share };
        let sample = Sample::of(pagemap, span, samples, &tables.excluded)?;
        seen += sample.populated;
        let page = sample.page.filter(|_| sample.populated >= least.max(1));
        let Some(page) = page.filter(|_| !is_locked(span)) else {
            // This library's tables are long, and hardly populated.
            let own: usize = tables.excluded.iter().map(|excluded| excluded.span.intersection(span).len()).sum();
            unseen += if sample.is_exact { sample.populated } else { span.len().saturating_sub(own) };
            continue;
        };
        asked += 1;
        if asked > MOST_ASKED {
            return Ok(Seen::TooLittle);
        }
        // SAFETY: 1. by (1), (2) and `may_be_frozen`. 2. is (1).
        let Ok(told) = (unsafe { flags.read(page) }) else { return Ok(Seen::TooLittle) };
        let is_whole =
            places.look_above(&tables.vmas, page).is_ok_and(|now| now.is_some_and(|now| now.line == vma.line));
        if !is_whole {
            HAS_FAILED.store(true, Ordering::Relaxed);
            return Ok(Seen::TooLittle);
        }
        let vma = &mut tables.vmas.all_mut()[index];
        (vma.anonymous, vma.huge) = (sample.populated, sample.huge);
        (vma.flags, vma.protection_key) = (told.flags, told.protection_key);
    }
    let little = anonymous / LITTLE;
    let is_enough = unseen <= little && seen >= anonymous - little && seen <= anonymous + little;
    Ok(if is_enough { Seen::Enough } else { Seen::TooLittle })
}

/// Whether a mapping that is not frozen has figures in a report, and is short enough to count all its pages.
fn is_told(vma: &Vma) -> bool {
    let has = |permission| vma.permissions.contains(permission);
    let is_private = has(Permissions::WRITE) && !has(Permissions::SHARED);
    is_private && (vma.inode != 0 || vma.label == Label::Stack) && vma.range().len() <= 4 * PIECE
}

/// Whether a mapping may be frozen, as far as its line tells, and is long enough to be worth samples.
fn may_be_frozen(vma: &Vma) -> bool {
    let has = |permission| vma.permissions.contains(permission);
    let is_private = vma.inode == 0 && !has(Permissions::SHARED) && !has(Permissions::EXECUTE);
    let is_ordinary = matches!(vma.label, Label::None | Label::Heap | Label::Named);
    is_private && is_ordinary && has(Permissions::READ) && vma.range().len() >= PIECE
}

impl Sample {
    /// Counts pages in so many pieces of a mapping, as huge pages would lie there, at equal distances.
    fn of(pagemap: &Pagemap, span: Span, samples: usize, excluded: &[Excluded]) -> Result<Self, PagemapError> {
        let first = span.start & !(PIECE - 1);
        let pieces = (span.end - first).div_ceil(PIECE);
        let samples = samples.min(pieces);
        let mut found = Self { is_exact: samples == pieces, ..Self::default() };
        let mut looked = 0;
        for number in 0..samples {
            // The first and the last piece are among them if there is more than one.
            let place = if samples > 1 { number * (pieces - 1) / (samples - 1) } else { pieces / 2 };
            let start = first + place * PIECE;
            let piece = Span::new(start, start + PIECE).intersection(span);
            let huge = count_pages(pagemap, piece, Wanted::Huge, &mut |_| ())?;
            let mut keep = |run: Span| {
                let page = rustix::param::page_size();
                let is_free = |page: &usize| !excluded.iter().any(|excluded| excluded.span.contains(*page));
                if huge == 0 && found.page.is_none() {
                    found.page = (run.start..run.end).step_by(page).find(is_free);
                }
            };
            let populated = count_pages(pagemap, piece, Wanted::Present, &mut keep)?;
            looked += piece.len();
            found.populated += populated;
            found.huge += huge;
        }
        // Of all of it, as of what was looked at.
        let scaled = |bytes: usize| (bytes as u128 * span.len() as u128 / looked.max(1) as u128) as usize;
        (found.populated, found.huge) = (scaled(found.populated), scaled(found.huge));
        Ok(found)
    }
}

/// Returns the bytes of such pages, and shows each run of them.
fn count_pages(
    pagemap: &Pagemap,
    piece: Span,
    wanted: Wanted,
    see: &mut dyn FnMut(Span),
) -> Result<usize, PagemapError> {
    let mut bytes = 0;
    pagemap.scan(piece.range(), wanted, &mut |run| {
        bytes += run.len();
        see(run.into());
        ControlFlow::Continue(())
    })?;
    Ok(bytes)
}
