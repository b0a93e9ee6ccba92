//! What a freeze in slices has still to do. It lives from the first slice to the last.
//!
//! What the plan says of a mapping is a hint: the slice that takes a part looks at it again, and believes only what it
//! sees then.

use std::cmp::Reverse;
use std::ptr;
use std::time::Duration;

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::memory::vec::MappedVec;

use super::pace::Speed;
use super::piece::PIECE;
use super::records::Eligible;
use crate::options::Pages;
use crate::report::Report;

/// Planned memory: a mapping or a part of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) span: Span,
    /// Memory from here on has not been worked on.
    pub(super) at: usize,
    pub(super) traits: Traits,
    pub(crate) is_named: bool,
    /// Bytes that were copied.
    pub(crate) frozen: usize,
}

/// After this many pieces in a row that a child still maps, a slice looks at no others.
pub(super) const MOST_SHARED: u32 = 8;

/// What to do with planned memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Turn whole pieces into huge pages where they are.
    Gather(Gathering),
    /// Freeze what is left.
    Freeze,
}

/// Where to gather.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    /// In planned memory.
    Planned,
    /// In all private anonymous memory, before it is listed: listing costs the kernel a look at each base page, in one
    /// go that cannot be divided, and after gathering few base pages are left.
    Everywhere,
}

/// How far gathering has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gathering {
    pub(crate) place: Where,
    /// The item being worked on, and the address to go on from.
    item: usize,
    pub(super) at: usize,
    /// Whether this pass has found pieces that a child still maps, and how many of them in a row; and whether it has
    /// made huge pages.
    has_waiting: bool,
    in_a_row: u32,
    has_made: bool,
    /// How often a child was waited for since the last huge page was made.
    in_vain: u32,
    /// Since the last fork: whether a child was waited for; and how many pieces were seen that were gathered before and
    /// that writes beside a child have split since: in this pass, and in the pass that saw most. Each pass sees the
    /// same pieces again.
    has_waited: bool,
    split: usize,
    most_split: usize,
}

/// How a slice of gathering ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gathered {
    /// There is more to look at.
    More,
    /// A child still maps what was looked at, for the `in_vain`-th time in a row.
    Waits {
        /// How many times.
        in_vain: u32,
    },
    /// Gathering is done.
    Done,
}

/// Most mappings in a plan: the dearest ones. A later freeze takes the others.
pub(super) const MOST_ITEMS: usize = 1 << 12;

/// The items, and the terms for slices.
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
    /// Mappings that may still be added.
    pub(super) mappings: usize,
    /// How many could be added when that was last found out.
    mappings_known: usize,
    step: Step,
    /// Bytes put into huge pages instead of being frozen.
    gathered: usize,
    /// CPU nanoseconds of the look, of all slices, of those that gathered, and of deputies.
    looked: u64,
    worked: u64,
    gathering: u64,
    beside: u64,
    /// What each fork was spared before it began.
    saved_before: u64,
    /// Bytes gathered before the last fork, and in how many intervals between forks in a row they were few.
    gathered_at_fork: usize,
    slow: u32,
    /// Refusals since the last slice.
    refusals: u32,
    /// Forks that put off the look at what was not gathered.
    put_off: u32,
    /// Why it ended early.
    reason: Option<String>,
    /// The report of the rest's plan, if the first plan did not list that memory.
    told: Option<Report>,
}

impl Gathering {
    /// Begins the first pass.
    pub(crate) const fn new(place: Where) -> Self {
        let (has_waiting, has_made, has_waited) = (false, false, false);
        let (item, at, in_a_row, in_vain, split, most_split) = (0, 0, 0, 0, 0, 0);
        Self { place, item, at, has_waiting, in_a_row, has_made, in_vain, has_waited, split, most_split }
    }

    /// Notes to go on from `at` in the same item.
    pub(super) const fn go_on_at(&mut self, at: usize) {
        self.at = at;
    }

    /// Notes that `pages` huge pages were made or mended.
    pub(super) const fn note_made(&mut self, pages: usize) {
        if pages > 0 {
            (self.in_a_row, self.in_vain, self.has_made) = (0, 0, true);
        }
    }

    /// Notes pieces that were gathered before and split since.
    pub(super) const fn note_split(&mut self, pieces: usize) {
        self.split += pieces;
    }

    /// Notes a piece that a child still maps. Returns `Waits` if waiting for the child is better than looking at more
    /// pieces: after several in a row, and after one if the child was waited for already.
    pub(super) const fn note_child(&mut self) -> Option<Gathered> {
        self.has_waiting = true;
        self.in_a_row += 1;
        if self.in_a_row < MOST_SHARED && self.in_vain == 0 { None } else { Some(self.wait()) }
    }

    /// Ends a pass. Another begins if a child still maps pieces of this one; at once if this pass made huge pages.
    pub(super) fn end_pass(&mut self) -> Gathered {
        self.most_split = self.most_split.max(std::mem::take(&mut self.split));
        if !self.has_waiting {
            return Gathered::Done;
        }
        (self.item, self.at, self.has_waiting) = (0, 0, false);
        if std::mem::take(&mut self.has_made) { Gathered::More } else { self.wait() }
    }

