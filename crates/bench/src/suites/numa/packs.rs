//! Programs with a copy for each node (`numa.pack`): counts, and times of a load and of a look for the near copy.
//!
//! On a machine with fewer nodes the copies are made all the same, wherever their memory is: counts are as on a machine
//! that has the nodes.

use std::hint::black_box;
use std::time::Duration;

use palimpsest_numa::NodeId;
use palimpsest_text::{Packs, Program, ReplicatedPacks, ReplicatedProgram};

use crate::PlaceError;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, expect, failed};
use crate::machine::{ReplicatedSites, Sites, Switch};

const ID: &str = "numa.pack";

/// Sites of the batch whose synchronisations are counted.
const SITES: usize = 56;

/// Programs of one sample.
const LOADS: usize = 200;

/// Bytes of a program.
const LEN: usize = 460;

/// Entries of one sample.
const ENTRIES: u32 = 100_000;

/// What holds a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// Packs without replicas.
    Plain,
    /// This many copies.
    Copies(u32),
}

impl Holder {
    const ALL: [Self; 4] = [Self::Plain, Self::Copies(1), Self::Copies(2), Self::Copies(4)];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Copies(1) => "one",
            Self::Copies(2) => "two",
            Self::Copies(_) => "four",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Syncs,
    Mappings,
    Bytes,
    Load,
    Entry,
}

impl Figure {
    const ALL: [Self; 5] = [Self::Syncs, Self::Mappings, Self::Bytes, Self::Load, Self::Entry];

    fn id(self) -> String {
        let name = match self {
            Self::Syncs => "syncs",
            Self::Mappings => "mappings",
            Self::Bytes => "bytes",
            Self::Load => "load",
            Self::Entry => "entry",
        };
        format!("{ID}.{name}")
    }

    fn own(self, holder: Holder) -> String {
        format!("{}.{}", self.id(), holder.name())
    }

    fn group(self) -> Group {
        let (unit, title) = match self {
            Self::Syncs => (Unit::Count, "core synchronisations of a batch of 56 sites in every copy"),
            Self::Mappings => (Unit::Mappings, "mappings that the packs of a program take"),
            Self::Bytes => (Unit::Bytes, "memory of the packs of a program"),
            Self::Load => (Unit::Microseconds, "loading a program of 460 bytes, every copy"),
            Self::Entry => (Unit::Nanoseconds, "the entry of the copy of the thread's node"),
        };
        let contestant = |holder| {
            let contestant = Contestant::new(self.own(holder), unit).in_packs();
            if holder == Holder::Plain { contestant } else { contestant.against([self.own(Holder::Plain)]) }
        };
        Group::new(self.id(), title, Holder::ALL.map(contestant))
    }
}

pub(super) fn groups() -> Vec<Group> {
    Figure::ALL.map(Figure::group).to_vec()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for figure in Figure::ALL {
        let group = figure.group();
        if context.wants(&group) {
            context.begin(&group.id);
            let samples = match figure {
                Figure::Syncs => syncs()?,
                Figure::Mappings | Figure::Bytes => sizes(figure).map_err(failed(&group.id, "packs"))?,
                Figure::Load => loads(context).map_err(failed(&group.id, "packs"))?,
                Figure::Entry => entries(context).map_err(failed(&group.id, "packs"))?,
            };
            context.record(&group, samples);
        }
    }
    Ok(())
}

fn copies(count: u32) -> Result<ReplicatedPacks, PlaceError> {
    let homes: Vec<NodeId> = (0..count).map(NodeId).collect();
    Ok(ReplicatedPacks::open(&homes, |node| NodeId(node.0 % count), |_| Packs::builder())?)
}

fn syncs() -> Result<Samples, BenchError> {
    let mut samples = Samples::default();
    for holder in Holder::ALL {
        let id = Figure::Syncs.own(holder);
        let (applied, off, expected) = match holder {
            Holder::Plain => switch_plain(),
            Holder::Copies(count) => switch_copies(count),
        }
        .map_err(failed(&id, holder.name()))?;
        expect(&id, holder.name(), expected, applied.sites as u64)?;
        expect(&id, holder.name(), 0, off)?;
        samples.add(&id, applied.syncs as f64);
    }
    Ok(samples)
}

/// What a batch has done, the sites that are off after it, and the sites that it was to change.
type Switched = (palimpsest_text::poke::Applied, u64, u64);

