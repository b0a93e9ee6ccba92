//! Measures what things cost the calling thread.
//!
//! Prices use CPU time, since wall-clock time includes what other processes do: on a busy machine work would seem to
//! cost five times as much, and nothing would pay.

use std::time::Duration;

use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};

/// A moment in the CPU time of the calling thread, or in wall-clock time where a seccomp filter forbids the former.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuMoment(Duration);

impl CpuMoment {
    pub(crate) fn now() -> Self {
        let told = clock_gettime_dynamic(DynamicClockId::Known(ClockId::ThreadCPUTime));
        let now = told.unwrap_or_else(|_| clock_gettime(ClockId::Monotonic));
        Self(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    /// Returns the nanoseconds since then.
    pub(crate) fn elapsed(self) -> u64 {
        nanos(Self::now().0.saturating_sub(self.0))
    }
}

/// A moment in wall-clock time, which is what the program waits for. For budgets only: never compare it with a price.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallMoment(Duration);

impl WallMoment {
    /// Returns the nanoseconds since the clock was zero.
    pub(crate) fn nanos(self) -> u64 {
        nanos(self.0)
    }

    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        Self(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    /// Returns the nanoseconds since then.
    pub(crate) fn elapsed(self) -> u64 {
        nanos(Self::now().0.saturating_sub(self.0))
    }
}

/// Returns `time` in nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the part of `all` that `part` is of `whole`.
pub(crate) fn share(all: u64, part: Duration, whole: Duration) -> u64 {
    let share = u128::from(all) * part.as_nanos() / whole.as_nanos().max(1);
    u64::try_from(share).unwrap_or(u64::MAX).min(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_costs_little_and_one_that_works_more_and_more() {
        let (started, wall) = (CpuMoment::now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        assert!(started.elapsed() < nanos(wall.elapsed()) / 2);
        while started.elapsed() < 1_000_000 {}
    }

    #[test]
    fn shares_are_parts_of_all() {
        let of = |part, whole| share(1000, Duration::from_nanos(part), Duration::from_nanos(whole));
        assert_eq!((of(1, 4), of(0, 0), of(4, 4), of(9, 4)), (250, 0, 1000, 1000));
    }
}