    const fn wait(&mut self) -> Gathered {
        (self.in_a_row, self.has_waited) = (0, true);
        self.in_vain = self.in_vain.saturating_add(1);
        Gathered::Waits { in_vain: self.in_vain }
    }

    /// Begins the time to the next fork. Returns whether a child was waited for since the last one, and how many pieces
    /// were split.
    fn begin_interval(&mut self) -> (bool, usize) {
        let split = self.most_split.max(self.split);
        (self.split, self.most_split) = (0, 0);
        (std::mem::take(&mut self.has_waited), split)
    }

    /// Whether no huge page was made since a child was last waited for.
    pub(crate) const fn is_stuck(&self) -> bool {
        self.in_vain > 0
    }
}

/// The terms for slices, as an inventory found them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// How long a slice may take.
    pub(crate) budget: Duration,
    /// The length of extents.
    pub(crate) extent: usize,
    pub(crate) pages: Pages,
    /// Mappings that may be added.
    pub(crate) mappings: usize,
    /// CPU nanoseconds of the look.
    pub(crate) looked: u64,
    /// The first step.
    pub(crate) step: Step,
}

/// Slices add this many mappings before the list of all is read again, which takes about as long as a slice.
const MAPPINGS_UNSEEN: usize = 512;
/// What is gathered from one fork to the next, or left at the end, is little if it is less than one part in this many
/// of what is planned.
pub(crate) const LITTLE: usize = 8;
/// After this many intervals in a row in which little was gathered, the rest is frozen.
const SLOW_INTERVALS: u32 = 2;
/// Gives a freeze up after this many refusals in a row.
const PATIENCE: u32 = 64;
/// This many forks leave a long look to a wait, which may never come.
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
            beside: 0,
            saved_before: 0,
            gathered_at_fork: 0,
            slow: 0,
            refusals: 0,
            put_off: 0,
            reason: None,
            told: None,
        }
    }

    /// Begins anew with the eligible memory, dearest page tables first. Returns the bytes planned.
    pub(super) fn begin(&mut self, eligible: &mut [Eligible], terms: Terms) -> usize {
        let Terms { budget, extent, pages, mappings, looked, step } = terms;
        self.items.clear();
        (self.budget, self.extent, self.pages, self.mappings) = (budget, extent, pages, mappings);
        (self.next, self.looked, self.worked, self.refusals, self.reason) = (0, looked, 0, 0, None);
        (self.mappings_known, self.step, self.gathered, self.gathering) = (mappings, step, 0, 0);
        (self.beside, self.gathered_at_fork, self.slow, self.put_off, self.told) = (0, 0, 0, 0, None);
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

    /// Begins anew in a child whose parent was in the middle of it: what that has half-written is not dropped.
    pub(super) fn begin_in_child(&mut self) {
        // SAFETY: a field of this; what it has held before is forgotten.
        unsafe { ptr::from_mut(&mut self.reason).write(None) };
        // SAFETY: as above.
        unsafe { ptr::from_mut(&mut self.told).write(None) };
        let (budget, extent, pages, mappings, looked) = (Duration::ZERO, 0, Pages::Base, 0, 0);
        self.begin(&mut [], Terms { budget, extent, pages, mappings, looked, step: Step::Freeze });
    }

    /// Leaves it as it is in the middle of a change: with a reason that cannot be dropped.
    #[cfg(test)]
    pub(super) fn tear(&mut self) {
        let nowhere = ptr::without_provenance_mut(0x10);
        // SAFETY: never read nor dropped: whoever goes on with it begins anew.
        self.reason = Some(unsafe { String::from_raw_parts(nowhere, 1, 1 << 20) });
    }

    /// Ends the agenda early.
    pub(crate) fn end(&mut self, reason: String) {
        self.next = self.items.len();
        self.reason = Some(reason);
    }

    /// Returns why it ended early, if it did.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Notes the report of the rest's plan, which is to be told.
    pub(crate) fn tells(&mut self, report: Report) {
        self.told = Some(report);
    }

    /// Takes the report of the rest's plan, if it is still to be told.
    pub(crate) const fn told(&mut self) -> Option<Report> {
        self.told.take()
    }

    /// Adds a slice of `taken` CPU nanoseconds. Returns the sum of all slices.
    pub(crate) fn worked(&mut self, taken: u64) -> u64 {
        self.refusals = 0;
        self.worked = self.worked.saturating_add(taken);
        self.worked
    }

    /// Returns the CPU nanoseconds of all slices that froze.
    pub(crate) const fn freezing(&self) -> u64 {
        self.worked - self.gathering
    }

    /// Returns the CPU nanoseconds of all slices that gathered.
    pub(crate) const fn gathering(&self) -> u64 {
        self.gathering
    }

    /// Adds what deputies took, in CPU nanoseconds.
    pub(super) const fn had_deputies(&mut self, nanos: u64) {
        self.beside = self.beside.saturating_add(nanos);
    }

    /// Notes what each fork is spared by what was frozen or gathered before, in nanoseconds.
    pub(crate) const fn spared_before(&mut self, nanos: u64) {
        self.saved_before = nanos;
    }

    /// Returns what of `saved` nanoseconds for each fork this freeze has brought.
    pub(crate) const fn brought(&self, saved: u64) -> u64 {
        saved.saturating_sub(self.saved_before)
    }

    /// Returns the CPU nanoseconds of all that this freeze took: looks, slices and deputies.
    pub(crate) const fn spent(&self) -> u64 {
        self.looked.saturating_add(self.gathering).saturating_add(self.beside).saturating_add(self.freezing())
    }

    /// Returns the CPU nanoseconds of deputies.
    pub(crate) const fn beside(&self) -> u64 {
        self.beside
    }

    /// Whether enough mappings were added that the headroom must be found out anew: the program adds mappings too.
    pub(crate) const fn is_headroom_old(&self) -> bool {
        self.mappings_known.saturating_sub(self.mappings) >= MAPPINGS_UNSEEN
    }

    /// Notes that `left` mappings may still be added.
    pub(crate) fn limit_mappings(&mut self, left: usize) {
        self.mappings = self.mappings.min(left);
        self.mappings_known = self.mappings;
    }

    /// Returns the CPU nanoseconds of the look.
    pub(crate) const fn looked(&self) -> u64 {
        self.looked
    }

    /// Counts a refused slice. Returns whether to give up.
    pub(crate) const fn refused(&mut self) -> bool {
        self.refusals += 1;
        self.refusals >= PATIENCE
    }

    /// Returns how long a slice may take.
    pub(crate) const fn budget(&self) -> Duration {
        self.budget
    }

    /// Counts a fork that would list all mappings. Returns whether to leave that to a wait.
    pub(crate) const fn put_off_look(&mut self) -> bool {
        self.put_off += 1;
        self.put_off <= FORKS_WITHOUT_LOOK
    }

    /// Returns the span from the first to the last planned address.
    pub(crate) fn bounds(&self) -> Span {
        let start = self.items.iter().map(|item| item.span.start).min().unwrap_or(0);
        Span::new(start, self.items.iter().map(|item| item.span.end).max().unwrap_or(0))
    }

    /// Returns everything planned.
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Returns the bytes copied.
    pub(crate) fn frozen(&self) -> usize {
        self.items.iter().map(|item| item.frozen).sum()
    }

    /// Returns the bytes put into huge pages instead of being frozen.
    pub(crate) const fn gathered(&self) -> usize {
        self.gathered
    }

    /// Returns the step under way.
    pub(crate) const fn step(&self) -> Step {
        self.step
    }

    /// Ends an interval between forks. Returns whether what is left is better frozen, which waits for no child: twice
    /// in a row, beside children, little was gathered from one fork to the next, and what was gathered stays whole. If
    /// gathered memory is written to, frozen memory would be, too, and then costs a fork more than split huge pages do.
    pub(crate) fn end_interval(&mut self) -> bool {
        let Step::Gather(gathering) = &mut self.step else { return false };
        let (has_waited, split) = gathering.begin_interval();
        let since = self.gathered.saturating_sub(self.gathered_at_fork);
        self.gathered_at_fork = self.gathered;
        let is_written = split * PIECE > self.gathered / LITTLE;
        let is_slow = has_waited && since < self.planned / LITTLE && !is_written;
        self.slow = if is_slow { self.slow + 1 } else { 0 };
        self.slow >= SLOW_INTERVALS
    }

    /// Ends gathering.
    pub(crate) const fn freeze_the_rest(&mut self) {
        self.step = Step::Freeze;
    }

    /// Begins to gather everywhere, in `anonymous` bytes of memory that is not listed yet.
    pub(crate) fn begin_unseen(&mut self, anonymous: usize, terms: Terms) {
        self.begin(&mut [], terms);
        self.planned = anonymous;
    }

    /// Takes over what was gathered before the rest was planned, whether that has begun anew or come to nothing.
    pub(crate) const fn gathered_before(&mut self, bytes: usize, taken: u64, beside: u64) {
        self.worked = self.freezing().saturating_add(taken);
        (self.gathered, self.gathering, self.beside) = (bytes, taken, beside);
    }

    /// Notes how far a slice of `taken` CPU nanoseconds has gathered.
    pub(crate) fn gathered_until(&mut self, gathering: Gathering, bytes: usize, taken: u64) {
        self.refusals = 0;
        self.step = Step::Gather(gathering);
        self.gathered += bytes;
        self.worked = self.worked.saturating_add(taken);
        self.gathering = self.gathering.saturating_add(taken);
    }

    /// Returns the item to work on; `None` if all are done.
    pub(super) fn current(&mut self) -> Option<&mut Item> {
        while self.items.get(self.next).is_some_and(|item| item.at >= item.span.end) {
            self.next += 1;
        }
        self.items.get_mut(self.next)
    }

    /// Returns the next whole pieces to gather, as many as lie in one mapping, with that mapping's traits; `None` at
    /// the end of the pass.
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

    /// Returns where the items lie.
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.items.range()
    }
}

#[cfg(test)]
#[path = "agenda_tests.rs"]
mod tests;
