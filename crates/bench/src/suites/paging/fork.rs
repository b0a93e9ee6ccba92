//! `paging.fork.{1g,64g}.{cow,full}`: a fork of a space that was just mapped by 4 KiB pages: with tables shared, and
//! with all of them copied.
//!
//! With 1 GiB, tables of pages are shared. With 64 GiB those of level 2 too, an option: the child has its root and a
//! table of level 3.

use std::time::Duration;

use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config, MapSimulated};
use palimpsest_paging::{
    Accounting, AddressSpace, Level, Node, Options, PAGE, PageSize, PageSizes, ShareTables, SpaceId,
};

use super::{HostSpace, READ_WRITE, counted, failed, map_from, range_of, small_pages};
use crate::clock::Stopwatch;
use crate::machine::TableHost;
use crate::record::{Entry, Unit};
use crate::sampler::{Summary, interleave};
use crate::suite::Group;
use crate::suites::fork::available_memory;
use crate::{BenchError, Context, TableError};

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
const COUNTS: [&str; 3] = ["entries", "tables", "bytes"];

impl Size {
    fn id(self, way: &str) -> String {
        format!("paging.fork.{}.{way}", self.name)
    }

    fn options(self, way: &str) -> Options {
        let share = if way == "cow" { self.share } else { ShareTables::None };
        Options { share, accounting: Accounting::Deferred }
    }

    /// Tables of parent and child.
    fn tables(self) -> usize {
        2 * (self.bytes / Level::LAST.table_bytes() + 128) as usize
    }

    fn time_group(self) -> Group {
        Group {
            id: format!("paging.fork.{}", self.name),
            title: format!("a fork of {} in pages of 4k, tables shared or copied", self.name),
            figures: WAYS.map(|way| self.id(way)).into(),
        }
    }

    fn count_group(self) -> Group {
        let figures = WAYS.into_iter().flat_map(|way| COUNTS.map(|what| format!("{}.{what}", self.id(way))));
        Group {
            id: format!("paging.fork.{}.counts", self.name),
            title: format!("a fork of {}: entries written, tables allocated, bytes of the child's tables", self.name),
            figures: figures.collect(),
        }
    }
}

pub(super) fn groups() -> Vec<Group> {
    SIZES.into_iter().flat_map(|size| [size.time_group(), size.count_group()]).collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for size in SIZES {
        if context.wants(&size.time_group()) {
            context.begin(&size.time_group().id);
            times(context, size)?;
            context.done();
        }
        if context.wants(&size.count_group()) {
            context.begin(&size.count_group().id);
            counts(context, size)?;
            context.done();
        }
    }
    Ok(())
}

fn times(context: &mut Context<'_>, size: Size) -> Result<(), BenchError> {
    let id = size.time_group().id;
    let needed = 2 * (size.tables() * PAGE as usize + small_pages(size.bytes) as usize * 4);
    let available = available_memory()?;
    if available < needed + needed / 4 {
        let reason = format!("{} MiB of memory are available, and {} MiB are needed", available >> 20, needed >> 20);
        context.skip(format!("{id}.*"), reason);
        return Ok(());
    }
    let pages = small_pages(size.bytes);
    let host = || TableHost::new(size.tables(), pages as usize, 0);
    let hosts = [host().map_err(failed(&id, "cow"))?, host().map_err(failed(&id, "full"))?];
    let mut parents = Vec::with_capacity(WAYS.len());
    for (way, host) in WAYS.into_iter().zip(&hosts) {
        let parent = HostSpace::new(host, SpaceId(1), &[Node(0)], size.options(way));
        let parent = parent.map_err(|error| failed(&id, way)(error.into()))?;
        // Memory that is touched for the first time is the kernel's business.
        fork(&parent, host, pages).map_err(failed(&id, way))?;
        parents.push((way, parent, host));
    }
    let rounds = context.effort.rounds(9, 40, size.budget);
    let samples =
        interleave(&mut parents, rounds, |(way, parent, host)| fork(parent, host, pages).map_err(failed(&id, way)))?;
    let mut entries: Vec<Entry> = WAYS
        .into_iter()
        .zip(&samples)
        .filter_map(|(way, samples)| Some(Entry::new(size.id(way), Unit::Nanoseconds, Summary::of(samples)?)))
        .collect();
    if let [cow, full] = &mut entries[..] {
        cow.compare(&[full]);
    }
    entries.into_iter().for_each(|entry| context.record(entry));
    Ok(())
}

/// One fork of a space that has all its pages anew, in nanoseconds. The child ends untimed.
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

/// What a fork needs, in the order of [`COUNTS`], and bytes of the parent's tables.
#[derive(Clone, Copy, Debug)]
struct Cost {
    entries: u64,
    tables: u64,
    child_bytes: u64,
    parent_bytes: u64,
}

fn cost(size: Size, way: &str) -> Result<Cost, TableError> {
    let computer = Computer::new::<X86_64>(Config { tables: size.tables(), ..Config::default() });
    let parent = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], size.options(way))?;
    let range = range_of(PageSize::Small, small_pages(size.bytes));
    // Memory that nobody counts: pages are no part of the cost.
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

fn counts(context: &mut Context<'_>, size: Size) -> Result<(), BenchError> {
    let mut costs = Vec::with_capacity(WAYS.len());
    for way in WAYS {
        costs.push(cost(size, way).map_err(failed(&size.id(way), way))?);
    }
    let entries = |way: &str, cost: &Cost| {
        let values = [(Unit::Count, cost.entries), (Unit::Count, cost.tables), (Unit::Bytes, cost.child_bytes)];
        let mut entries = COUNTS
            .into_iter()
            .zip(values)
            .map(|(what, (unit, value))| counted(format!("{}.{what}", size.id(way)), unit, value as f64));
        [entries.next(), entries.next(), entries.next()].map(|entry| {
            entry.map(|entry| {
                let note = format!("the parent's tables have {} KiB", cost.parent_bytes >> 10);
                if entry.unit == Unit::Bytes { entry.with_note(note) } else { entry }
            })
        })
    };
    let full: Vec<Entry> = entries("full", &costs[1]).into_iter().flatten().collect();
    for (mut cow, full) in entries("cow", &costs[0]).into_iter().flatten().zip(&full) {
        cow.compare(&[full]);
        context.record(cow);
    }
    full.into_iter().for_each(|entry| context.record(entry));
    Ok(())
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
