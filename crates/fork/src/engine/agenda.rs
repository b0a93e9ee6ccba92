//! What a freeze in slices has still to do. It lasts from slice to slice.
//!
//! What the plan says of a mapping is a hint: each part is looked at again in the slice that takes it, and what is
//! there by then counts.

use std::cmp::Reverse;
use std::time::Duration;

use palimpsest_sys::memory::vec::MappedVec;

use super::pace::Speed;
use super::piece::PIECE;
use super::records::Eligible;
use super::span::Span;
use super::traits::Traits;
use crate::options::Pages;
use crate::report::Report;

/// Memory that was planned: a mapping, or a part of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) span: Span,
    /// From here on nothing was done yet.
    pub(super) at: usize,
    pub(super) traits: Traits,
    pub(crate) is_named: bool,
    /// Bytes that were copied.
    pub(crate) frozen: usize,
}

/// Pieces in a row that a child shows, after which a slice looks at no others.
pub(super) const MOST_SHARED: u32 = 8;

/// What is done to what is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Whole pieces become huge pages where they are.
    Gather(Gathering),
    /// What is left is frozen.
    Freeze,
}

/// Where pieces are gathered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    /// In what is planned.
    Planned,
    /// In all private anonymous memory, of which nothing was listed yet: to list base pages takes the kernel a look at
    /// each, which cannot be divided, and once they are gathered there are few left.
    Everywhere,
}

/// How far the gathering is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gathering {
    pub(crate) place: Where,
    /// The item that is worked on, and from which address on.
    item: usize,
    pub(super) at: usize,
    /// Whether this pass has found pieces that a child shows; and how many, with none else in between.
    has_waiting: bool,
    in_a_row: u32,
    /// How often the child was waited for since the last huge page was made.
    in_vain: u32,
}

/// What a slice of the gathering has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gathered {
    /// There is more to look at.
    More,
    /// A child shows what was looked at, so many times in a row.
    Waits {
        /// How many.
        in_vain: u32,
    },
    /// It is done.
    Done,
}

/// Mappings that are planned at most: the dearest. Others are left to a later freeze.
pub(super) const MOST_ITEMS: usize = 1 << 12;

/// The items, and what slices go by.
#[derive(Debug)]
pub(crate) struct Agenda {
    items: MappedVec<Item>,
    /// The first item that is not done.
    next: usize,
    /// Bytes that were planned.
    pub(crate) planned: usize,
    /// How long a slice may take.
    pub(super) budget: Duration,
    /// The length of extents.
    pub(super) extent: usize,
    pub(super) pages: Pages,
    pub(super) speed: Speed,
    /// Mappings that may still be used up.
    pub(super) mappings: usize,
    /// How many there were when that was last found out.
    mappings_known: usize,
    step: Step,
    /// Bytes that are in huge pages instead.
    gathered: usize,
    /// Nanoseconds of CPU time of the look, of all slices, and of those that gathered.
    looked: u64,
    worked: u64,
    gathering: u64,
    /// Refusals since the last slice.
    refusals: u32,
    /// Forks at which the look at what was not gathered was put off.
    put_off: u32,
    /// Why it has ended early.
    reason: Option<String>,
    /// What the plan of the rest tells, if what was planned first was not listed.
    told: Option<Report>,
}

impl Gathering {
    /// The first pass begins.
    pub(crate) const fn new(place: Where) -> Self {
        Self { place, item: 0, at: 0, has_waiting: false, in_a_row: 0, in_vain: 0 }
    }

    /// Goes on from `at` in the same item.
    pub(super) const fn go_on_at(&mut self, at: usize) {
        self.at = at;
    }

    /// So many huge pages were made.
    pub(super) const fn has_made(&mut self, pages: usize) {
        if pages > 0 {
            (self.in_a_row, self.in_vain) = (0, 0);
        }
    }

    /// A child shows a piece. Tells whether it is better waited for than to look at others.
    pub(super) const fn has_seen_a_child(&mut self) -> Option<Gathered> {
        self.has_waiting = true;
        self.in_a_row += 1;
        if self.in_a_row < MOST_SHARED { None } else { Some(self.wait()) }
    }

