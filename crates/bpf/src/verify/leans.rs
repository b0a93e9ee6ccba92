//! Which kept states the ways from another one lead back to, where a count of rounds alone ends the loop.

use crate::code::MOST_FRAMES;

/// Kept states that counts rounds, by how many functions are around the one whose call counts; of several the oldest.
/// While a state has not been followed to its ends, all that it leans on are before it on its way, so that none of a
/// depth is open once the oldest is not.
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

    /// Those that are open, where `closed` tells of a state that is not what that one leans on.
    pub(super) fn open(self, closed: impl Fn(usize) -> Option<Self>) -> Self {
        let (mut open, mut rest) = (Self::default(), self);
        // Each leans on older ones alone.
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
