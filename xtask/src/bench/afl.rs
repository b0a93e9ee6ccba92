//! `cargo xtask bench afl`: AFL++ fuzzing SQLite with 512 MiB of data in memory, `bench/afl/sqlite_harness.c`.
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
//! First all are shown the same queue of inputs, which must leave the same coverage maps. AFL++ counts the runs over
//! its dry run too, some dozen, which flatters the slow contestants a little.

mod build;
mod campaign;
mod coverage;

use std::{fs, path::PathBuf, time::Duration};

use super::{
    Arguments, BenchError, Outcome,
    record::{self, Figure, Unit},
};
use crate::{process::is_runnable, step::StepError, workspace::Workspace};

use build::{Built, Purpose};

/// Data of the target in MiB, and what of it a check of equality needs.
const MEBIBYTES: u32 = 512;
const MEBIBYTES_OF_CHECK: u32 = 8;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    Plain,
    Thp,
    Frozen,
    FrozenHuge,
    Empty,
    Reset,
}

impl Contestant {
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

    /// What it runs, with its part of the environment.
    fn target(self, built: &Built, mebibytes: u32) -> (PathBuf, Vec<(&'static str, String)>) {
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

/// What the comparison shall reach: ours, rival, how many times better.
const TARGETS: [(Contestant, Contestant, f64); 7] = [
    (Contestant::Frozen, Contestant::Plain, 50.0),
    (Contestant::Frozen, Contestant::Thp, 2.0),
    (Contestant::Frozen, Contestant::Empty, 0.85),
    (Contestant::FrozenHuge, Contestant::Plain, 50.0),
    (Contestant::FrozenHuge, Contestant::Thp, 2.0),
    (Contestant::FrozenHuge, Contestant::Empty, 0.85),
    (Contestant::Reset, Contestant::Frozen, 2.0),
];
/// Runs of the same input that must leave the same map, in percent.
const STABILITY: f64 = 99.0;

/// Builds the targets, compares what they do, and measures how fast they do it.
pub(super) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<Outcome, BenchError> {
    for program in ["afl-fuzz", "afl-showmap", "afl-clang-fast"] {
        if !is_runnable(program) {
            return Err(BenchError::Missing { program, package: "afl++" });
        }
    }
    let purpose = if arguments.check { Purpose::Comparing } else { Purpose::Measuring };
    let built = build::all(workspace, purpose)?;
    let seeds = workspace.root.join("bench/afl/seeds");
    if arguments.check {
        let inputs = coverage::compare(&built, &seeds, MEBIBYTES_OF_CHECK)?;
        return Ok(Outcome { figures: Vec::new(), remarks: vec![same(inputs)] });
    }
    // Filling the database and freezing it count: that should be a small part.
    let (rounds, time) = if arguments.quick { (1, Duration::from_secs(6)) } else { (3, Duration::from_secs(15)) };
    let mut samples: Vec<Vec<campaign::Statistics>> = vec![Vec::new(); Contestant::ALL.len()];
    for round in 0..rounds {
        for turn in 0..Contestant::ALL.len() {
            let place = (round + turn) % Contestant::ALL.len();
            let contestant = Contestant::ALL[place];
            let statistics = campaign::run(contestant, &built, &seeds, time)?;
            println!("round {}: {:<11} {:>8.1} runs/s", round + 1, contestant.name(), statistics.per_second);
            samples[place].push(statistics);
        }
    }
    let figures: Vec<Figure> =
        Contestant::ALL.iter().zip(&samples).map(|(contestant, statistics)| figure(*contestant, statistics)).collect();
    let mut remarks = targets(&figures);
    let least = samples.iter().flatten().map(|statistics| statistics.stability).fold(f64::INFINITY, f64::min);
    remarks.push(format!("stability {least:.2} % at least: {}", verdict(least >= STABILITY)));
    // The richest queue there is: what a campaign has found.
    let inputs = coverage::compare(&built, &campaign::queue(&built, Contestant::Frozen), MEBIBYTES_OF_CHECK)?;
    remarks.push(same(inputs));
    Ok(Outcome { figures, remarks })
}

fn figure(contestant: Contestant, statistics: &[campaign::Statistics]) -> Figure {
    let least = |value: fn(&campaign::Statistics) -> f64| statistics.iter().map(value).fold(f64::INFINITY, f64::min);
    Figure {
        id: contestant.id(),
        unit: Unit::PerSecond,
        samples: statistics.iter().map(|statistics| statistics.per_second).collect(),
        rivals: contestant.rivals(),
        note: Some(format!(
            "stability {:.2} %, coverage {:.2} % at least",
            least(|statistics| statistics.stability),
            least(|statistics| statistics.coverage)
        )),
    }
}

fn targets(figures: &[Figure]) -> Vec<String> {
    let line = |(ours, rival, wanted): &(Contestant, Contestant, f64)| {
        let reached = record::ratio(figures, &ours.id(), &rival.id())?;
        let (ours, rival, verdict) = (ours.name(), rival.name(), verdict(reached >= *wanted));
        Some(format!("{ours} is {reached:.2} × {rival}, wanted {wanted} ×: {verdict}"))
    };
    TARGETS.iter().filter_map(line).collect()
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "missed" }
}

fn same(inputs: usize) -> String {
    format!("the coverage maps of plain, frozen, frozen_huge and reset are equal on {inputs} inputs")
}

/// Makes `folder` anew.
fn fresh(folder: &std::path::Path) -> Result<(), StepError> {
    let failed = |action| move |source| StepError::File { action, path: folder.to_owned(), source };
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed("remove"))?;
    }
    fs::create_dir_all(folder).map_err(failed("make"))
}
