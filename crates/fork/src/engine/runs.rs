//! The populated pages of one piece.

use std::ops::ControlFlow;

use super::piece::PIECE;
use super::span::Span;

/// Runs of pages in a piece, ascending and apart.
pub(crate) struct PieceRuns {
    all: [Span; PIECE / 4096],
    len: usize,
}

impl PieceRuns {
    pub(crate) const fn new() -> Self {
        Self { all: [Span::new(0, 0); PIECE / 4096], len: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[Span] {
        &self.all[..self.len]
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The parts of these that are in `part`.
    pub(crate) fn inside(&self, part: Span) -> Self {
        let mut inside = Self::new();
        for run in self.as_slice() {
            let run = run.intersection(part);
            if !run.is_empty() {
                // There are no more of them.
                let _ = inside.push(run);
            }
        }
        inside
    }

    /// Adds a run; after all are there, [`join`](Self::join) puts them in order.
    pub(crate) fn push(&mut self, run: Span) -> ControlFlow<()> {
        match self.all.get_mut(self.len) {
            Some(place) => {
                *place = run;
                self.len += 1;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }

    /// One run in the place of all.
    pub(crate) fn set(&mut self, run: Span) {
        self.len = 0;
        let _ = self.push(run);
    }

    /// Puts the runs in order.
    pub(crate) fn join(&mut self) {
        self.all[..self.len].sort_unstable();
        let mut joined = 0;
        for index in 0..self.len {
            let run = self.all[index];
            if joined > 0 && run.start <= self.all[joined - 1].end {
                self.all[joined - 1].end = self.all[joined - 1].end.max(run.end);
            } else {
                self.all[joined] = run;
                joined += 1;
            }
        }
        self.len = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined() {
        let mut runs = PieceRuns::new();
        for (start, end) in [(30, 40), (0, 10), (10, 20), (35, 36), (39, 50)] {
            let _ = runs.push(Span::new(start, end));
        }
        runs.join();
        assert_eq!(runs.as_slice(), [Span::new(0, 20), Span::new(30, 50)]);
    }
}
