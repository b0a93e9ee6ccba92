//! How much of a slice's time is left, and how much memory fits into it.
//!
//! What copying takes is counted in CPU time, for on a busy machine the wall clock tells of the neighbours; what is left
//! of a slice by the wall clock, since that is what the program waits for.
//!
//! A slice copies at least one part, of the least length, or a freeze would never end on a slow machine; and a slice of
//! no time at all copies exactly that, whatever the clock says.

use std::time::Duration;

use super::piece::PIECE;
use crate::clock::{Instant, Moment, nanos};

/// The least part of a piece that is copied at a time.
pub(crate) const LEAST: usize = 128 << 10;
/// What copying a MiB takes, in nanoseconds, where nothing was copied yet.
const CAUTIOUS: u64 = 1_000_000;
/// What is kept for the end of a slice: sealing, a view, and what is noted.
const END: u64 = 100_000;

/// What copying takes, as far as it was seen. Lasts from slice to slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// Nanoseconds for each MiB.
    per_mib: u64,
}

impl Speed {
    pub(super) const fn unknown() -> Self {
        Self { per_mib: CAUTIOUS }
    }

    /// So many bytes were copied and shown in so many nanoseconds. Slower is believed sooner than quicker, since a budget
    /// hangs on it.
    fn took(&mut self, bytes: usize, taken: u64) {
        let now = taken.saturating_mul(1 << 20) / (bytes as u64).max(1);
        self.per_mib = if now > self.per_mib { u64::midpoint(self.per_mib, now) } else { (self.per_mib * 7 + now) / 8 };
    }

    /// How much fits into so many nanoseconds: a piece or a power of two below; nothing if not even the least does.
    fn fits(self, left: u64) -> Option<usize> {
        let mut len = PIECE;
        while len >= LEAST {
            if (len as u64).saturating_mul(self.per_mib) >> 20 <= left {
                return Some(len);
            }
            len /= 2;
        }
        None
    }
}

/// The time of one slice.
#[derive(Debug)]
pub(super) struct Pace<'a> {
    speed: &'a mut Speed,
    budget: u64,
    started: Instant,
    /// Whether anything was copied in this slice.
    has_worked: bool,
}

impl<'a> Pace<'a> {
    /// That of a slice of `budget` that began at `started`.
    pub(super) fn new(speed: &'a mut Speed, budget: Duration, started: Instant) -> Self {
        Self { speed, budget: nanos(budget), started, has_worked: false }
    }

    /// Begins another slice; how long the last one took, in nanoseconds.
    pub(super) fn begin_again(&mut self) -> u64 {
        let taken = self.started.elapsed();
        (self.started, self.has_worked) = (Instant::now(), false);
        taken
    }

    /// How many bytes may be copied next; none if the time is used up.
    pub(super) fn next(&self) -> Option<usize> {
        let left = self.budget.saturating_sub(self.started.elapsed()).saturating_sub(END);
        self.speed.fits(left).or(if self.has_worked { None } else { Some(LEAST) })
    }

    /// Whether there is time to look at one more place. At least one part is copied first.
    pub(super) fn may_look(&self) -> bool {
        !self.has_worked || self.started.elapsed() < self.budget
    }

    /// So many bytes were copied since `before`.
    pub(super) fn took(&mut self, bytes: usize, before: Moment) {
        self.has_worked = true;
        // Less tells more of the calls than of the bytes.
        if bytes >= LEAST / 2 {
            self.speed.took(bytes, before.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_follows_what_was_seen() {
        let mut speed = Speed::unknown();
        assert_eq!(
            [2_000_000, 1_999_999, 130_000, 120_000].map(|left| speed.fits(left)),
            [Some(PIECE), Some(PIECE / 2), Some(LEAST), None]
        );
        speed.took(1 << 20, 15_000_000);
        assert_eq!(speed.fits(1_999_999), Some(LEAST), "a slow machine is believed soon");
        for _ in 0..50 {
            speed.took(1 << 20, 250_000);
        }
        assert_eq!(speed.fits(1_000_000), Some(PIECE), "a quick one bit by bit");
    }

    #[test]
    fn a_slice_of_no_time_copies_the_least_part_once() {
        let mut speed = Speed::unknown();
        let mut pace = Pace::new(&mut speed, Duration::ZERO, Instant::now());
        assert_eq!((pace.next(), pace.may_look()), (Some(LEAST), true));
        pace.took(LEAST, Moment::now());
        assert_eq!((pace.next(), pace.may_look()), (None, false));
        pace.begin_again();
        assert_eq!((pace.next(), pace.may_look()), (Some(LEAST), true));
    }
}
