//! Waiting for another thread that is about to finish.

/// Rounds of spinning: most holders are gone by then.
const SPINS: u32 = 64;
/// Rounds without sleep, and all rounds of who may not wait.
const SHORT: u32 = 1000;

/// A wait: round by round.
#[derive(Debug)]
pub(super) struct Wait(u32);

impl Wait {
    pub(super) const fn begin() -> Self {
        Self(0)
    }

    /// Waits a little for another thread. Returns false, without waiting, if this may not go on for ever and has taken
    /// a short time.
    #[must_use]
    pub(super) fn again(&mut self, may_wait: bool) -> bool {
        let round = self.0;
        self.0 = round.saturating_add(1);
        if round < SPINS {
            core::hint::spin_loop();
            return true;
        }
        if round >= SHORT && !may_wait {
            return false;
        }
        #[cfg(feature = "std")]
        if round < SHORT {
            std::thread::yield_now();
        } else {
            // A thread with real-time priority yields to none of lower priority. Signal handlers may sleep.
            std::thread::sleep(core::time::Duration::from_micros(50));
        }
        #[cfg(not(feature = "std"))]
        core::hint::spin_loop();
        true
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    /// How often this thread has given up its CPU because it slept. Yielding is not counted.
    #[expect(unsafe_code, reason = "the kernel is asked")]
    fn sleeps() -> i64 {
        // SAFETY: all-zero is a valid usage.
        let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
        // SAFETY: `usage` is there to be written.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
        usage.ru_nvcsw
    }

    #[test]
    fn who_may_wait_sleeps_in_the_end_and_who_may_not_gives_up() {
        let mut wait = Wait::begin();
        assert!((0..SHORT).all(|_| wait.again(false)));
        assert!(!wait.again(false));
        let before = sleeps();
        // A sleep that is over before it has begun, on a busy machine, does not count.
        assert!((0..100).all(|_| wait.again(true)));
        assert!(sleeps() > before);
        wait.0 = u32::MAX;
        assert!(wait.again(true) && wait.again(true) && !wait.again(false));
    }
}
