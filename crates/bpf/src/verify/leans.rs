//! Which kept states the ways from another one lead back to, if only a count of rounds ends the loop.

use crate::code::MOST_FRAMES;

/// Kept states that count rounds, by how many functions are around the one whose call counts; of several the oldest.
/// While a state has not been followed to its ends, all that it leans on are before it on its way: once the oldest of a
/// depth is closed, so are the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Leans([Option<usize>; MOST_FRAMES]);

impl Leans {
    /// Notes the state `on`, whose call has `depth` around it.
    pub(super) fn add(&mut self, depth: usize, on: usize) {
        self.0[depth] = Some(self.0[depth].map_or(on, |known| known.min(on)));
    }

    /// Notes those of `other` that are older than the state `than`.
    pub(super) fn add_older(&mut self, other: &Self, than: usize) {
        for (depth, on) in other.iter().filter(|(_, on)| *on < than) {
            self.add(depth, on);
        }
    }

    /// The depths and states.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
        self.0.iter().enumerate().filter_map(|(depth, on)| Some((depth, (*on)?)))
    }

    /// Returns those that are open; `closed` returns what a closed state leans on.
    pub(super) fn open(self, closed: impl Fn(usize) -> Option<Self>) -> Self {
        let (mut open, mut rest) = (Self::default(), self);
        // Each leans on older ones only.
        while let Some((depth, on)) = rest.iter().max_by_key(|(_, on)| *on) {
            rest.0[depth] = None;
            match closed(on) {
                None => open.add(depth, on),
                Some(leans) => rest.add_older(&leans, on),
            }
        }
        open
    }
}
