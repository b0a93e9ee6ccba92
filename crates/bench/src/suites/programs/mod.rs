//! Suites of unmodified programs from Debian's packages: `redis`, `python` and `mix`, which fork with a big heap, and
//! `programs`, most of which have a small one.
//!
//! Each contestant is the same program with the same data, started in another [`Mode`]. One life of it gives samples of
//! several groups.

mod external;
mod mix;
mod python;
mod redis;
mod server;
mod usual;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use palimpsest_sys::Causes;

pub(super) use external::{Ended, ProgramError, Scratch, Stopped, Tool, doing, finish, run_within};
pub(super) use mix::Mix;
pub(super) use python::Python;
pub(super) use python::{tour as tour_python, tour_group as tour_python_group};
pub(super) use redis::Redis;
pub(super) use usual::Programs;

use crate::harness::host::available_memory;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Effort, Group, Samples, failed};

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Started without Palimpsest.
    Plain,
    /// With an allocator that asks for huge pages: the best fork without Palimpsest.
    Thp,
    /// Without Palimpsest and without data: no fork is quicker.
    Empty,
    /// As `palimpsest run` does it when no option is given.
    Default,
    /// Frozen in slices.
    Frozen,
    /// Frozen all at once, at the first fork, so that figures do not depend on how far the slices are. It has the ids
    /// of `Frozen`, since the later forks are the same.
    FrozenAtOnce,
    /// Frozen in slices, and made into huge pages.
    FrozenHuge,
    /// Put into huge pages where it is if the program waits between forks, and frozen if it does not.
    Gather,
}

/// What a frozen program does about its other threads.
#[derive(Clone, Copy)]
enum Threads {
    Refuse,
    Stop,
}

impl Mode {
    const ALL: [Self; 7] =
        [Self::Plain, Self::Thp, Self::Empty, Self::Default, Self::FrozenAtOnce, Self::FrozenHuge, Self::Gather];

    /// What Palimpsest has nothing to do with.
    const RIVALS: [Self; 3] = [Self::Plain, Self::Thp, Self::Empty];

    /// Returns how much data a program gets that has `usual` otherwise.
    fn data(self, usual: u64) -> u64 {
        if self == Self::Empty { 0 } else { usual }
    }

    /// Returns the name in the ids of figures.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Thp => "thp",
            Self::Empty => "empty",
            Self::Default => "default",
            Self::Frozen | Self::FrozenAtOnce => "frozen",
            Self::FrozenHuge => "frozen_huge",
            Self::Gather => "gather",
        }
    }

    /// Returns a command that runs `program` in this way, with empty standard input.
    fn command(self, context: &Context<'_>, program: &str, threads: Threads) -> Result<Command, ProgramError> {
        self.reporting(context, program, threads, None)
    }

    /// Returns the same, and reports what is frozen to the file `report`.
    fn reporting(
        self,
        context: &Context<'_>,
        program: &str,
        threads: Threads,
        report: Option<&Path>,
    ) -> Result<Command, ProgramError> {
        let mut command = match self {
            Self::Plain | Self::Empty => Command::new(program),
            Self::Thp => {
                let mut command = Command::new(program);
                // glibc's allocator asks for huge pages; others have settings of their own.
                command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
                command
            }
            Self::Default | Self::Frozen | Self::FrozenAtOnce | Self::FrozenHuge | Self::Gather => {
                let mut command = context.frozen().map_err(ProgramError::Unfrozen)?;
                if let Some(report) = report {
                    let mut place = OsString::from("--report=");
                    place.push(report);
                    command.arg(place);
                }
                command.args(match (self, threads) {
                    // Nobody is held for what they do.
                    (Self::Default | Self::Gather, _) | (_, Threads::Refuse) => &[][..],
                    (_, Threads::Stop) => &["--threads", "stop"],
                });
                command.args(match self {
                    Self::Frozen => &["--huge=off"][..],
                    Self::FrozenAtOnce => &["--pause=none", "--huge=off"],
                    Self::FrozenHuge => &["--pause=none", "--huge=collapse"],
                    Self::Gather => &["--huge=gather"],
                    Self::Plain | Self::Thp | Self::Empty | Self::Default => &[],
                });
                command.arg("--").arg(program);
                command
            }
        };
        command.stdin(Stdio::null());
        Ok(command)
    }
}

