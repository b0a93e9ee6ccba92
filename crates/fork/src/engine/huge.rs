//! Which hot memory is put into huge pages, and whether huge pages can be had.
//!
//! Never asks the kernel: whoever holds the [`Supply`] reports what came of asking.

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::pages::vmas::VmaFlags;
use rustix::io::Errno;

use super::piece::PIECE;
use crate::hazards::HugePages;

/// Most rounds between two trials while trials fail.
const MOST_REST: u32 = 63;

/// Whether huge pages can be had. Memory may be too fragmented, or a cgroup's limit may forbid them: then fewer and
/// fewer rounds ask for one, and hot memory stays in base pages.
#[derive(Debug)]
pub(super) struct Supply {
    wanted: HugePages,
    /// Rounds until the next trial; and how many there were before the last.
    rest: u32,
    last: u32,
}

impl Supply {
    pub(super) const fn new() -> Self {
        Self { wanted: HugePages::Unwanted, rest: 0, last: 0 }
    }

    /// Begins a round. The settings of the system and of the program were read before.
    pub(super) const fn begin(&mut self, wanted: HugePages) {
        self.wanted = wanted;
        self.begin_pass();
    }

    /// Begins a pass between forks, which reads no settings again.
    pub(super) const fn begin_pass(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    /// Whether to ask for one.
    pub(super) fn is_open(&self) -> bool {
        self.wanted == HugePages::Welcome && self.rest == 0
    }

    /// Notes that one was made.
    pub(super) const fn made(&mut self) {
        self.last = 0;
    }

    /// Notes that none could be had: no other is asked for in this round.
    pub(super) fn refused(&mut self) {
        self.last = (2 * self.last + 1).min(MOST_REST);
        self.rest = self.last;
    }
}

/// The answer to asking for a huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// It is there.
    Made,
    /// There is none. Everything is as it was.
    Refused,
    /// This piece cannot be one, whether or not others can. Everything is as it was.
    Unfit,
}

impl Asked {
    /// Interprets the kernel's answer to `MADV_COLLAPSE`: about memory that cannot be had, or about the piece
    /// (`EINVAL`, or `EAGAIN` for pages in use).
    pub(super) const fn of(answer: Result<(), Errno>) -> Self {
        match answer {
            Ok(()) => Self::Made,
            // The second errno: the cgroup may have no more.
            Err(Errno::NOMEM | Errno::BUSY) => Self::Refused,
            Err(_) => Self::Unfit,
        }
    }
}

/// Whether a piece that was asked for rests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rests {
    /// It does, and has not before.
    Newly,
    /// It did before, or does not: it is no huge page, or there are more of them than the table has room for.
    AsBefore,
}

impl Rests {
    /// Returns 1 for a piece that is to be counted: each pass over many sees the same ones again.
    pub(super) const fn count(self) -> usize {
        match self {
            Self::Newly => 1,
            Self::AsBefore => 0,
        }
    }
}

/// Whether a piece with these traits and populated bytes may become a huge page: it is whole, the program has not asked
/// for base pages there, and the huge page takes no more than a third more memory than now.
pub(super) const fn suits(piece: Span, populated: usize, traits: Traits) -> bool {
    piece.len() == PIECE && fills(populated) && !traits.flags.intersects(VmaFlags::NO_HUGE_PAGE)
}

/// Whether this many populated bytes of a piece are enough for a huge page.
pub(super) const fn fills(populated: usize) -> bool {
    populated * 4 >= PIECE * 3
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::pages::maps::Permissions;

    use super::*;

    #[test]
    fn what_is_refused_is_asked_for_ever_more_seldom_and_not_where_it_is_unwanted() {
        let mut supply = Supply::new();
        let mut trials = Vec::new();
        for round in 0..400 {
            supply.begin(HugePages::Welcome);
            if supply.is_open() {
                trials.push(round);
                supply.refused();
                assert!(!supply.is_open(), "once in a round");
            }
        }
        assert_eq!(trials, [0, 1, 4, 11, 26, 57, 120, 183, 246, 309, 372]);
        supply.begin(HugePages::Unwanted);
        (0..100).for_each(|_| supply.begin(HugePages::Unwanted));
        assert!(!supply.is_open());
        supply.begin(HugePages::Welcome);
        assert!(supply.is_open());
        supply.made();
        supply.refused();
        supply.begin(HugePages::Welcome);
        assert!(supply.is_open(), "one that was made begins anew");
    }

    /// Fails on: one piece that cannot be gathered, after which no other is.
    #[test]
    fn what_is_said_of_one_piece_is_not_said_of_all() {
        let told = [Ok(()), Err(Errno::NOMEM), Err(Errno::BUSY), Err(Errno::INVAL), Err(Errno::AGAIN)].map(Asked::of);
        assert_eq!(told, [Asked::Made, Asked::Refused, Asked::Refused, Asked::Unfit, Asked::Unfit]);
    }

    #[test]
    fn whole_pieces_that_are_mostly_populated_suit() {
        let traits = |flags| Traits { permissions: Permissions::READ, flags, protection_key: 0 };
        let plain = traits(VmaFlags::default());
        let piece = Span::new(PIECE, 2 * PIECE);
        assert!(suits(piece, 384 * 4096, plain));
        assert!(!suits(piece, 383 * 4096, plain), "too little");
        assert!(!suits(Span::new(PIECE, 2 * PIECE - 4096), PIECE - 4096, plain), "cut");
        assert!(!suits(piece, PIECE, traits(VmaFlags::NO_HUGE_PAGE)), "unwanted");
    }
}
