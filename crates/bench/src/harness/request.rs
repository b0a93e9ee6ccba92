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

/// What to measure: all suites that need not be named, in full, unless told otherwise.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub(super) suites: Vec<String>,
    pub(super) filter: Option<String>,
    pub(super) effort: Effort,
    pub(super) program: Option<PathBuf>,
}

impl Request {
    /// Chooses the suites with these names; without names, all suites that need not be named.
    #[must_use]
    pub fn suites(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.suites = names.into_iter().map(Into::into).collect();
        self
    }

    /// Leaves out groups without an id that contains this text.
    #[must_use]
    pub fn filter(mut self, part: impl Into<String>) -> Self {
        self.filter = Some(part.into());
        self
    }

    /// Sets how long to measure.
    #[must_use]
    pub fn effort(mut self, effort: Effort) -> Self {
        self.effort = effort;
        self
    }

    /// Names a program that calls [`crate::suites::serve`] with the arguments behind [`HELPER`], and that starts other
    /// programs frozen by its command `run`. Without it, figures of processes with a past of their own are skipped.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }
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
