//! The clock for figures that one thread measures alone: the time for which the thread was running.
//!
//! On an idle machine it runs as fast as a wall clock, since nothing measured sleeps. On a busy one it leaves out the
//! turns of other programs, which would otherwise count against whichever contestant happens to be running.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A running measurement.
pub(crate) struct Stopwatch(Duration);

impl Stopwatch {
    /// Begins to measure.
    pub(crate) fn start() -> Self {
        Self(thread_time())
    }

    /// Returns this thread's running time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        thread_time().saturating_sub(self.0)
    }
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel's clock of a thread starts at zero, so neither part is negative.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_while_the_thread_does() {
        let stopwatch = Stopwatch::start();
        let mut sum = 0_u64;
        while stopwatch.elapsed().is_zero() {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(stopwatch.elapsed() < Duration::from_secs(60));
    }
}
