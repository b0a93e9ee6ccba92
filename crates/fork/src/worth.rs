//! What freezing memory takes once, and what each fork saves then.

use std::fmt;
use std::time::Duration;

/// Whether a [`Worth`] was seen or is expected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Basis {
    /// Both figures are expected, by what such memory costs elsewhere or has cost before.
    #[default]
    Expected,
    /// What it took is measured, and what each fork saves is expected.
    Taken,
    /// Both are measured.
    Measured,
}

/// A price and what it buys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Worth {
    /// What the freeze takes, once.
    pub once: Duration,
    /// What each fork saves.
    pub per_fork: Duration,
}

impl Worth {
    /// Returns after how many forks it has paid; `None` if it never does.
    pub fn pays_after(&self) -> Option<u64> {
        let saved = self.per_fork.as_nanos();
        (saved > 0).then(|| u64::try_from(self.once.as_nanos().div_ceil(saved)).unwrap_or(u64::MAX))
    }

    /// Whether it pays within this many forks.
    pub(crate) fn pays_within(&self, forks: u32) -> bool {
        self.pays_after().is_some_and(|after| after <= u64::from(forks))
    }

    /// Tells it, with a word for what is only expected.
    pub(crate) const fn on(self, basis: Basis) -> Told {
        Told { worth: self, basis }
    }

    /// Adds the two.
    #[must_use]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { once: self.once.saturating_add(other.once), per_fork: self.per_fork.saturating_add(other.per_fork) }
    }

    /// Returns the same, with each fork dearer by `per_fork`.
    #[must_use]
    pub(crate) const fn at_a_cost_of(self, per_fork: Duration) -> Self {
        Self { per_fork: self.per_fork.saturating_sub(per_fork), ..self }
    }
}

impl fmt::Display for Worth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.on(Basis::Measured).fmt(f)
    }
}

/// A worth and what it rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    worth: Worth,
    basis: Basis,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worth, basis } = *self;
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (all, saved) = match basis {
            Basis::Expected => ("about ", ""),
            Basis::Taken => ("", "about "),
            Basis::Measured => ("", ""),
        };
        write!(f, "{all}{:.0} ms once, {saved}{:.2} ms a fork saved: ", millis(worth.once), millis(worth.per_fork))?;
        match worth.pays_after() {
            Some(forks) => write!(f, "pays after {saved}{forks} forks"),
            None => f.write_str("never pays"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pays_is_told_with_its_number_of_forks() {
        let worth =
            |once, per_fork| Worth { once: Duration::from_micros(once), per_fork: Duration::from_micros(per_fork) };
        let numpy = worth(1_380_000, 350);
        assert_eq!(numpy.to_string(), "1380 ms once, 0.35 ms a fork saved: pays after 3943 forks");
        assert!(numpy.pays_within(3943) && !numpy.pays_within(3942));
        assert_eq!(worth(100, 50).and(worth(20, 10)), worth(120, 60));
        assert_eq!(worth(100, 50).at_a_cost_of(Duration::from_micros(30)).pays_after(), Some(5));
        let never = worth(100, 50).at_a_cost_of(Duration::from_micros(50));
        assert_eq!((never.pays_after(), never.pays_within(u32::MAX)), (None, false));
        assert!(never.to_string().ends_with(": never pays"));
        let told = |basis| worth(358_000, 8700).on(basis).to_string();
        assert_eq!(told(Basis::Expected), "about 358 ms once, 8.70 ms a fork saved: pays after 42 forks");
        assert_eq!(told(Basis::Taken), "358 ms once, about 8.70 ms a fork saved: pays after about 42 forks");
    }
}
