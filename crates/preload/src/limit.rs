//! How long a wait lasts.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::timespec;

/// The time for `ppoll` and `pselect6` that do not wait.
pub(crate) const AT_ONCE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// How long to wait in the kernel.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    For(Duration),
    Forever,
}

impl Step {
    /// Returns the time for `ppoll` and `pselect6`; `None` for ever.
    pub(crate) fn time(self) -> Option<timespec> {
        let Self::For(time) = self else { return None };
        let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
        Some(timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() })
    }

    /// Returns a step that does not end after this one, though `ppoll` takes a little longer than it is asked to:
    /// `select_estimate_accuracy` in `fs/select.c`, at most 0.1 s and a thousandth, or a two hundredth for a process
    /// with low priority. The same if that is too little to matter.
    fn early(self) -> Self {
        const MOST: Duration = Duration::from_millis(100);
        const LEAST: Duration = Duration::from_micros(5);
        match self {
            Self::For(time) => {
                let slack = (time / 200).min(MOST);
                Self::For(if slack > LEAST { time - slack } else { time })
            }
            step => step,
        }
    }

    /// Returns the time for `epoll_pwait`: no less than asked for.
    pub(crate) fn millis(self) -> c_int {
        match self {
            Self::For(time) => c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX),
            Self::Forever => -1,
        }
    }
}

/// Until when a call waits.
#[derive(Clone, Copy)]
pub(crate) struct Limit(Option<Instant>);

impl Limit {
    pub(crate) fn after(time: Option<Duration>) -> Self {
        // Anything too far away is for ever.
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    /// Whether it is further away than `time`.
    pub(crate) fn is_beyond(self, time: Duration) -> bool {
        self.0.is_none_or(|end| end.saturating_duration_since(Instant::now()) > time)
    }

    pub(crate) fn left(self) -> Step {
        match self.0 {
            None => Step::Forever,
            Some(end) => Step::For(end.saturating_duration_since(Instant::now())),
        }
    }

    /// Waits by `ask` until it answers something else than 0, or it is over, or `is_ended`: no later than a sleep would
    /// be. `ask` may be as late as `ppoll`.
    pub(crate) fn exactly(self, mut ask: impl FnMut(Step) -> isize, is_ended: impl Fn() -> bool) -> isize {
        loop {
            let answer = ask(self.left().early());
            if answer != 0 || self.is_over() || is_ended() {
                return answer;
            }
        }
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// Returns a time of the program's; `None` if it is none.
pub(crate) fn duration(time: timespec) -> Option<Duration> {
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|&nanos| nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}

/// The monotonic clock.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a sleep that is as late as one `ppoll` may be, or takes many of them, whether each is late or none.
    #[test]
    fn early_steps_end_in_time_and_are_few() {
        for lateness in [0, 200, 1000] {
            for micros in [1, 900, 10_000, 1_000_000, 40_000_000, 3_600_000_000, 1 << 50] {
                let asked = Duration::from_micros(micros);
                let (mut left, mut steps) = (asked, 0);
                let late = loop {
                    let Step::For(step) = Step::For(left).early() else { panic!("no time") };
                    // As the kernel waits.
                    let slack = if lateness == 0 { Duration::ZERO } else { step / lateness };
                    let waited = step + slack.min(Duration::from_millis(100));
                    steps += 1;
                    if waited >= left {
                        break waited - left;
                    }
                    left -= waited;
                };
                assert!(late <= Duration::from_micros(5) && steps <= 5, "{asked:?}: {late:?} late, {steps} steps");
            }
        }
    }

    #[test]
    fn a_wait_goes_on_until_it_is_over_or_answered() {
        let mut answers = [0, 0, 7].into_iter();
        let far = Limit::after(Some(Duration::from_secs(3600)));
        let is_early = |step| matches!(step, Step::For(time) if time < Duration::from_secs(3600));
        let ask = |step| if is_early(step) { answers.next().expect("no more") } else { -1 };
        assert_eq!(far.exactly(ask, || false), 7);
        assert_eq!(far.exactly(|_| 0, || true), 0);
        assert_eq!(Limit::after(Some(Duration::ZERO)).exactly(|_| 0, || false), 0);
    }
}
