//! How a program's calls are made, and what they answer.

use std::time::Duration;

/// How the program's calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// As the program says, without freezes.
    Plain,
    /// Freezes freeze, and calls go through the guards.
    Frozen,
    /// The same in slices: the least possible before each operation.
    Sliced,
    /// In slices of so many microseconds: how much that is depends on the machine.
    Budgeted(u32),
    /// As frozen, with something wrong on purpose, to show that the oracle notices.
    Mutant,
}

/// Budgets from the least that is promised to one in which all fits, in microseconds.
pub(crate) const BUDGETS: [u32; 4] = [100, 500, 2000, 20_000];

impl World {
    /// Returns how long a slice may take, if freezes are in slices.
    pub(crate) const fn budget(self) -> Option<Duration> {
        match self {
            Self::Sliced => Some(Duration::ZERO),
            Self::Budgeted(microseconds) => Some(Duration::from_micros(microseconds as u64)),
            Self::Plain | Self::Frozen | Self::Mutant => None,
        }
    }
}

/// What a call returned: 0 or more, or the negative error number.
pub(crate) type Answer = isize;

/// The answer of a C function.
pub(crate) fn answer(returned: isize) -> Answer {
    if returned == -1 { -errno() } else { returned }
}

fn errno() -> Answer {
    std::io::Error::last_os_error().raw_os_error().map_or(0, |errno| errno as Answer)
}
