//! What a run is asked for: which figures, and how long.

use std::path::PathBuf;
use std::time::Duration;

use super::contestant::Group;
use super::sampler::Rounds;

/// First argument of this program when it is started as a helper; the helper's name and its arguments follow.
pub const HELPER: &str = "bench-helper";

/// How much time a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effort {
    /// One round: shows that every contestant does the same work, and measures nothing that could be relied on.
    Check,
    /// Under a minute for a suite.
    Quick,
    /// A few minutes; narrower medians.
    #[default]
    Full,
}

impl Effort {
    /// Limits of a sampling: `least` and `most` rounds of a full run and its time; a quick one has a fifth of the time.
    pub(crate) fn rounds(self, least: usize, most: usize, budget: Duration) -> Rounds {
        match self {
            Self::Check => Rounds { least: 1, most: 1, budget: Duration::ZERO },
            Self::Quick => Rounds { least: (least / 3).max(2), most: (most / 3).max(2), budget: budget / 5 },
            Self::Full => Rounds { least, most, budget },
        }
    }

    /// `full` for a full run, `quick` for the shorter ones.
    #[must_use]
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Check | Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Names of suites; if empty, all that need not be named.
    pub suites: Vec<String>,
    /// Measure only groups with an id that contains this text.
    pub filter: Option<String>,
    /// How long to measure.
    pub effort: Effort,
    /// A program that calls [`crate::suites::serve`] with what follows [`HELPER`] on its command line, and starts other
    /// programs frozen when it is told to by `run`. Without it, figures of processes with a past of their own
    /// are skipped.
    pub program: Option<PathBuf>,
}

/// The part of a [`Request`] that decides which figures are measured.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    filter: Option<String>,
}

impl Wanted {
    /// Only groups with an id that contains `filter`; all if there is none.
    #[must_use]
    pub fn matching(filter: Option<String>) -> Self {
        Self { filter }
    }

    /// Whether any figure of `group` is asked for.
    #[must_use]
    pub fn group(&self, group: &Group) -> bool {
        self.filter.as_deref().is_none_or(|filter| group.ids().any(|id| id.contains(filter)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::contestant::Contestant;
    use super::super::record::Unit;
    use super::*;

    #[test]
    fn a_filter_takes_whole_groups() {
        let figures = ["pack.load.packed", "pack.load.page_each"].map(|id| Contestant::new(id, Unit::Count));
        let group = Group::new("pack.load", "", figures);
        assert!(Wanted::matching(None).group(&group));
        assert!(Wanted::matching(Some("page_each".into())).group(&group));
        assert!(!Wanted::matching(Some("call".into())).group(&group));
    }
}
