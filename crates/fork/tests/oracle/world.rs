//! How a program's calls are made, and what they answer.

use std::time::Duration;

use palimpsest_fork::{Errands, Options, Pages, Pause, Pays, Progress, Stage, progress};
use palimpsest_sys::proc::thp;
use rustix::io::Errno;

use crate::run;

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
    /// Slices of so many microseconds put whole pieces into huge pages where they are, and freeze the rest.
    Gathered(u32),
    /// The same by deputies, which go on while the program does.
    Deputed(u32),
    /// As frozen, with something wrong on purpose, to show that the oracle notices.
    Mutant,
}

/// Budgets from the least that is promised to one in which all fits, in microseconds.
pub(crate) const BUDGETS: [u32; 4] = [100, 500, 2000, 20_000];

/// The budget of slices that do the least possible.
pub(crate) const LEAST: u32 = 0;

/// So many that gathering a piece pays, and so few that freezing a huge page does not.
const FORKS: u32 = 1500;

impl World {
    /// All of them, those in slices with this many microseconds.
    pub(crate) fn all(number: u32) -> impl IntoIterator<Item = Self> {
        let timed = [Self::Budgeted(number), Self::Gathered(number), Self::Deputed(number)];
        [Self::Plain, Self::Frozen, Self::Sliced, Self::Mutant].into_iter().chain(timed)
    }

    /// What the interpreter needs in its environment besides: nothing.
    pub(crate) fn environment(self) -> impl Iterator<Item = (&'static str, String)> {
        std::iter::empty()
    }

    /// Returns how long a slice may take, if freezes are in slices.
    pub(crate) const fn budget(self) -> Option<Duration> {
        match self {
            Self::Sliced => Some(Duration::ZERO),
            Self::Budgeted(microseconds) | Self::Gathered(microseconds) | Self::Deputed(microseconds) => {
                Some(Duration::from_micros(microseconds as u64))
            }
            Self::Plain | Self::Frozen | Self::Mutant => None,
        }
    }

    /// Whether pieces are put into huge pages where they are.
    pub(crate) const fn gathers(self) -> bool {
        matches!(self, Self::Gathered(_) | Self::Deputed(_))
    }

    /// Adds to the options of a freeze what this world is about.
    pub(crate) fn wishes(self, options: Options) -> Options {
        let pause = self.budget().map_or(Pause::AtOnce, Pause::Within);
        let options = options.least(1).pause(pause);
        match self {
            Self::Gathered(_) => options.pages(Pages::Gather).pays(Pays::Within(FORKS)),
            Self::Deputed(_) => options.pages(Pages::Gather).pays(Pays::Within(FORKS)).errands(Errands::Deputy),
            _ => options,
        }
    }

    /// Takes a slice: of a freeze under way, and of the work between forks.
    pub(crate) fn takes_slice(self) {
        let before = progress();
        let is_wanted = before.stage == Stage::UnderWay || self.gathers();
        if self.budget().is_none() || !is_wanted {
            return;
        }
        // SAFETY: 1. as for the freeze.
        match unsafe { palimpsest_fork::freeze_slice() } {
            Ok(after) => run::say(&format!("#frozen {}", done(&after).saturating_sub(done(&before)))),
            Err(error) => run::say(&format!("#not frozen: {error}")),
        }
    }
}

/// Returns why no memory is gathered here, if none is.
pub(crate) fn ungathered() -> Option<&'static str> {
    if !thp::can_collapse() {
        return Some("this kernel makes no huge pages on request");
    }
    match thp::enabled() {
        Ok(thp::Anonymous::Madvise | thp::Anonymous::Always) => None,
        _ => Some("huge pages are not wanted"),
    }
}

fn done(progress: &Progress) -> usize {
    progress.frozen_bytes + progress.gathered_bytes
}

/// What a call returned: 0 or more, or the negative error number.
pub(crate) type Answer = isize;

/// The answer of a C function.
pub(crate) fn answer(returned: isize) -> Answer {
    if returned == -1 { -errno() } else { returned }
}

/// The answer of a guard that refuses.
pub(crate) fn refused(errno: Errno) -> Answer {
    -(errno.raw_os_error() as Answer)
}

fn errno() -> Answer {
    std::io::Error::last_os_error().raw_os_error().map_or(0, |errno| errno as Answer)
}
