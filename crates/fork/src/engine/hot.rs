//! What is written to again and again, so that freezing it does not pay.

use std::ops::Range;

use palimpsest_sys::memory::vec::{Full, MappedVec};

use super::span::Span;

/// Rounds that a hot piece is left alone for at most. Not many, since rounds get rarer where they gain nothing.
const MOST_REST: u64 = 8;
/// From this many hot pieces on, all others that were written to are taken for hot too.
pub(super) const MOST_HOT: usize = 1 << 13;

/// A piece, or a part of one, that was written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct HotPiece {
    span: Span,
    /// The round that found it written to last.
    found: u64,
    /// For how many rounds it stays anonymous the next time.
    rest: u64,
    /// The round in which it may be frozen again; 0 while it is frozen.
    until: u64,
}

/// The pieces that were written to between rounds, and which of them rest.
#[derive(Debug)]
pub(super) struct HotPieces {
    all: MappedVec<HotPiece>,
    /// The number of the round that is under way, or the next one; from 1.
    round: u64,
    /// How many rest: asked at each fork.
    resting: usize,
}

impl HotPieces {
    pub(super) const fn new(all: MappedVec<HotPiece>) -> Self {
        Self { all, round: 1, resting: 0 }
    }

    /// Begins a round: hands out what rests, and forgets what was not written to for long.
    pub(super) fn begin(&mut self, mut rests: impl FnMut(Span) -> Result<(), Full>) -> Result<(), Full> {
        let (mut kept, mut resting) = (0, 0);
        for index in 0..self.all.len() {
            let mut piece = self.all[index];
            if self.is_at_rest(&piece) {
                rests(piece.span)?;
                resting += 1;
            } else if piece.until != 0 {
                (piece.until, piece.found) = (0, self.round);
            } else if self.round - piece.found > 2 * piece.rest {
                continue;
            }
            self.all[kept] = piece;
            kept += 1;
        }
        self.all.truncate(kept);
        self.resting = resting;
        Ok(())
    }

    /// Notes that this round has found a piece written to, and tells whether it is better left alone for now.
    pub(super) fn is_hot(&mut self, span: Span) -> bool {
        let round = self.round;
        let Some(known) = self.all.iter_mut().find(|known| known.span == span) else {
            return self.all.push(HotPiece { span, found: round, rest: 2, until: 0 }).is_err();
        };
        if known.until > round {
            return true;
        }
        // Its rest has ended in this very round.
        if known.found == round {
            return false;
        }
        let again = round - known.found <= 1;
        known.found = round;
        if again {
            known.rest = (known.rest * 2).min(MOST_REST);
            known.until = round + known.rest;
            self.resting += 1;
        }
        again
    }

    /// Ends a round that has frozen or repaired.
    pub(super) const fn end(&mut self) {
        self.round += 1;
    }

    /// Whether `span` is a piece that rests.
    pub(super) fn rests(&self, span: Span) -> bool {
        self.all.iter().any(|known| known.span == span && self.is_at_rest(known))
    }

    /// How many rest, as of the last round.
    pub(super) const fn resting(&self) -> usize {
        self.resting
    }

    /// The addresses of the table.
    pub(super) fn range(&self) -> Range<usize> {
        self.all.range()
    }

    const fn is_at_rest(&self, piece: &HotPiece) -> bool {
        piece.until > self.round
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(index: usize) -> Span {
        Span::new(index << 21, (index + 1) << 21)
    }

    /// Plays one round in which `written` pieces were written to; which of them were left alone, and how many rested.
    fn round(pieces: &mut HotPieces, written: &[usize]) -> (Vec<usize>, usize) {
        let mut resting = Vec::new();
        pieces
            .begin(|span| {
                resting.push(span);
                Ok(())
            })
            .expect("room");
        let left = written.iter().copied().filter(|index| !resting.contains(&of(*index)) && pieces.is_hot(of(*index)));
        let left = left.collect();
        pieces.end();
        let counted = pieces.all.iter().filter(|piece| piece.until >= pieces.round).count();
        assert_eq!(pieces.resting(), counted);
        (left, resting.len())
    }

    fn pieces() -> HotPieces {
        HotPieces::new(MappedVec::with_capacity(16).expect("memory"))
    }

    #[test]
    fn what_is_written_in_every_round_rests_for_longer_and_longer_and_is_tried_again() {
        let mut pieces = pieces();
        // Which rounds do not freeze it again.
        let left: Vec<bool> = (0..40)
            .map(|_| {
                let (left, resting) = round(&mut pieces, &[7]);
                !left.is_empty() || resting > 0
            })
            .collect();
        assert!(!left[0] && left[1], "the second time it is hot");
        let frozen = left.iter().filter(|left| !**left).count();
        assert!((3..=8).contains(&frozen), "frozen again in {frozen} of 40 rounds: {left:?}");
        // Left in peace, it is forgotten.
        for _ in 0..40 {
            round(&mut pieces, &[]);
        }
        assert_eq!((pieces.resting(), pieces.all.len()), (0, 0));
    }

    #[test]
    fn what_is_written_now_and_then_is_frozen_each_time() {
        let mut pieces = pieces();
        for turn in 0..40 {
            let written = if turn % 3 == 0 { &[1][..] } else { &[] };
            assert_eq!(round(&mut pieces, written), (vec![], 0), "round {turn}");
        }
    }

    #[test]
    fn beyond_the_table_everything_is_hot() {
        let mut pieces = pieces();
        let room = pieces.all.capacity();
        let written: Vec<usize> = (0..room + 5).collect();
        assert_eq!(round(&mut pieces, &written).0, [room, room + 1, room + 2, room + 3, room + 4]);
    }
}
