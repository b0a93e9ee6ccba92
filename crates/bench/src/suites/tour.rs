//! The tour: seven things that Palimpsest does, each next to the usual way, within half a minute.
//!
//! Its figures are those of the other suites, with fewer contestants and in less time: ids and records are the same.

use std::time::Duration;

use palimpsest_sys::Causes;

use super::{bpf, fork, keys, pack, paging, programs};
use crate::harness::sampler::Rounds;
use crate::harness::{BenchError, Context, Effort, Group, Samples, Suite};

/// A part of the tour.
pub struct Part {
    id: &'static str,
    headline: &'static str,
    figures: Vec<Figures>,
}

/// A group of a part, and how to get its samples.
struct Figures {
    group: Group,
    seconds: u64,
    measure: Measure,
}

type Measure = fn(&Context<'_>, Rounds) -> Result<Samples, BenchError>;

/// The parts, in the order in which they run.
#[must_use]
pub fn tour() -> Vec<Part> {
    let part = |id, headline, figures: Vec<(Group, u64, Measure)>| {
        let figures = figures.into_iter().map(|(group, seconds, measure)| Figures { group, seconds, measure });
        Part { id, headline, figures: figures.collect() }
    };
    vec![
        part("fork", "A process with 512 MiB forks", vec![(fork::tour_group(), 3, fork::tour)]),
        part(
            "python",
            "The same for a program that was not changed: python3 with 140 MB of objects",
            vec![(programs::tour_python_group(), 2, programs::tour_python)],
        ),
        part(
            "reset",
            "Put a process back: 16 pages changed of 64 MiB",
            vec![(fork::tour_reset_group(), 2, fork::tour_reset)],
        ),
        part(
            "keys",
            "Switch 56 branches while a thread runs through them",
            vec![(keys::tour_group(), 3, |_, rounds| keys::tour(rounds))],
        ),
        part(
            "pack",
            "Load a function, never writable and executable at once; call 5000 of them in turn",
            vec![
                (pack::tour_load_group(), 2, |_, rounds| pack::tour_load(rounds)),
                (pack::tour_call_group(), 3, |_, rounds| pack::tour_call(rounds)),
            ],
        ),
        part(
            "bpf",
            "A place for verified eBPF programs, which come and go while it runs",
            vec![(bpf::tour_group(), 2, |_, rounds| bpf::tour(rounds))],
        ),
        part(
            "paging",
            "Fork 1 GiB of page tables, in a kernel of your own",
            vec![(paging::tour_group(), 3, |_, rounds| paging::tour(rounds))],
        ),
    ]
}

impl Part {
    /// Returns what the part shows, in one line.
    #[must_use]
    pub fn headline(&self) -> &'static str {
        self.headline
    }
}

/// Returns the rounds of a part that has this many seconds.
fn rounds(effort: Effort, seconds: u64) -> Rounds {
    match effort {
        Effort::Check => Rounds { least: 1, most: 1, budget: Duration::ZERO },
        Effort::Quick | Effort::Full => Rounds { least: 2, most: 10_000, budget: Duration::from_secs(seconds) },
    }
}

impl Suite for Part {
    fn id(&self) -> &'static str {
        self.id
    }

    fn description(&self) -> &'static str {
        self.headline
    }

    fn groups(&self) -> Vec<Group> {
        self.figures.iter().map(|figures| figures.group.clone()).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        for Figures { group, seconds, measure } in &self.figures {
            if !context.wants(group) {
                continue;
            }
            context.begin(&group.id);
            match measure(context, rounds(context.effort, *seconds)) {
                Ok(samples) => context.record(group, samples),
                Err(error @ BenchError::WrongResult { .. }) => return Err(error),
                // The other parts may work.
                Err(error) => context.skip(group, &Causes(&error).to_string()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_part_has_a_figure_of_ours_beside_what_it_is_compared_with() {
        let parts = tour();
        assert_eq!(parts.len(), 7);
        let mut ids = HashSet::new();
        for group in parts.iter().flat_map(Suite::groups) {
            assert!(group.contestants.len() >= 2, "{group:?}");
            for id in group.ids() {
                assert!(ids.insert(id.to_owned()), "{id} is there twice");
            }
        }
        for id in ["fork.512m.plain", "fork.512m.frozen", "reset.16.scan", "keys.toggle.56.batched.t1"] {
            assert!(ids.contains(id), "{id}");
        }
    }
}
