//! Hot memory: written to so often that freezing it does not pay. It rests as anonymous memory.
//!
//! * In a **huge page**, if one can be had, from the first time it was written to in more than a few places. Making one
//!   takes less time than freezing the piece again; a fork copies one entry for it, and writes between forks cost
//!   nothing. It rests until the forks have cost as much as freezing it would. From then on each fork adds its cost
//!   (the rent) to the debt, until a round is bought, which freezes the piece. If it is written to again after that, it
//!   rests twice as long. So a piece is copied ever more rarely, and memory that has become cold is frozen in the end.
//! * In **base pages** otherwise, from the second round in a row that finds it written to. It costs each fork as much
//!   as without freezing, so that it rests for a few rounds only, twice as many each time.
//!
//! Writes while a child lives split a huge page: the kernel copies the one page that is written, and each fork copies
//! 512 entries from then on. A round mends it, unless the round before did: then it stays split for some rounds, twice
//! as many each time, and costs what it would without freezing.

use std::ops::Range;

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::vec::{Full, MappedVec};

use super::piece::PIECE;
use super::sight::Sight;

/// Most rounds for which a hot piece in base pages is left alone. Few, since rounds get rarer where they gain nothing.
const MOST_REST: u64 = 8;
/// Once this many pieces are hot, every other written piece counts as hot too.
pub(super) const MOST_HOT: usize = 1 << 15;
/// How often a huge page's rest is doubled at most.
const MOST_TURNS: u32 = 5;

/// A piece, or a part of one, that was written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct HotPiece {
    span: Span,
    /// The last round that found it written to; of a huge page, the last round that mended it.
    found: u64,
    /// For how many rounds it is left alone the next time.
    rest: u64,
    /// How many times it has become a huge page.
    turns: u32,
    state: State,
    /// How many forks there were when it was last made whole, if the kernel does not tell whether it is.
    made: u64,
}

/// The state of a hot piece, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Frozen, or about to be. If it was huge: since which fork.
    Frozen { since: u64 },
    /// In base pages, until this round.
    Base { until: u64 },
    /// Huge, until this fork. If it is split, rounds from this one on mend it.
    Huge { until: u64, mended_from: u64 },
    /// The program has given it back. It leaves the table with the next round or pass.
    Gone,
}

/// The pieces that were written to between rounds, and which of them rest.
#[derive(Debug)]
pub(super) struct HotPieces {
    /// By address.
    all: MappedVec<HotPiece>,
    /// The number of the round under way, or of the next one; from 1.
    round: u64,
    /// Forks so far.
    forks: u64,
    /// For how many forks a huge page rests the first time.
    huge_rest: u64,
    /// How many rest: read at each fork.
    resting: usize,
    /// How many of these are huge.
    huge: usize,
    /// Huge pages whose rest is over; and the fork at which there will be more of them.
    overdue: usize,
    next_overdue: u64,
    sight: Sight,
}

impl HotPieces {
    pub(super) const fn new(all: MappedVec<HotPiece>) -> Self {
        Self {
            all,
            round: 1,
            forks: 0,
            huge_rest: u64::MAX,
            resting: 0,
            huge: 0,
            overdue: 0,
            next_overdue: u64::MAX,
            sight: Sight::Told,
        }
    }

    /// Begins a look, which learns in this way which pieces are huge.
    pub(super) const fn look_by(&mut self, sight: Sight) {
        self.sight = sight;
    }

    /// Returns how this look learns which pieces are huge.
    pub(super) const fn sight(&self) -> Sight {
        self.sight
    }

    /// Whether a piece was made whole since the last fork, where that is remembered.
    pub(super) fn is_as_made(&self, span: Span) -> bool {
        let Sight::Remembered { forks } = self.sight else { return false };
        let is_huge = |piece: &HotPiece| matches!(piece.state, State::Huge { .. });
        self.place(span).is_ok_and(|place| is_huge(&self.all[place]) && self.all[place].made == forks)
    }