    /// A pass is over: another begins where a child has shown something.
    pub(super) const fn end_pass(&mut self) -> Gathered {
        if !self.has_waiting {
            return Gathered::Done;
        }
        (self.item, self.at, self.has_waiting) = (0, 0, false);
        self.wait()
    }

    const fn wait(&mut self) -> Gathered {
        self.in_a_row = 0;
        self.in_vain = self.in_vain.saturating_add(1);
        Gathered::Waits { in_vain: self.in_vain }
    }

    /// Whether nothing was found since a child was waited for.
    pub(crate) const fn is_stuck(&self) -> bool {
        self.in_vain > 0
    }
}

/// What slices go by, as an inventory has found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// How long a slice may take.
    pub(crate) budget: Duration,
    /// The length of extents.
    pub(crate) extent: usize,
    pub(crate) pages: Pages,
    /// Mappings that may be used up.
    pub(crate) mappings: usize,
    /// Nanoseconds of CPU time of the look.
    pub(crate) looked: u64,
    /// What comes first.
    pub(crate) step: Step,
}

/// Mappings that slices use up until the list of all is read again, which takes about as long as a slice.
const MAPPINGS_UNSEEN: usize = 512;
/// After so many refusals in a row a freeze is given up.
const PATIENCE: u32 = 64;
/// So many forks leave a long look to a wait that may never come.
const FORKS_WITHOUT_LOOK: u32 = 16;

impl Agenda {
    pub(super) const fn new(items: MappedVec<Item>) -> Self {
        Self {
            items,
            next: 0,
            planned: 0,
            budget: Duration::ZERO,
            extent: 0,
            pages: Pages::Base,
            speed: Speed::unknown(),
            mappings: 0,
            mappings_known: 0,
            step: Step::Freeze,
            gathered: 0,
            looked: 0,
            worked: 0,
            gathering: 0,
            refusals: 0,
            put_off: 0,
            reason: None,
            told: None,
        }
    }

    /// Begins anew with what is eligible, dearest page tables first. Returns the bytes that are planned.
    pub(super) fn begin(&mut self, eligible: &mut [Eligible], terms: Terms) -> usize {
        let Terms { budget, extent, pages, mappings, looked, step } = terms;
        self.items.clear();
        (self.budget, self.extent, self.pages, self.mappings) = (budget, extent, pages, mappings);
        (self.next, self.looked, self.worked, self.refusals, self.reason) = (0, looked, 0, 0, None);
        (self.mappings_known, self.step, self.gathered, self.gathering) = (mappings, step, 0, 0);
        (self.put_off, self.told) = (0, None);
        eligible.sort_unstable_by_key(|one| Reverse(one.populated - one.huge));
        let mut planned = 0;
        for one in eligible {
            let item =
                Item { span: one.span, at: one.span.start, traits: one.traits, is_named: one.is_named, frozen: 0 };
            if self.items.push(item).is_err() {
                break;
            }
            planned += one.populated;
        }
        self.planned = planned;
        planned
    }

    /// Ends it early.
    pub(crate) fn end(&mut self, reason: String) {
        self.next = self.items.len();
        self.reason = Some(reason);
    }

    /// Why it has ended early, if so.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The rest is planned, of which this is to be told.
    pub(crate) fn tells(&mut self, report: Report) {
        self.told = Some(report);
    }

    /// What is to be told of the rest, once.
    pub(crate) const fn told(&mut self) -> Option<Report> {
        self.told.take()
    }

    /// A slice took so many nanoseconds of CPU time. The sum of all.
    pub(crate) fn worked(&mut self, taken: u64) -> u64 {
        self.refusals = 0;
        self.worked = self.worked.saturating_add(taken);
        self.worked
    }

    /// What all slices took that have frozen, in nanoseconds of CPU time.
    pub(crate) const fn freezing(&self) -> u64 {
        self.worked - self.gathering
    }

