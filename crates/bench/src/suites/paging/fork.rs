//! `paging.fork.{1g,64g}.{cow,full}`: a fork of a newly mapped space of 4 KiB pages, with tables shared, and with all
//! of them copied.
//!
//! With 1 GiB the tables of pages are shared. With 64 GiB the tables of level 2 are, too, which is an option: the child
//! has its root and one table of level 3.

use std::time::Duration;

use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config, MapSimulated};
use palimpsest_paging::{AddressSpace, Level, Node, PAGE, PageSize, PageSizes, ShareTables, SpaceId, SpaceOptions};

use super::{HostSpace, READ_WRITE, map_from, range_of, small_pages};
use crate::TableError;
use crate::harness::clock::Stopwatch;
use crate::harness::host::available_memory;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Effort, Group, Samples, failed};
use crate::machine::TableHost;

#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    bytes: u64,
    share: ShareTables,
    budget: Duration,
}

const SIZES: [Size; 2] = [
    Size { name: "1g", bytes: 1 << 30, share: ShareTables::Last, budget: Duration::from_secs(6) },
    Size { name: "64g", bytes: 64 << 30, share: ShareTables::UpTo(Level::new(2)), budget: Duration::from_secs(12) },
];

const WAYS: [&str; 2] = ["cow", "full"];
const COUNTS: [(&str, Unit); 3] = [("entries", Unit::Count), ("tables", Unit::Count), ("bytes", Unit::Bytes)];

impl Size {
    fn id(self, way: &str) -> String {
        format!("paging.fork.{}.{way}", self.name)
    }

    fn options(self, way: &str) -> SpaceOptions {
        let share = if way == "cow" { self.share } else { ShareTables::None };
        SpaceOptions::new().share(share)
    }

    /// Returns the number of tables of parent and child.
    fn tables(self) -> usize {
        2 * (self.bytes / Level::LAST.table_bytes() + 128) as usize
    }

    fn time_group(self) -> Group {
        let [cow, full] = WAYS.map(|way| Contestant::new(self.id(way), Unit::Nanoseconds));
        let cow = cow.against([full.id.as_str()]);
        let title = format!("a fork of {} in pages of 4k, tables shared or copied", self.name);
        Group::new(format!("paging.fork.{}", self.name), title, [cow, full])
    }

    fn count_group(self) -> Group {
        let id = |way: &str, what: &str| format!("{}.{what}", self.id(way));
        let cow = COUNTS.map(|(what, unit)| Contestant::new(id("cow", what), unit).against([id("full", what)]));
        let full = COUNTS.map(|(what, unit)| Contestant::new(id("full", what), unit));
        let title = format!("a fork of {}: entries written, tables allocated, bytes of the child's tables", self.name);
        Group::new(format!("paging.fork.{}.counts", self.name), title, cow.into_iter().chain(full))
    }
}

pub(super) fn groups() -> Vec<Group> {
    SIZES.into_iter().flat_map(|size| [size.time_group(), size.count_group()]).collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for size in SIZES {
        if context.effort == Effort::Check && size.bytes > 1 << 30 {
            let groups = context.wanted([size.time_group(), size.count_group()]);
            groups.iter().for_each(|group| context.skip(group, "left out of checks"));
            continue;
        }
        let group = size.time_group();
        if context.wants(&group) {
            context.begin(&group.id);
            let rounds = context.effort.rounds(9, 40, size.budget);
            match times(size, rounds)? {
                Ok(samples) => context.record(&group, samples),
                Err(reason) => context.skip(&group, &reason),
            }
        }
        let group = size.count_group();
        if context.wants(&group) {
            context.begin(&group.id);
            let samples = counts(size)?;
            context.record(&group, samples);
        }
    }
    Ok(())
}

/// Returns the tour's figures.
pub(in crate::suites) fn tour_group() -> Group {
    let [size, _] = SIZES;
    Group {
        title: "a fork of 1 GiB of page tables".to_owned(),
        ..size.time_group().only(&["full", "cow"].map(|way| size.id(way)))
    }
}

/// Returns the tour's samples.
pub(in crate::suites) fn tour(rounds: Rounds) -> Result<Samples, BenchError> {
    let [size, _] = SIZES;
    let refused = |reason: String| {
        let mut samples = Samples::default();
        tour_group().ids().for_each(|id| samples.refuse(id, reason.as_str()));
        samples
    };
    Ok(times(size, rounds)?.unwrap_or_else(refused))
}