    /// Whether a piece was whole when the last fork was made, where that is remembered: two are counted for each.
    pub(super) fn was_whole_at_fork(&self, span: Span) -> bool {
        let Sight::Remembered { forks } = self.sight else { return false };
        self.place(span).is_ok_and(|place| self.all[place].made + 2 >= forks)
    }

    /// Notes that all huge pages in `span` are whole.
    pub(super) fn note_whole(&mut self, span: Span) {
        let Sight::Remembered { forks } = self.sight else { return };
        for place in self.in_span(span) {
            self.all[place].made = forks;
        }
    }

    /// Forgets all in a child whose parent was in the middle of it.
    pub(super) fn begin_in_child(&mut self) {
        self.all.clear();
        self.count();
    }

    /// Leaves the table as it is in the middle of [`add`](Self::add).
    #[cfg(test)]
    pub(super) fn tear(&mut self, span: Span) {
        for _ in 0..2 {
            let piece = HotPiece { span, found: 0, rest: 1, turns: 1, state: State::Gone, made: 0 };
            self.all.push(piece).expect("there is room");
        }
        self.huge = 2;
    }

    /// Begins a round, with a first rest of `huge_rest` forks for huge pages. Passes the runs that rest to `rests`, and
    /// forgets pieces not written to for long. A round that only looks need not be ended.
    pub(super) fn begin(
        &mut self,
        huge_rest: u64,
        mut rests: impl FnMut(Span) -> Result<(), Full>,
    ) -> Result<(), Full> {
        self.huge_rest = huge_rest;
        let mut kept = 0;
        let mut run = Span::default();
        for index in 0..self.all.len() {
            let mut piece = self.all[index];
            if self.is_at_rest(&piece) {
                if run.end == piece.span.start {
                    run.end = piece.span.end;
                } else {
                    hand_out(run, &mut rests)?;
                    run = piece.span;
                }
            } else if self.is_forgotten(&piece) {
                continue;
            } else if matches!(piece.state, State::Base { .. }) {
                (piece.state, piece.found) = (State::Frozen { since: self.forks }, self.round);
            }
            self.all[kept] = piece;
            kept += 1;
        }
        hand_out(run, &mut rests)?;
        self.all.truncate(kept);
        self.count();
        Ok(())
    }

    /// Whether a piece that does not rest was not written to for long.
    fn is_forgotten(&self, piece: &HotPiece) -> bool {
        let since = match piece.state {
            State::Frozen { since } => since,
            State::Gone => return true,
            State::Base { .. } | State::Huge { .. } => return false,
        };
        let is_old = self.round - piece.found > 2 * piece.rest;
        // Where huge pages rest for ever, one gets frozen only because the program has let it go.
        let is_let_go = piece.turns == 0 || self.huge_rest == u64::MAX;
        is_old && (is_let_go || self.forks - since > self.rest_of(piece.turns + 1))
    }

    /// Returns for how many forks a piece rests that becomes huge for the `turns`-th time.
    fn rest_of(&self, turns: u32) -> u64 {
        self.huge_rest.saturating_mul(1 << (turns.clamp(1, MOST_TURNS) - 1))
    }

    /// Notes that this round found a piece written to. Returns whether to leave it alone for now, in base pages.
    pub(super) fn note_written(&mut self, span: Span) -> bool {
        let round = self.round;
        let Ok(known) = self.known(span) else {
            let state = State::Frozen { since: 0 };
            return self.add(HotPiece { span, found: round, rest: 2, turns: 0, state, made: 0 }).is_err();
        };
        if matches!(known.state, State::Base { until } if until > round) {
            return true;
        }
        // Its rest ended in this very round.
        if known.found == round {
            return false;
        }
        let again = round - known.found <= 1;
        known.found = round;
        if again {
            known.rest = (known.rest * 2).min(MOST_REST);
            known.state = State::Base { until: round + known.rest };
            self.resting += 1;
        }
        again
    }