/// Returns one group for each state of a program; ours are compared with plain ones, then with huge pages, then with
/// programs without data.
fn groups(suite: &str, states: &[(&str, &str)]) -> Vec<Group> {
    let group = |(state, title): &(&str, &str)| {
        let id = format!("{suite}.fork.{state}");
        let own = |mode: Mode| format!("{id}.{}", mode.name());
        let contestant = |mode: Mode| {
            let contestant = Contestant::new(own(mode), Unit::Microseconds);
            if Mode::RIVALS.contains(&mode) { contestant } else { contestant.against(Mode::RIVALS.map(own)) }
        };
        Group::new(id.as_str(), *title, Mode::ALL.map(contestant))
    };
    states.iter().map(group).collect()
}

/// Returns why programs cannot be started frozen, if they cannot.
fn unfrozen(context: &Context<'_>) -> Option<String> {
    let mut command = match context.frozen() {
        Ok(command) => command,
        Err(reason) => return Some(reason),
    };
    finish(command.args(["--quiet", "--", "true"])).err().map(|error| match error {
        ProgramError::Failed { said, .. } => said,
        error => Causes(&error).to_string(),
    })
}

/// What measuring a program needs.
struct Needs {
    tool: Tool,
    /// Bytes of memory.
    memory: usize,
    /// Rounds of a full and of a quick run.
    rounds: (usize, usize),
    budget: std::time::Duration,
}

/// Measures the wanted ones of `groups`: in each round every mode has one `life`, which hands its samples to the sink,
/// by the name of the state.
fn measure(
    context: &mut Context<'_>,
    groups: Vec<Group>,
    needs: &Needs,
    life: impl Fn(&Context<'_>, Mode, &mut dyn FnMut(&str, f64)) -> Result<(), ProgramError>,
) -> Result<(), BenchError> {
    let wanted = context.wanted(groups.clone());
    let Some(first) = wanted.first() else { return Ok(()) };
    let suite = first.id.split('.').next().unwrap_or_default().to_owned();
    let available = available_memory();
    let missing = match needs.tool.missing() {
        Some(missing) => Some(missing),
        None if available < needs.memory => {
            let (available, needed) = (available >> 20, needs.memory >> 20);
            Some(format!("{available} MiB of memory are available, and {needed} are needed; end other programs"))
        }
        None => unfrozen(context),
    };
    if let Some(reason) = missing {
        wanted.iter().for_each(|group| context.skip(group, &reason));
        return Ok(());
    }
    context.begin(&format!("{suite}.fork"));
    let (full, quick) = needs.rounds;
    let rounds = match context.effort {
        Effort::Full => Rounds { least: 1, most: full, budget: needs.budget },
        Effort::Check | Effort::Quick => Rounds { least: 1, most: quick, budget: needs.budget },
    };
    let mut samples = Samples::default();
    interleave(&mut Mode::ALL.to_vec(), rounds, |&mut mode| {
        let mut sink = |state: &str, taken| samples.add(&format!("{suite}.fork.{state}.{}", mode.name()), taken);
        life(context, mode, &mut sink).map_err(failed(&suite, mode.name()))
    })?;
    for group in groups {
        let own = samples.take(&group);
        if context.wants(&group) {
            context.record(&group, own);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_programs_are_compared_with_plain_ones_huge_pages_and_empty_ones() {
        let groups = groups("redis", &[("idle", "nothing written"), ("first", "")]);
        let ids: Vec<&str> = groups[0].ids().collect();
        let expected = ["plain", "thp", "empty", "default", "frozen", "frozen_huge", "gather"]
            .map(|mode| format!("redis.fork.idle.{mode}"));
        assert_eq!(ids, expected);
        let rivals = ["redis.fork.idle.plain", "redis.fork.idle.thp", "redis.fork.idle.empty"];
        assert_eq!(
            groups[0].contestants[4],
            Contestant::new("redis.fork.idle.frozen", Unit::Microseconds).against(rivals)
        );
        assert_eq!(groups[0].contestants[0], Contestant::new("redis.fork.idle.plain", Unit::Microseconds));
    }
}
