//! The kernel's clocks.

/// A clock. Each counts from its own start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Clock {
    /// The time since the machine was started, without the time when it was suspended.
    Monotonic,
    /// The same, at the last tick.
    Coarse,
    /// The time since the machine was started.
    Boot,
    /// International atomic time.
    Atomic,
    /// Time of day, which may be set.
    Real,
}

impl Clock {
    /// Returns the clock's time in nanoseconds.
    pub fn nanoseconds(self) -> u64 {
        let id = match self {
            Self::Monotonic => libc::CLOCK_MONOTONIC,
            Self::Coarse => libc::CLOCK_MONOTONIC_COARSE,
            Self::Boot => libc::CLOCK_BOOTTIME,
            Self::Atomic => libc::CLOCK_TAI,
            Self::Real => libc::CLOCK_REALTIME,
        };
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writing. The call fails only for unknown clocks, and all kernels have these.
        let failed = unsafe { libc::clock_gettime(id, &mut time) };
        debug_assert_eq!(failed, 0, "{self:?}");
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_on() {
        for clock in [Clock::Monotonic, Clock::Coarse, Clock::Boot, Clock::Atomic] {
            let (before, behind) = (clock.nanoseconds(), clock.nanoseconds());
            assert!(before > 0 && before <= behind, "{clock:?}: {before}, {behind}");
        }
        assert!(Clock::Real.nanoseconds() > 0);
        assert!(Clock::Coarse.nanoseconds() <= Clock::Monotonic.nanoseconds());
        assert!(Clock::Monotonic.nanoseconds() <= Clock::Boot.nanoseconds());
    }
}