    /// Notes that a piece is a huge page now.
    pub(super) fn note_huge(&mut self, span: Span) -> Result<(), Full> {
        if self.known(span).is_err() {
            let state = State::Frozen { since: 0 };
            self.add(HotPiece { span, found: 0, rest: 1, turns: 0, state, made: 0 })?;
        }
        let Ok(place) = self.place(span) else { return Ok(()) };
        let before = self.all[place];
        let turns = (before.turns + 1).min(MOST_TURNS);
        let until = self.forks.saturating_add(self.rest_of(turns));
        let state = State::Huge { until, mended_from: 0 };
        self.all[place] = HotPiece { span, found: 0, rest: 1, turns, state, made: 0 };
        self.note_whole(span);
        // Adjusts the counts: counting all anew takes too long where many become huge.
        let [(rested, was_huge, was_overdue), (rests, is_huge, is_overdue)] = [before, self.all[place]].map(|piece| {
            let is_huge = matches!(piece.state, State::Huge { .. });
            let is_at_rest = self.is_at_rest(&piece);
            (usize::from(is_at_rest), usize::from(is_huge), usize::from(is_huge && !is_at_rest))
        });
        self.resting = self.resting + rests - rested;
        self.huge = self.huge + is_huge - was_huge;
        self.overdue = self.overdue + is_overdue - was_overdue;
        self.next_overdue = if is_overdue > 0 { self.next_overdue } else { self.next_overdue.min(until) };
        Ok(())
    }

    /// Returns the places of the hot pieces in `span`, huge or not.
    pub(super) fn in_span(&self, span: Span) -> Range<usize> {
        let place = |address: usize| self.all.partition_point(|piece| piece.span.start < address);
        place(span.start)..place(span.end)
    }

    /// Returns the piece at this place if it rests in a huge page that may be mended.
    pub(super) fn mendable(&self, index: usize) -> Option<Span> {
        let piece = self.all.get(index)?;
        match piece.state {
            State::Huge { mended_from, .. } if mended_from <= self.round && self.is_at_rest(piece) => Some(piece.span),
            _ => None,
        }
    }

    /// Returns the piece at this place.
    pub(super) fn piece(&self, place: usize) -> Option<Span> {
        self.all.get(place).map(|piece| piece.span)
    }

    /// Returns the first huge page from `at` on, and its place.
    pub(super) fn next_huge(&self, at: usize) -> Option<(usize, Span)> {
        let first = self.all.partition_point(|piece| piece.span.start < at);
        let mut rest = self.all.iter().enumerate().skip(first);
        rest.find(|(_, piece)| matches!(piece.state, State::Huge { .. })).map(|(place, piece)| (place, piece.span))
    }

    /// Begins a pass between rounds, in which huge pages first rest for `huge_rest` forks. Forgets pieces that are
    /// gone.
    pub(super) fn begin_pass(&mut self, huge_rest: u64) {
        self.huge_rest = huge_rest;
        let mut kept = 0;
        for index in 0..self.all.len() {
            let piece = self.all[index];
            if piece.state != State::Gone {
                self.all[kept] = piece;
                kept += 1;
            }
        }
        self.all.truncate(kept);
    }

    /// Notes that this round found the huge page at this place split. Returns whether to mend it.
    pub(super) fn note_split(&mut self, index: usize) -> bool {
        let round = self.round;
        let Some(piece) = self.all.get_mut(index) else { return false };
        let State::Huge { mended_from, .. } = &mut piece.state else { return false };
        if piece.found != 0 && round - piece.found <= 1 {
            piece.rest = (piece.rest * 2).min(MOST_REST);
            *mended_from = round + piece.rest;
            return false;
        }
        piece.found = round;
        true
    }

    /// Notes that the piece at this place no longer fills a huge page: the next round looks at it anew.
    pub(super) fn let_go(&mut self, index: usize) {
        let (round, forks) = (self.round, self.forks);
        if let Some(piece) = self.all.get_mut(index) {
            (piece.state, piece.found) = (State::Frozen { since: forks }, round);
        }
        self.count();
    }

