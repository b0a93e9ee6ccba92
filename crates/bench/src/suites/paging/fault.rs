//! `paging.fault`: the cost of a store to a shared page. Pages have no bytes here, so this is only the cost of the
//! tables.

use std::time::Duration;

use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config, MapSimulated};
use palimpsest_paging::{
    Access, AddressSpace, Fault, Node, PageSize, PageSizes, Resolution, SpaceId, SpaceOptions, VirtAddr,
};

use super::{HostSpace, READ_WRITE, START, expect, map_from, range_of};
use crate::TableError;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};
use crate::machine::TableHost;

const BREAK: &str = "paging.fault.break";
const COPY: &str = "paging.fault.copy";
const BREAKS: &str = "paging.fault.breaks_per_write";

/// Tables of pages in the space.
const TABLES: u64 = 512;
/// Pages in a table.
const IN_TABLE: u64 = 512;

const OPTIONS: SpaceOptions = SpaceOptions::new();

fn time_group() -> Group {
    let note = "mean of 512; without the bytes of the page that is copied too";
    Group::new(
        "paging.fault",
        "a first store after a fork: to a shared table, and to one that is copied already",
        [BREAK, COPY].map(|id| Contestant::new(id, Unit::Nanoseconds).ours().note(note)),
    )
}

/// Orders of writes, and the distance between them in pages.
const ORDERS: [(&str, u64); 2] = [("sequential", 1), ("scattered", IN_TABLE)];

fn count_group() -> Group {
    let contestants = ORDERS.map(|(order, _)| Contestant::new(format!("{BREAKS}.{order}"), Unit::Count).ours());
    Group::new(BREAKS, "tables copied per page written after a fork", contestants)
}

pub(super) fn groups() -> Vec<Group> {
    vec![time_group(), count_group()]
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = time_group();
    if context.wants(&group) {
        context.begin(&group.id);
        let rounds = context.effort.rounds(12, 60, Duration::from_secs(4));
        let samples = times(rounds).map_err(failed(BREAK, "ours"))?;
        context.record(&group, samples);
    }
    let group = count_group();
    if context.wants(&group) {
        context.begin(&group.id);
        let mut samples = Samples::default();
        for (order, step) in ORDERS {
            let breaks = breaks_per_write(step).map_err(failed(BREAKS, "ours"))?;
            samples.add(&format!("{BREAKS}.{order}"), breaks);
        }
        context.record(&group, samples);
    }
    Ok(())
}

fn times(rounds: Rounds) -> Result<Samples, TableError> {
    let host = TableHost::new(4 * TABLES as usize, (TABLES * IN_TABLE) as usize, 2 * TABLES as usize)?;
    let parent = HostSpace::new(&host, SpaceId(1), &[Node(0)], OPTIONS)?;
    map_from(&host, &parent, PageSize::Small, 0..TABLES * IN_TABLE)?;
    let mut samples = Samples::default();
    interleave(&mut [()], rounds, |()| {
        let (child, flush) = parent.fork(SpaceId(2))?;
        flush.finish();
        let copied = Resolution { copied: true, ..Resolution::default() };
        samples.add(BREAK, first_stores(&child, 0, Resolution { unshared: 1, ..copied })?);
        // Store to a second page of each table.
        samples.add(COPY, first_stores(&child, 1, copied)?);
        Ok::<(), TableError>(())
    })?;
    Ok(samples)
}

/// Stores once in each table, to the page with this number. Returns nanoseconds per store.
fn first_stores(child: &HostSpace<'_>, page: u64, expected: Resolution) -> Result<f64, TableError> {
    let mut as_expected = 0;
    let started = Stopwatch::start();
    for table in 0..TABLES {
        let address = VirtAddr(START + (table * IN_TABLE + page) * PageSize::Small.bytes());
        let fault = child.fault(address, Access::USER_WRITE, Node(0))?;
        as_expected += u64::from(fault == Fault::Resolved(expected));
    }
    let elapsed = started.elapsed();
    expect("the number of faults that do as expected", as_expected, TABLES)?;
    Ok(elapsed.as_secs_f64() * 1e9 / TABLES as f64)
}

/// Returns how many tables are copied per write when every `step`-th page is written.
fn breaks_per_write(step: u64) -> Result<f64, TableError> {
    const PAGES: u64 = 8 * IN_TABLE;
    let computer = Computer::new::<X86_64>(Config::default());
    let parent = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], OPTIONS)?;
    let range = range_of(PageSize::Small, PAGES);
    parent.map_simulated(range, Computer::device(0), READ_WRITE, PageSizes::Only(PageSize::Small))?;
    let (child, flush) = parent.fork(SpaceId(2))?;
    flush.finish();
    let (mut breaks, mut writes) = (0, 0);
    for page in (0..PAGES).step_by(step as usize) {
        let address = VirtAddr(START + page * PageSize::Small.bytes());
        if let Fault::Resolved(resolution) = child.fault(address, Access::USER_WRITE, Node(0))? {
            breaks += resolution.unshared;
        }
        writes += 1;
    }
    Ok(f64::from(breaks) / f64::from(writes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_copied_once_however_many_of_its_pages_are_written() {
        assert_eq!(breaks_per_write(1).expect("there is memory"), 1.0 / 512.0);
        assert_eq!(breaks_per_write(IN_TABLE).expect("there is memory"), 1.0);
    }

    #[test]
    fn faults_do_what_their_figures_say() {
        let host =
            TableHost::new(4 * TABLES as usize, (TABLES * IN_TABLE) as usize, 2 * TABLES as usize).expect("memory");
        let parent = HostSpace::new(&host, SpaceId(1), &[Node(0)], OPTIONS).expect("a root");
        map_from(&host, &parent, PageSize::Small, 0..TABLES * IN_TABLE).expect("it is free");
        let (child, flush) = parent.fork(SpaceId(2)).expect("there is memory");
        flush.finish();
        let (before, copied) = (host.asked(), Resolution { copied: true, ..Resolution::default() });
        first_stores(&child, 0, Resolution { unshared: 1, ..copied }).expect("each copies a table");
        let between = host.asked();
        assert_eq!((between.tables - before.tables, between.copies - before.copies), (TABLES, TABLES));
        first_stores(&child, 1, copied).expect("each copies a page");
        assert_eq!((host.asked().tables, host.asked().copies), (between.tables, between.copies + TABLES));
        drop((child, parent));
        assert_eq!((host.references(), host.live_tables()), (0, 0));
    }
}
