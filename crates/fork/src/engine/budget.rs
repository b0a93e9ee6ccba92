//! What a round may use up, and why a round ends early.

use palimpsest_sys::MapError;
use palimpsest_sys::memory::extent::ExtentError;
use palimpsest_sys::memory::vec::Full;
use palimpsest_sys::pages::pagemap::PagemapError;
use palimpsest_sys::pages::vmas::VmasError;

use crate::clock::WallMoment;

/// What a round may use up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Mappings that may be added.
    mappings: usize,
    time: Time,
    /// Whether any piece was begun, and whether one was left because the time was used up.
    has_begun: bool,
    has_left: bool,
}

/// How long a round may work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    /// Until everything is done.
    Unlimited,
    /// For this many nanoseconds, counted from `since`.
    For { nanos: u64, since: WallMoment },
}

impl Budget {
    pub(super) const fn new(mappings: usize) -> Self {
        Self { mappings, time: Time::Unlimited, has_begun: false, has_left: false }
    }

    /// Limits the time.
    #[must_use]
    pub(super) const fn within(self, time: Time) -> Self {
        Self { time, ..self }
    }

    /// Begins a piece if there is time for another; returns whether. There always is for the first one, or the work
    /// would never end.
    pub(super) fn begin_piece(&mut self) -> bool {
        let is_over = match self.time {
            Time::Unlimited => false,
            Time::For { nanos, since } => self.has_begun && since.elapsed() >= nanos,
        };
        (self.has_begun, self.has_left) = (true, self.has_left || is_over);
        !is_over
    }

    /// Whether a piece was left for lack of time.
    pub(super) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Returns how many mappings may still be added.
    pub(super) const fn mappings(&self) -> usize {
        self.mappings
    }

    /// Takes `count` mappings from the budget.
    pub(super) fn take_mappings(&mut self, count: usize) -> Result<(), Stopped> {
        self.mappings = self.mappings.checked_sub(count).ok_or(Stopped::Mappings)?;
        Ok(())
    }
}

/// Why a round ended early. What is frozen stays frozen; the rest is untouched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    #[error(transparent)]
    Extent(#[from] ExtentError),
    #[error("{0}")]
    Pages(#[from] PagemapError),
    #[error("the time of this round is used up")]
    Time,
    #[error("the process would have too many mappings; raise vm.max_map_count (`sysctl -w vm.max_map_count=…`)")]
    Mappings,
    #[error(
        "frozen memory would be in too many extents, each of one slice: freeze the rest in one go (`Pause::AtOnce`, \
         `--pause none`), or all with a longer pause"
    )]
    Extents,
    #[error(
        "it has more than {most} mappings, and before Linux 6.11 all of them would be listed in each slice that \
         gathers: take a longer pause (`Pause::Within`, `--pause`)"
    )]
    List {
        /// How many fit into a slice.
        most: usize,
    },
    #[error("{0}")]
    Tables(#[from] Full),
    #[error("{0}")]
    Room(#[from] MapError),
    #[error("{0}")]
    Mapped(#[from] VmasError),
}