    /// Notes that nothing is left of the piece at this place, and takes it out of all counts.
    pub(super) fn note_gone(&mut self, index: usize) {
        let Some(&piece) = self.all.get(index) else { return };
        // Corrects the counts for this piece alone: a program may give back many at once.
        let is_at_rest = self.is_at_rest(&piece);
        self.resting -= usize::from(is_at_rest);
        if matches!(piece.state, State::Huge { .. }) {
            self.huge -= 1;
            self.overdue -= usize::from(!is_at_rest);
        }
        self.all[index].state = State::Gone;
    }

    /// Notes which huge pages are gone, because nothing of them is mapped.
    pub(super) fn look_for_gone(&mut self, is_mapped: impl Fn(Span) -> bool) {
        for piece in self.all.iter_mut() {
            if matches!(piece.state, State::Huge { .. }) && !is_mapped(piece.span) {
                piece.state = State::Gone;
            }
        }
        self.count();
    }

    /// Counts a fork. Returns how many huge pages are overdue; the fork owes the rent for each.
    pub(super) fn forked(&mut self) -> usize {
        self.forks = self.forks.saturating_add(1);
        if self.forks >= self.next_overdue {
            self.count();
        }
        self.overdue
    }

    /// Ends a round that has frozen or repaired: overdue pieces are frozen now.
    pub(super) fn end(&mut self) {
        for piece in self.all.iter_mut() {
            if matches!(piece.state, State::Huge { until, .. } if until <= self.forks) {
                (piece.state, piece.found) = (State::Frozen { since: self.forks }, self.round);
            }
        }
        self.round += 1;
        self.count();
    }

    /// Ends a pass between rounds that has repaired: it counts as a round, but has frozen no piece that was huge.
    pub(super) fn end_pass(&mut self) {
        self.round += 1;
        self.count();
    }

    /// Whether `span` is a piece that rests.
    pub(super) fn rests(&self, span: Span) -> bool {
        self.place(span).is_ok_and(|place| self.is_at_rest(&self.all[place]))
    }

    /// Returns the bytes of parts of pieces that rest, which are in base pages.
    pub(super) fn short_at_rest(&self) -> usize {
        let is_short = |piece: &&HotPiece| piece.span.len() < PIECE && self.is_at_rest(piece);
        self.all.iter().filter(is_short).map(|piece| piece.span.len()).sum()
    }

    /// Returns how many rest, as of the last round.
    pub(super) const fn resting(&self) -> usize {
        self.resting
    }

    /// Returns how many of them are huge pages.
    pub(super) const fn huge(&self) -> usize {
        self.huge
    }

    /// Returns the addresses of the table.
    pub(super) fn range(&self) -> Range<usize> {
        self.all.range()
    }

    const fn is_at_rest(&self, piece: &HotPiece) -> bool {
        match piece.state {
            State::Frozen { .. } | State::Gone => false,
            State::Base { until } => until > self.round,
            State::Huge { until, .. } => until > self.forks,
        }
    }

    /// Counts what rests, and what is overdue.
    fn count(&mut self) {
        (self.resting, self.huge, self.overdue, self.next_overdue) = (0, 0, 0, u64::MAX);
        for index in 0..self.all.len() {
            let piece = self.all[index];
            self.resting += usize::from(self.is_at_rest(&piece));
            if let State::Huge { until, .. } = piece.state {
                self.huge += 1;
                if until > self.forks {
                    self.next_overdue = self.next_overdue.min(until);
                } else {
                    self.overdue += 1;
                }
            }
        }
    }

    fn place(&self, span: Span) -> Result<usize, usize> {
        self.all.binary_search_by_key(&span, |piece| piece.span)
    }

    fn known(&mut self, span: Span) -> Result<&mut HotPiece, usize> {
        self.place(span).map(|place| &mut self.all[place])
    }

    fn add(&mut self, piece: HotPiece) -> Result<(), Full> {
        let place = self.place(piece.span).unwrap_or_else(|place| place);
        self.all.push(piece)?;
        self.all[place..].rotate_right(1);
        Ok(())
    }
}

fn hand_out(run: Span, rests: &mut impl FnMut(Span) -> Result<(), Full>) -> Result<(), Full> {
    if run.is_empty() { Ok(()) } else { rests(run) }
}

#[cfg(test)]
#[path = "hot_tests.rs"]
mod tests;
