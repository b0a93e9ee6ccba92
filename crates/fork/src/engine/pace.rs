//! How much of a slice's time is left, and how much memory fits into it.
//!
//! The price of copying is in CPU time, since wall-clock time includes what other processes do; what is left of a slice
//! is in wall-clock time, since that is what the program waits for.
//!
//! Each slice leaves an extent, which every fork pays for. So where the budget would make too many, a slice takes up to
//! twice as long, until it has copied its share of the plan.
//!
//! A slice copies at least one part of the least length, or a freeze would never end on a slow machine; a slice with a
//! budget of zero copies exactly that, whatever the clock says. A slice that finds nothing ends after some looks.

use std::time::Duration;

use super::piece::PIECE;
use crate::clock::{CpuMoment, WallMoment, nanos};

/// The least part of a piece that is copied in one go.
pub(crate) const LEAST: usize = 128 << 10;
/// What copying a MiB takes, in nanoseconds, before anything was copied. The first pages that a process of 4 GiB gets
/// for a file take the kernel that long.
const CAUTIOUS: u64 = 4_000_000;
/// Most slices of a freeze, unless each then took more than twice its budget.
const MOST_SLICES: usize = 1024;
/// Places at which a slice looks when its time is up and it has found nothing.
const MOST_LOOKS: u32 = 32;
/// Time kept for the end of a slice, for sealing and notes, and for what comes before its time begins.
const END: u64 = 250_000;

/// What copying takes, as observed. Lives from slice to slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// Nanoseconds for each MiB; `None` before anything was copied.
    per_mib: Option<u64>,
}

impl Speed {
    pub(super) const fn unknown() -> Self {
        Self { per_mib: None }
    }

    /// Notes that copying and showing these bytes took `taken` nanoseconds. Slower is believed sooner than quicker,
    /// since a budget depends on it.
    fn took(&mut self, bytes: usize, taken: u64) {
        let now = taken.saturating_mul(1 << 20) / (bytes as u64).max(1);
        self.per_mib = Some(match self.per_mib {
            // One look may mislead.
            None => now.min(u64::midpoint(CAUTIOUS, now)),
            Some(before) if now > before => u64::midpoint(before, now),
            Some(before) => (before * 7 + now) / 8,
        });
    }

    /// Returns how much fits into `left` nanoseconds: a piece or a smaller power of two; `None` if not even the least
    /// does.
    fn fits(self, left: u64) -> Option<usize> {
        let (mut len, per_mib) = (PIECE, self.per_mib.unwrap_or(CAUTIOUS));
        while len >= LEAST {
            if (len as u64).saturating_mul(per_mib) >> 20 <= left {
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
    /// Bytes up to which a slice may take twice as long.
    share: usize,
    started: WallMoment,
    /// Whether this slice has copied anything, or tried to.
    has_worked: bool,
    /// Bytes copied, and places looked at, in this slice.
    copied: usize,
    looks: u32,
}

impl<'a> Pace<'a> {
    /// Makes the pace of a slice of `budget` that began at `started`, in a freeze of `planned` bytes.
    pub(super) fn new(speed: &'a mut Speed, budget: Duration, planned: usize, started: WallMoment) -> Self {
        let (budget, share) = (nanos(budget), planned / MOST_SLICES);
        Self { speed, budget, share, started, has_worked: false, copied: 0, looks: 0 }
    }

    /// Begins another slice. Returns how long the last one took, in nanoseconds.
    pub(super) fn begin_again(&mut self) -> u64 {
        let taken = self.started.elapsed();
        (self.started, self.has_worked, self.copied, self.looks) = (WallMoment::now(), false, 0, 0);
        taken
    }

    /// Returns how many bytes to copy next; `None` if the time is up.
    pub(super) fn next(&self) -> Option<usize> {
        let left = self.time().saturating_sub(self.started.elapsed()).saturating_sub(END);
        self.speed.fits(left).or(if self.has_worked { None } else { Some(LEAST) })
    }

    /// Whether there is time to look at one more place. Some looks are always granted, so that at least one part is
    /// copied if there is any nearby.
    pub(super) fn may_look(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        !self.has_worked && self.looks <= MOST_LOOKS || self.started.elapsed() < self.time()
    }

    /// Returns how long this slice may take.
    const fn time(&self) -> u64 {
        if self.copied < self.share { self.budget.saturating_mul(2) } else { self.budget }
    }

    /// Notes that `bytes` were copied since `before`.
    pub(super) fn took(&mut self, bytes: usize, before: CpuMoment) {
        self.has_worked = true;
        self.copied += bytes;
        // Less than that tells more about the calls than about the bytes.
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
            [8_000_000, 7_999_999, 500_000, 499_999].map(|left| speed.fits(left)),
            [Some(PIECE), Some(PIECE / 2), Some(LEAST), None]
        );
        speed.took(1 << 20, 1_000_000);
        assert_eq!(speed.fits(2_000_000), Some(PIECE), "nothing was known before");
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
        let mut pace = Pace::new(&mut speed, Duration::ZERO, 1 << 40, WallMoment::now());
        assert_eq!((pace.next(), pace.may_look()), (Some(LEAST), true));
        pace.took(LEAST, CpuMoment::now());
        assert_eq!((pace.next(), pace.may_look()), (None, false));
        pace.begin_again();
        assert_eq!((pace.next(), pace.may_look()), (Some(LEAST), true));
    }

    /// Fails on: a slice that goes through a sparse TiB in one hold.
    #[test]
    fn a_slice_that_finds_nothing_ends() {
        let mut speed = Speed::unknown();
        let mut pace = Pace::new(&mut speed, Duration::ZERO, 0, WallMoment::now());
        assert_eq!((0..1 << 15).take_while(|_| pace.may_look()).count(), MOST_LOOKS as usize);
        pace.begin_again();
        assert!(pace.may_look());
    }

    #[test]
    fn a_slice_takes_twice_as_long_until_it_has_copied_its_share() {
        let mut speed = Speed::unknown();
        let budget = Duration::from_secs(1000);
        let mut pace = Pace::new(&mut speed, budget, MOST_SLICES * PIECE, WallMoment::now());
        assert_eq!(pace.time(), 2 * nanos(budget));
        pace.took(PIECE - 1, CpuMoment::now());
        assert_eq!(pace.time(), 2 * nanos(budget));
        pace.took(1, CpuMoment::now());
        assert_eq!(pace.time(), nanos(budget));
        pace.begin_again();
        assert_eq!(pace.time(), 2 * nanos(budget));
    }
}