    /// The same of those that have gathered.
    pub(crate) const fn gathering(&self) -> u64 {
        self.gathering
    }

    /// Whether so many mappings were used up that it is to be found out anew how many are left: the program makes some
    /// too.
    pub(crate) const fn is_headroom_old(&self) -> bool {
        self.mappings_known.saturating_sub(self.mappings) >= MAPPINGS_UNSEEN
    }

    /// So many mappings are left by now.
    pub(crate) fn limit_mappings(&mut self, left: usize) {
        self.mappings = self.mappings.min(left);
        self.mappings_known = self.mappings;
    }

    /// What the look took, in nanoseconds of CPU time.
    pub(crate) const fn looked(&self) -> u64 {
        self.looked
    }

    /// A slice was refused. Whether that is enough.
    pub(crate) const fn refused(&mut self) -> bool {
        self.refusals += 1;
        self.refusals >= PATIENCE
    }

    /// How long a slice may take.
    pub(crate) const fn budget(&self) -> Duration {
        self.budget
    }

    /// A fork is about to list all mappings. Tells whether that is put off to a wait.
    pub(crate) const fn puts_off_look(&mut self) -> bool {
        self.put_off += 1;
        self.put_off <= FORKS_WITHOUT_LOOK
    }

    /// From the first to the last address.
    pub(crate) fn bounds(&self) -> Span {
        let start = self.items.iter().map(|item| item.span.start).min().unwrap_or(0);
        Span::new(start, self.items.iter().map(|item| item.span.end).max().unwrap_or(0))
    }

    /// All that was planned.
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Bytes that were copied.
    pub(crate) fn frozen(&self) -> usize {
        self.items.iter().map(|item| item.frozen).sum()
    }

    /// Bytes that are in huge pages instead.
    pub(crate) const fn gathered(&self) -> usize {
        self.gathered
    }

    /// How far the gathering is; nothing if it is over.
    pub(crate) const fn step(&self) -> Step {
        self.step
    }

    /// The gathering is over.
    pub(crate) const fn freeze_the_rest(&mut self) {
        self.step = Step::Freeze;
    }

    /// Begins to gather everywhere: so many bytes of anonymous memory, of which nothing was listed yet.
    pub(crate) fn begin_unseen(&mut self, anonymous: usize, terms: Terms) {
        self.begin(&mut [], terms);
        self.planned = anonymous;
    }

    /// What was gathered before this plan, of the rest, was made.
    pub(crate) const fn gathered_before(&mut self, bytes: usize, taken: u64) {
        (self.gathered, self.gathering) = (bytes, taken);
        self.worked = self.worked.saturating_add(taken);
    }

    /// A slice that gathered took so many nanoseconds of CPU time, and has come to here.
    pub(crate) fn gathered_until(&mut self, gathering: Gathering, bytes: usize, taken: u64) {
        self.refusals = 0;
        self.step = Step::Gather(gathering);
        self.gathered += bytes;
        self.worked = self.worked.saturating_add(taken);
        self.gathering = self.gathering.saturating_add(taken);
    }

    /// The item that is worked on; nothing if all is done.
    pub(super) fn current(&mut self) -> Option<&mut Item> {
        while self.items.get(self.next).is_some_and(|item| item.at >= item.span.end) {
            self.next += 1;
        }
        self.items.get_mut(self.next)
    }

    /// The next whole pieces that are to be gathered, as many as lie in one mapping, with what that must have; nothing
    /// if the pass is over.
    pub(super) fn to_gather(&self, gathering: &mut Gathering) -> Option<(Span, Traits)> {
        loop {
            let item = self.items.get(gathering.item)?;
            let start = gathering.at.max(item.span.start).next_multiple_of(PIECE);
            let whole = Span::new(start, item.span.end & !(PIECE - 1));
            if whole.start < whole.end {
                return Some((whole, item.traits));
            }
            (gathering.item, gathering.at) = (gathering.item + 1, 0);
        }
    }

    /// Where the items lie.
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.items.range()
    }
}