fn switch_plain() -> Result<Switched, PlaceError> {
    let sites = Sites::place(&Packs::new()?, SITES)?;
    let applied = Sites::apply(&sites.batch(Switch::On, 0..SITES)?)?;
    Ok((applied, sites.run(), SITES as u64))
}

fn switch_copies(count: u32) -> Result<Switched, PlaceError> {
    let sites = ReplicatedSites::place(&copies(count)?, SITES)?;
    let applied = Sites::apply(&sites.batch(Switch::On)?)?;
    Ok((applied, sites.run(), SITES as u64 * u64::from(count)))
}

fn sizes(figure: Figure) -> Result<Samples, PlaceError> {
    let mut samples = Samples::default();
    for holder in Holder::ALL {
        let stats = match holder {
            Holder::Plain => vec![Packs::new()?.stats()],
            Holder::Copies(count) => copies(count)?.status().into_iter().map(|node| node.stats).collect(),
        };
        let of_one = |stats: &palimpsest_text::Stats| match figure {
            Figure::Mappings => stats.mappings,
            _ => stats.reserved_bytes,
        };
        samples.add(&figure.own(holder), stats.iter().map(of_one).sum::<usize>() as f64);
    }
    Ok(samples)
}

/// A program with one copy or several.
enum Loaded {
    Plain(Program),
    Copies(ReplicatedProgram),
}

/// Packs with one copy or several.
enum Loader {
    Plain(Packs),
    Copies(ReplicatedPacks),
}

impl Loader {
    fn open(holder: Holder) -> Result<Self, PlaceError> {
        Ok(match holder {
            Holder::Plain => Self::Plain(Packs::new()?),
            Holder::Copies(count) => Self::Copies(copies(count)?),
        })
    }

    fn load(&self) -> Result<Loaded, PlaceError> {
        Ok(match self {
            Self::Plain(packs) => Loaded::Plain(packs.load(&[0; LEN], 16)?),
            Self::Copies(packs) => Loaded::Copies(packs.load(&[0; LEN], 16)?),
        })
    }

    fn reclaim(&self) -> Result<(), PlaceError> {
        match self {
            Self::Plain(packs) => packs.reclaim()?,
            Self::Copies(packs) => packs.reclaim()?,
        };
        Ok(())
    }
}

fn crew() -> Result<Vec<(Holder, Loader)>, PlaceError> {
    Holder::ALL.into_iter().map(|holder| Ok((holder, Loader::open(holder)?))).collect()
}

fn loads(context: &Context<'_>) -> Result<Samples, PlaceError> {
    let mut samples = Samples::default();
    interleave(&mut crew()?, context.effort.rounds(10, 100, Duration::from_secs(4)), |(holder, loader)| {
        let mut loaded = Vec::with_capacity(LOADS);
        let stopwatch = Stopwatch::start();
        for _ in 0..LOADS {
            loaded.push(loader.load()?);
        }
        samples.add(&Figure::Load.own(*holder), stopwatch.elapsed().as_secs_f64() * 1e6 / LOADS as f64);
        drop(loaded);
        loader.reclaim()
    })?;
    Ok(samples)
}

fn entries(context: &Context<'_>) -> Result<Samples, PlaceError> {
    let mut samples = Samples::default();
    let mut crew: Vec<(Holder, Loaded)> =
        crew()?.into_iter().map(|(holder, loader)| Ok((holder, loader.load()?))).collect::<Result<_, PlaceError>>()?;
    interleave(&mut crew, context.effort.rounds(20, 200, Duration::from_secs(2)), |(holder, loaded)| {
        let stopwatch = Stopwatch::start();
        for _ in 0..ENTRIES {
            black_box(match black_box(&*loaded) {
                Loaded::Plain(program) => program.entry(),
                Loaded::Copies(program) => program.entry(),
            });
        }
        let taken = stopwatch.elapsed().as_secs_f64() * 1e9 / f64::from(ENTRIES);
        samples.add(&Figure::Entry.own(*holder), taken);
        Ok::<(), PlaceError>(())
    })?;
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_change_no_count_but_those_of_memory() {
        let of = |holder| match holder {
            Holder::Plain => switch_plain(),
            Holder::Copies(count) => switch_copies(count),
        };
        let syncs = Holder::ALL.map(|holder| of(holder).expect("switched").0.syncs);
        assert!(syncs.iter().all(|count| *count == syncs[0]), "{syncs:?}");
        let groups = groups();
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        assert!(ids.contains(&"numa.pack.syncs.four") && ids.len() == 20, "{ids:?}");
    }
}
