//! The populated pages of one piece.

use std::ops::ControlFlow;

use palimpsest_sys::extent::ExtentError;

use super::piece::{PIECE, Target};
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

    fn join(&mut self) {
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

/// Adds the runs of `piece` for which the extent has contents; all of it where that cannot be told.
pub(crate) fn add_contents(runs: &mut PieceRuns, target: Target<'_>, piece: Span) -> Result<(), ExtentError> {
    let Target { extent, base } = target;
    let page = rustix::param::page_size();
    let offsets = piece.start.wrapping_sub(base) as u64..piece.end.wrapping_sub(base) as u64;
    let mut is_whole = false;
    let told = extent.contents(offsets, &mut |run| {
        let start = base.wrapping_add(run.start as usize) & !(page - 1);
        let end = base.wrapping_add(run.end as usize).next_multiple_of(page);
        let flow = runs.push(Span::new(start, end).intersection(piece));
        is_whole |= flow.is_break();
        flow
    });
    if is_whole || matches!(told, Err(ExtentError::Closed { .. })) {
        runs.len = 0;
        let _ = runs.push(piece);
        return Ok(());
    }
    runs.join();
    told
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
