//! Runs of pages in one piece.

use std::ops::Deref;

use arrayvec::{ArrayVec, CapacityError};
use palimpsest_sys::memory::span::Span;

use super::piece::PIECE;

/// Runs of pages in a piece; ascending and apart once they are [joined](Self::join).
pub(super) struct PieceRuns(ArrayVec<Span, { PIECE / 4096 }>);

impl PieceRuns {
    pub(super) fn new() -> Self {
        Self(ArrayVec::new())
    }

    /// Cuts `runs` to `part`.
    pub(super) fn inside(runs: &[Span], part: Span) -> Self {
        let cut = runs.iter().map(|run| run.intersection(part)).filter(|run| !run.is_empty());
        // A piece has no more.
        Self(cut.take(PIECE / 4096).collect())
    }

    /// Adds a run. Call [`join`](Self::join) after the last one.
    pub(super) fn push(&mut self, run: Span) -> Result<(), CapacityError> {
        self.0.try_push(run).map_err(CapacityError::simplify)
    }

    /// Returns the bytes in all of them.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|run| run.len()).sum()
    }

    /// Replaces all runs by one.
    pub(super) fn set(&mut self, run: Span) {
        self.0.clear();
        self.0.push(run);
    }

    /// Sorts the runs, and joins those that touch.
    pub(super) fn join(&mut self) {
        self.0.sort_unstable();
        let mut joined: ArrayVec<Span, { PIECE / 4096 }> = ArrayVec::new();
        for run in &self.0 {
            match joined.last_mut() {
                Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
                _ => joined.push(*run),
            }
        }
        self.0 = joined;
    }
}

impl Deref for PieceRuns {
    type Target = [Span];

    fn deref(&self) -> &[Span] {
        &self.0
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
        assert_eq!(*runs, [Span::new(0, 20), Span::new(30, 50)]);
    }
}