/// Returns samples of forks in both ways, or the reason why there can be none.
fn times(size: Size, rounds: Rounds) -> Result<Result<Samples, String>, BenchError> {
    let id = size.time_group().id;
    let needed = 2 * (size.tables() * PAGE as usize + small_pages(size.bytes) as usize * 4);
    let available = available_memory();
    if available < needed + needed / 4 {
        let (available, needed) = (available >> 20, needed >> 20);
        return Ok(Err(format!("{available} MiB of memory are available, and {needed} MiB are needed")));
    }
    let pages = small_pages(size.bytes);
    let host = || TableHost::new(size.tables(), pages as usize, 0);
    let hosts = [host().map_err(failed(&id, "cow"))?, host().map_err(failed(&id, "full"))?];
    let mut parents = Vec::with_capacity(WAYS.len());
    for (way, host) in WAYS.into_iter().zip(&hosts) {
        let parent = HostSpace::new(host, SpaceId(1), &[Node(0)], size.options(way));
        let parent = parent.map_err(failed(&id, way))?;
        // The kernel's work for memory that is touched for the first time does not count.
        fork(&parent, host, pages).map_err(failed(&id, way))?;
        parents.push((way, parent, host));
    }
    let mut samples = Samples::default();
    interleave(&mut parents, rounds, |(way, parent, host)| {
        samples.add(&size.id(way), fork(parent, host, pages).map_err(failed(&id, way))?);
        Ok::<(), BenchError>(())
    })?;
    Ok(Ok(samples))
}

/// Forks a space with all its pages, and returns nanoseconds. The end of the child is not timed.
fn fork(parent: &HostSpace<'_>, host: &TableHost, pages: u64) -> Result<f64, TableError> {
    let range = range_of(PageSize::Small, pages);
    parent.unmap(range)?.finish();
    map_from(host, parent, PageSize::Small, 0..pages)?;
    let started = Stopwatch::start();
    let (child, flush) = parent.fork(SpaceId(2))?;
    flush.finish();
    let elapsed = started.elapsed();
    drop(child);
    Ok(elapsed.as_secs_f64() * 1e9)
}

/// The cost of a fork, in the order of [`COUNTS`], and the bytes of the parent's tables.
#[derive(Clone, Copy, Debug)]
struct Cost {
    entries: u64,
    tables: u64,
    child_bytes: u64,
    parent_bytes: u64,
}

fn cost(size: Size, way: &str) -> Result<Cost, TableError> {
    let computer = Computer::new::<X86_64>(Config::default().tables(size.tables()));
    let parent = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], size.options(way))?;
    let range = range_of(PageSize::Small, small_pages(size.bytes));
    // Memory that nobody counts: pages are not part of the cost.
    parent.map_simulated(range, Computer::device(0), READ_WRITE, PageSizes::Only(PageSize::Small))?;
    let (before, counts) = (computer.snapshot(), computer.counts());
    let (child, flush) = parent.fork(SpaceId(2))?;
    flush.finish();
    let bytes = |space| computer.charged(SpaceId(space)).tables as u64 * PAGE;
    let cost = Cost {
        entries: before.entries_written_until(&computer.snapshot()) as u64,
        tables: computer.counts().tables_allocated - counts.tables_allocated,
        child_bytes: bytes(2),
        parent_bytes: bytes(1),
    };
    drop(child);
    Ok(cost)
}

fn counts(size: Size) -> Result<Samples, BenchError> {
    let mut samples = Samples::default();
    for way in WAYS {
        let id = size.id(way);
        let cost = cost(size, way).map_err(failed(&id, way))?;
        for ((what, unit), value) in COUNTS.into_iter().zip([cost.entries, cost.tables, cost.child_bytes]) {
            let id = format!("{id}.{what}");
            samples.add(&id, value as f64);
            if unit == Unit::Bytes {
                samples.note(&id, format!("the parent's tables have {} KiB", cost.parent_bytes >> 10));
            }
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_of_1_gib_writes_a_hundredth_of_the_entries_and_its_child_has_44_kb_of_tables_at_most() {
        let [cow, full] = WAYS.map(|way| cost(SIZES[0], way).expect("there is memory"));
        assert!(cow.entries * 100 <= full.entries, "{cow:?} {full:?}");
        assert!(cow.child_bytes <= 44_000, "{cow:?}");
        assert_eq!(full.child_bytes, full.parent_bytes);
        assert_eq!(cow.tables, 3);
    }
}
