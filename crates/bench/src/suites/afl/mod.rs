//! Suite `afl`: AFL++ fuzzing SQLite with 512 MiB of data in memory, through the C harness in the folder `harness`.
//!
//! | contestant | what is different |
//! |---|---|
//! | `plain` | nothing: fork(2) |
//! | `thp` | glibc's allocator asks for huge pages |
//! | `frozen` | `AFL_PRELOAD` of the preload object; the target is the same file |
//! | `frozen_huge` | the same, with huge pages |
//! | `empty` | no data: what a fork server can reach at all |
//! | `reset` | one process that restores its memory, `crates/fork/examples/reset.rs` |
//! | `persistent` | one process that restores nothing, AFL++'s own loop: what one run leaves, the next one finds |
//!
//! All are shown the same queue of inputs too, and must produce the same coverage maps. AFL++ counts the runs since its
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

/// What must be installed; Cargo fetches SQLite's source.
const TOOLS: [Tool; 5] = [
    Tool { program: "afl-fuzz", package: "afl++" },
    Tool { program: "afl-showmap", package: "afl++" },
    Tool { program: "afl-clang-fast", package: "afl++" },
    Tool { program: "clang", package: "clang" },
    Tool { program: "cargo", package: "cargo" },
];

/// Data of the target in MiB, and how much of it a check of equality needs.
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
    EmptyFrozen,
    Reset,
    Persistent,
}

impl Target {
    const ALL: [Self; 7] =
        [Self::Plain, Self::Thp, Self::Frozen, Self::FrozenHuge, Self::Empty, Self::Reset, Self::Persistent];

    /// Those without data.
    const BARE: [Self; 2] = [Self::Empty, Self::EmptyFrozen];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Thp => "thp",
            Self::Frozen => "frozen",
            Self::FrozenHuge => "frozen_huge",
            Self::Empty => "empty",
            Self::EmptyFrozen => "empty_frozen",
            Self::Reset => "reset",
            Self::Persistent => "persistent",
        }
    }

    fn id(self) -> String {
        format!("afl.sqlite.{MEBIBYTES}m.{}", self.name())
    }

    /// Returns the id of its figure beside those of other programs with little memory.
    fn bare_id(self) -> String {
        format!("{EMPTY}.{}", if self == Self::EmptyFrozen { "frozen" } else { "plain" })
    }

    /// Returns what to run, and its part of the environment.
    fn program(self, built: &Built, mebibytes: u32) -> (PathBuf, Vec<(&'static str, String)>) {
        let mebibytes = if Self::BARE.contains(&self) { 0 } else { mebibytes };
        let mut environment = vec![("SQLITE_HARNESS_MIB", mebibytes.to_string())];
        let preload = || ("AFL_PRELOAD", built.preload.display().to_string());
        match self {
            Self::Plain | Self::Empty | Self::Reset | Self::Persistent => {}
            Self::Thp => environment.push(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1".to_owned())),
            Self::Frozen | Self::EmptyFrozen => environment.push(preload()),
            Self::FrozenHuge => environment.extend([preload(), ("PALIMPSEST_HUGE", "collapse".to_owned())]),
        }
        let program = match self {
            Self::Reset => &built.reset,
            Self::Persistent => &built.persistent,
            _ => &built.plain,
        };
        (program.clone(), environment)
    }

    /// Returns its figure; ours are compared with those of others.
    fn contestant(self) -> Contestant {
        let rivals: &[Self] = match self {
            Self::Frozen | Self::FrozenHuge => &[Self::Plain, Self::Thp, Self::Empty],
            Self::Reset => &[Self::Frozen, Self::Plain, Self::Thp, Self::Persistent],
            Self::Plain | Self::Thp | Self::Empty | Self::EmptyFrozen | Self::Persistent => {
                return Contestant::new(self.id(), Unit::PerSecond);
            }
        };
        Contestant::new(self.id(), Unit::PerSecond).against(rivals.iter().map(|rival| rival.id()))
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
        let id = format!("afl.sqlite.{MEBIBYTES}m");
        vec![Group::new(
            id,
            "runs per second of AFL++ on SQLite with 512m in memory",
            Target::ALL.map(Target::contestant),
        )]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        for group in context.wanted(self.groups()) {
            if let Some(reason) = missing() {
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

/// Makes all targets do the same, with little data. Returns on how many inputs.
fn check() -> Result<usize, ProgramError> {
    let built = build::all(Purpose::Comparing)?;
    coverage::compare(&built, &build::seeds(), MEBIBYTES_OF_CHECK)
}

fn missing() -> Option<String> {
    TOOLS.into_iter().find_map(Tool::missing).or_else(build::missing)
}

/// Returns the figures of an empty database, which belong to the suite `programs`.
pub(super) fn empty_group() -> Group {
    let [plain, frozen] = Target::BARE.map(|target| Contestant::new(target.bare_id(), Unit::PerSecond));
    let frozen = frozen.against([plain.id.as_str()]);
    Group::new(EMPTY, "runs per second of AFL++ on SQLite with an empty database", [plain, frozen])
}

const EMPTY: &str = "fork.programs.afl";

/// Measures them if they are wanted.
pub(super) fn run_empty(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = empty_group();
    if !context.wants(&group) {
        return Ok(());
    }
    if let Some(reason) = missing() {
        context.skip(&group, &reason);
        return Ok(());
    }
    if context.effort == Effort::Check {
        context.skip(&group, "left out of checks: the suite `afl` builds the same targets");
        return Ok(());
    }
    context.begin(&group.id);
    let build = || build::all(Purpose::Measuring).map_err(failed(&group.id, "a target"));
    let mut samples = Samples::default();
    campaigns(&build()?, context.effort, Target::BARE, Target::bare_id, &mut samples)
        .map_err(failed(&group.id, "a target"))?;
    context.record(&group, samples);
    Ok(())
}

/// Makes all targets be fuzzed in turns.
fn campaigns<const N: usize>(
    built: &Built,
    effort: Effort,
    targets: [Target; N],
    id: fn(Target) -> String,
    samples: &mut Samples,
) -> Result<(), ProgramError> {
    // Filling the database and freezing it count, and should be a small part.
    let (rounds, time) = effort.pick((1, Duration::from_secs(6)), (3, Duration::from_secs(15)));
    let rounds = Rounds { least: rounds, most: rounds, budget: Duration::MAX };
    let mut least = targets.map(|target| (target, f64::INFINITY, f64::INFINITY));
    interleave(&mut least, rounds, |(target, stability, coverage)| {
        let statistics = campaign::run(*target, built, &build::seeds(), time)?;
        samples.add(&id(*target), statistics.per_second);
        *stability = stability.min(statistics.stability);
        *coverage = coverage.min(statistics.coverage);
        Ok::<(), ProgramError>(())
    })?;
    for (target, stability, coverage) in least {
        samples.note(&id(target), format!("stability {stability:.2} %, coverage {coverage:.2} % at least"));
    }
    Ok(())
}

fn measure(effort: Effort) -> Result<Samples, ProgramError> {
    let built = build::all(Purpose::Measuring)?;
    let mut samples = Samples::default();
    campaigns(&built, effort, Target::ALL, Target::id, &mut samples)?;
    samples.note(&Target::Persistent.id(), "puts nothing back: a run finds what earlier ones have left");
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
