//! How threads wait for each other where the standard library does not, since a filter may forbid what it calls.

/// How often a thread looks at a turn before it sleeps between looks.
pub(super) const SPINS: usize = 64;
/// How often it looks, asleep in between, before it takes a turn from a holder that does not go on: for at least a
/// second.
const NAPS: usize = 10_000;
/// The same for a thread that must not ask the kernel to let it sleep.
const SPINS_AWAKE: usize = 1 << 24;
const NAP_NANOSECONDS: i64 = 100_000;

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    /// With naps.
    Asleep,
    /// Without a system call.
    Awake,
    /// Hardly.
    #[cfg(test)]
    Briefly,
}

impl Waiting {
    /// How often a thread looks at a turn that does not end.
    pub(super) const fn looks(self) -> usize {
        match self {
            Self::Asleep => SPINS + NAPS,
            Self::Awake => SPINS_AWAKE,
            #[cfg(test)]
            Self::Briefly => SPINS,
        }
    }
}

/// Lets time pass between two looks.
pub(super) fn pause(looks: usize, waiting: Waiting) {
    if waiting == Waiting::Asleep && looks >= SPINS {
        let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_NANOSECONDS };
        // Interrupted or not, it looks again.
        let _ = rustix::thread::nanosleep(&pause);
    } else {
        std::hint::spin_loop();
    }
}
