//! Suite `afl`: AFL++ fuzzing SQLite with 512 MiB of data in memory, by the harness in C of the folder `harness`.
//!
//! | contestant | what is different |
//! |---|---|
//! | `plain` | nothing: fork(2) |
//! | `thp` | glibc's allocator asks for huge pages |
//! | `frozen` | `AFL_PRELOAD` of the preload object; the target is the same file |
//! | `frozen_huge` | the same, with huge pages |
//! | `empty` | no data: what a fork server can reach at all |
//! | `reset` | one process that puts its memory back, `crates/fork/examples/reset.rs` |
//!
//! All are shown the same queue of inputs too, which must leave the same coverage maps. AFL++ counts the runs over its
//! dry run, some dozen, which flatters the slow contestants a little.

mod build;
mod campaign;
mod coverage;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::build::{Built, Purpose};
use super::programs::{ProgramError, Tool, doing};
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{Asked, BenchError, Contestant, Context, Effort, Group, Samples, Suite, failed};

/// See the module.
pub(super) struct Afl;

/// What has to be installed; Cargo fetches SQLite's source.
const TOOLS: [Tool; 5] = [
    Tool { program: "afl-fuzz", package: "afl++" },
    Tool { program: "afl-showmap", package: "afl++" },
    Tool { program: "afl-clang-fast", package: "afl++" },
    Tool { program: "clang", package: "clang" },
    Tool { program: "cargo", package: "cargo" },
];

/// Data of the target in MiB, and what of it a check of equality needs.
const MEBIBYTES: u32 = 512;
const MEBIBYTES_OF_CHECK: u32 = 8;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Plain,
    Thp,
    Frozen,
    FrozenHuge,
    Empty,
    Reset,
}

impl Target {
    const ALL: [Self; 6] = [Self::Plain, Self::Thp, Self::Frozen, Self::FrozenHuge, Self::Empty, Self::Reset];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Thp => "thp",
            Self::Frozen => "frozen",
            Self::FrozenHuge => "frozen_huge",
            Self::Empty => "empty",
            Self::Reset => "reset",
        }
    }

    fn id(self) -> String {
        format!("afl.sqlite.{MEBIBYTES}m.{}", self.name())
    }

    /// What is run, with its part of the environment.
    fn program(self, built: &Built, mebibytes: u32) -> (PathBuf, Vec<(&'static str, String)>) {
        let mebibytes = if self == Self::Empty { 0 } else { mebibytes };
        let mut environment = vec![("SQLITE_HARNESS_MIB", mebibytes.to_string())];
        let preload = || ("AFL_PRELOAD", built.preload.display().to_string());
        match self {
            Self::Plain | Self::Empty | Self::Reset => {}
            Self::Thp => environment.push(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1".to_owned())),
            Self::Frozen => environment.push(preload()),
            Self::FrozenHuge => environment.extend([preload(), ("PALIMPSEST_HUGE", "collapse".to_owned())]),
        }
        (if self == Self::Reset { built.reset.clone() } else { built.plain.clone() }, environment)
    }

    /// Ids that its figure is compared with.
    fn rivals(self) -> Vec<String> {
        let rivals: &[Self] = match self {
            Self::Plain | Self::Empty => &[],
            Self::Thp => &[Self::Plain],
            Self::Frozen | Self::FrozenHuge => &[Self::Plain, Self::Thp, Self::Empty],
            Self::Reset => &[Self::Frozen, Self::Plain, Self::Thp],
        };
        rivals.iter().map(|rival| rival.id()).collect()
    }
}

impl Suite for Afl {
    fn id(&self) -> &'static str {
        "afl"
    }

    fn description(&self) -> &'static str {
        "AFL++ on SQLite with 512 MiB in memory: plain, with huge pages, frozen, reset"
    }

    fn asked(&self) -> Asked {
        Asked::ByName
    }

    fn groups(&self) -> Vec<Group> {
        let contestant = |target: Target| Contestant::new(target.id(), Unit::PerSecond).against(target.rivals());
        let id = format!("afl.sqlite.{MEBIBYTES}m");
        vec![Group::new(id, "runs per second of AFL++ on SQLite with 512m in memory", Target::ALL.map(contestant))]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        for group in context.wanted(self.groups()) {
            if let Some(reason) = TOOLS.into_iter().find_map(Tool::missing).or_else(build::missing) {
                context.skip(&group, &reason);
                continue;
            }
            context.begin(&group.id);
            if context.effort == Effort::Check {
                let inputs = check().map_err(failed(&group.id, "a target"))?;
                context.skip(&group, &format!("only checked: {}", same(inputs)));
            } else {
                let samples = measure(context.effort).map_err(failed(&group.id, "a target"))?;
                context.record(&group, samples);
            }
        }
        Ok(())
    }
}

/// Has all targets do the same, with little data, and returns on how many inputs.
fn check() -> Result<usize, ProgramError> {
    let built = build::all(Purpose::Comparing)?;
    coverage::compare(&built, &build::seeds(), MEBIBYTES_OF_CHECK)
}

fn measure(effort: Effort) -> Result<Samples, ProgramError> {
    let built = build::all(Purpose::Measuring)?;
    // Filling the database and freezing it count: that should be a small part.
    let (rounds, time) = effort.pick((1, Duration::from_secs(6)), (3, Duration::from_secs(15)));
    let rounds = Rounds { least: rounds, most: rounds, budget: Duration::ZERO };
    let mut samples = Samples::default();
    let mut least = Target::ALL.map(|target| (target, f64::INFINITY, f64::INFINITY));
    interleave(&mut least, rounds, |(target, stability, coverage)| {
        let statistics = campaign::run(*target, &built, &build::seeds(), time)?;
        samples.add(&target.id(), statistics.per_second);
        *stability = stability.min(statistics.stability);
        *coverage = coverage.min(statistics.coverage);
        Ok::<(), ProgramError>(())
    })?;
    for (target, stability, coverage) in least {
        samples.note(&target.id(), format!("stability {stability:.2} %, coverage {coverage:.2} % at least"));
    }
    // The richest queue there is: what a campaign has found.
    let inputs = coverage::compare(&built, &campaign::queue(&built, Target::Frozen), MEBIBYTES_OF_CHECK)?;
    samples.note(&Target::Frozen.id(), same(inputs));
    Ok(samples)
}

fn same(inputs: usize) -> String {
    format!("the coverage maps of plain, frozen, frozen_huge and reset are equal on {inputs} inputs")
}

/// Makes `folder` anew.
fn fresh(folder: &Path) -> Result<(), ProgramError> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(doing(format!("remove {}", folder.display())))?;
    }
    fs::create_dir_all(folder).map_err(doing(format!("make {}", folder.display())))
}
