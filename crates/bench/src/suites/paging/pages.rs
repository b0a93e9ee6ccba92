//! `paging.{map,unmap,query}.{4k,2m}.per_page`: many pages, one after the other, in a space that has nothing else.
//!
//! | contestant | map | unmap | query |
//! |---|---|---|---|
//! | ours | one call for the range | one call, and its flush | `walk` |
//! | `cursor` | page by page, one cursor | `take_next`, and its flush | `seek` and `query` |
//! | `single` | a call for each page | a call and a flush for each page | a call for each page |
//! | `x86_64` | page by page | page by page | `translate_page` |
//! | `page_table_multiarch` | `map_region` | `unmap_region` | page by page |
//!
//! Ours take the lock, reserve tables, count entries of tables and charges, collect what must be flushed, give each
//! page's reference back after the flush, and return tables that have become empty. The peers do none of that; they
//! free their tables with the whole space, which is not timed.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use palimpsest_paging::{Node, PageSize, PageSizes, SpaceId, SpaceOptions, VirtAddr};

use super::{HostSpace, READ_WRITE, START, expect, range_of};
use crate::TableError;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};
#[cfg(feature = "peers")]
use crate::machine::{CrateTable, MultiArch};
use crate::machine::{TableHost, map_next, map_pages};

/// Time for all rounds of one page size.
const BUDGET: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Range,
    Cursor,
    Single,
    Crate,
    Multi,
}

impl Who {
    const ALL: [Self; 5] = [Self::Range, Self::Cursor, Self::Single, Self::Crate, Self::Multi];

    fn name(self) -> &'static str {
        match self {
            Self::Range => "ours",
            Self::Cursor => "cursor",
            Self::Single => "single",
            Self::Crate => "x86_64",
            Self::Multi => "page_table_multiarch",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Range | Self::Cursor | Self::Single)
    }

    fn id(self, operation: Operation, size: Size) -> String {
        let family = format!("paging.{}.{}.per_page", operation.name(), size.name);
        if self == Self::Range { family } else { format!("{family}.{}", self.name()) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Map,
    Query,
    Unmap,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Map, Self::Query, Self::Unmap];

    fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Query => "query",
            Self::Unmap => "unmap",
        }
    }
}

#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    size: PageSize,
    /// Pages of one sample.
    pages: u64,
}

/// A quarter of a GiB, and 16 GiB.
const SIZES: [Size; 2] = [
    Size { name: "4k", size: PageSize::Small, pages: 1 << 16 },
    Size { name: "2m", size: PageSize::Large, pages: 1 << 13 },
];

/// The first page's number. No frame is aligned to 1 GiB like its address, so that nobody maps larger pages than the
/// figure says.
const FIRST: u64 = 1;

fn group(operation: Operation, size: Size) -> Group {
    // The rival is the best peer.
    let peers = || Who::ALL.into_iter().filter(|who| !who.is_ours()).map(|who| who.id(operation, size));
    let contestant = |who: Who| {
        let contestant = Contestant::new(who.id(operation, size), Unit::Nanoseconds);
        if who.is_ours() { contestant.against_best(peers()) } else { contestant }
    };
    Group::new(
        format!("paging.{}.{}.per_page", operation.name(), size.name),
        format!("{} one page of {}, of {} in a row", operation.name(), size.name, size.pages),
        Who::ALL.map(contestant),
    )
}

pub(super) fn groups() -> Vec<Group> {
    SIZES.into_iter().flat_map(|size| Operation::ALL.map(|operation| group(operation, size))).collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for size in SIZES {
        let wanted = context.wanted(Operation::ALL.map(|operation| group(operation, size)));
        let Some(first) = wanted.first() else {
            continue;
        };
        context.begin(&first.id);
        let mut samples = measure(size, context.effort.rounds(12, 60, BUDGET))?;
        for group in wanted {
            let own = samples.take(&group);
            context.record(&group, own);
        }
    }
    Ok(())
}

/// Returns samples of all operations by all contestants of this build.
fn measure(size: Size, rounds: Rounds) -> Result<Samples, BenchError> {
    let id = format!("paging.map.{}.per_page", size.name);
    let host = TableHost::new(1 << 10, (FIRST + size.pages) as usize, 0).map_err(failed(&id, "the machine"))?;
    let host = Rc::new(host);
    let (mut built, peers): (Vec<Who>, Vec<Who>) =
        Who::ALL.into_iter().partition(|who| who.is_ours() || cfg!(feature = "peers"));
    let mut samples = Samples::default();
    for (who, operation) in peers.into_iter().flat_map(|who| Operation::ALL.map(|operation| (who, operation))) {
        samples.refuse(&who.id(operation, size), "this build is without peers: run `cargo xtask bench`");
    }
    // The kernel's work for memory that is touched for the first time does not count.
    for who in &built {
        life(*who, size, &host).map_err(failed(&id, who.name()))?;
    }
    interleave(&mut built, rounds, |&mut who| {
        let times = life(who, size, &host).map_err(failed(&id, who.name()))?;
        for (operation, time) in Operation::ALL.into_iter().zip(times) {
            samples.add(&who.id(operation, size), time);
        }
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// Times in nanoseconds per page, in the order of [`Operation::ALL`].
type Times = [f64; 3];

/// Runs one of the three parts of a life. Returns the sum of the frames that a query has seen.
type Part<'p> = &'p mut dyn FnMut(Operation) -> Result<u64, TableError>;

/// Maps, queries and unmaps all pages in a new space.
fn life(who: Who, size: Size, host: &Rc<TableHost>) -> Result<Times, TableError> {
    match who {
        Who::Range | Who::Cursor | Who::Single => ours(who, size, host),
        Who::Crate => with_crate(size, host),
        Who::Multi => with_multi(size, host),
    }
}

fn timed(size: Size, part: Part<'_>) -> Result<Times, TableError> {
    let mut times = [0.0; 3];
    for operation in Operation::ALL {
        let started = Stopwatch::start();
        let sum = std::hint::black_box(part(operation)?);
        times[operation as usize] = started.elapsed().as_secs_f64() * 1e9 / size.pages as f64;
        if operation == Operation::Query {
            let frames = (FIRST..FIRST + size.pages).map(|page| TableHost::page(size.size, page).address());
            expect("the sum of the frames that were found", sum, frames.fold(0, u64::wrapping_add))?;
        }
    }
    Ok(times)
}

fn ours(who: Who, size: Size, host: &Rc<TableHost>) -> Result<Times, TableError> {
    let space = HostSpace::new(host, SpaceId(1), &[Node(0)], SpaceOptions::default())?;
    host.give(size.size, FIRST as usize..(FIRST + size.pages) as usize);
    let times = timed(size, &mut |operation| match who {
        Who::Range => by_range(&space, operation, size),
        Who::Cursor => by_cursor(&space, operation, size),
        _ => by_page(&space, operation, size),
    })?;
    expect("the number of references that are left", host.references(), 0)?;
    // Only the root is left.
    expect("the number of tables that are left", host.live_tables() as u64, 1)?;
    Ok(times)
}

fn by_range(space: &HostSpace<'_>, operation: Operation, size: Size) -> Result<u64, TableError> {
    let range = range_of(size.size, size.pages);
    let mut sum = 0_u64;
    match operation {
        Operation::Map => {
            map_pages(space, range, TableHost::page(size.size, FIRST), READ_WRITE, PageSizes::Only(size.size))?;
        }
        Operation::Query => space.walk(range, |mapping| {
            sum = sum.wrapping_add(mapping.leaf.frame.address());
            ControlFlow::Continue(())
        })?,
        Operation::Unmap => space.unmap(range)?.finish(),
    }
    Ok(sum)
}

fn by_cursor(space: &HostSpace<'_>, operation: Operation, size: Size) -> Result<u64, TableError> {
    let range = range_of(size.size, size.pages);
    let mut sum = 0_u64;
    match operation {
        Operation::Map => {
            let mut cursor = space.cursor_mut(range)?;
            for page in FIRST..FIRST + size.pages {
                map_next(&mut cursor, TableHost::page(size.size, page), size.size, READ_WRITE)?;
            }
            cursor.finish().finish();
        }
        Operation::Query => {
            let mut cursor = space.cursor(range)?;
            for page in 0..size.pages {
                cursor.seek(VirtAddr(START + page * size.size.bytes()))?;
                let found = cursor.query().map_or(0, |mapping| mapping.leaf.frame.address());
                sum = sum.wrapping_add(found);
            }
        }
        Operation::Unmap => {
            let mut cursor = space.cursor_mut(range)?;
            while let Some(taken) = cursor.take_next()? {
                sum = sum.wrapping_add(taken.leaf.frame.address());
            }
            cursor.finish().finish();
        }
    }
    Ok(sum)
}

fn by_page(space: &HostSpace<'_>, operation: Operation, size: Size) -> Result<u64, TableError> {
    let mut sum = 0_u64;
    for page in 0..size.pages {
        let start = START + page * size.size.bytes();
        let range = VirtAddr(start)..VirtAddr(start + size.size.bytes());
        match operation {
            Operation::Map => {
                let frame = TableHost::page(size.size, FIRST + page);
                map_pages(space, range, frame, READ_WRITE, PageSizes::Only(size.size))?;
            }
            Operation::Query => {
                let found = space.query(range.start).map_or(0, |mapping| mapping.leaf.frame.address());
                sum = sum.wrapping_add(found);
            }
            Operation::Unmap => space.unmap(range)?.finish(),
        }
    }
    Ok(sum)
}

#[cfg(feature = "peers")]
fn addresses(size: Size) -> std::ops::Range<u64> {
    let range = range_of(size.size, size.pages);
    range.start.0..range.end.0
}

#[cfg(feature = "peers")]
fn with_crate(size: Size, host: &Rc<TableHost>) -> Result<Times, TableError> {
    let mut table = CrateTable::new(host)?;
    timed(size, &mut |operation| match operation {
        Operation::Map => {
            table.map(addresses(size), TableHost::page(size.size, FIRST).address(), size.size).map(|()| 0)
        }
        Operation::Query => table.query(addresses(size), size.size),
        Operation::Unmap => table.unmap(addresses(size), size.size),
    })
}

#[cfg(feature = "peers")]
fn with_multi(size: Size, host: &Rc<TableHost>) -> Result<Times, TableError> {
    let mut table = MultiArch::new(host)?;
    timed(size, &mut |operation| match operation {
        Operation::Map => {
            table.map(addresses(size), TableHost::page(size.size, FIRST).address(), size.size).map(|()| 0)
        }
        Operation::Query => table.query(addresses(size), size.size),
        Operation::Unmap => table.unmap(addresses(size)).map(|()| 0),
    })
}

#[cfg(not(feature = "peers"))]
fn with_crate(_: Size, _: &Rc<TableHost>) -> Result<Times, TableError> {
    Err(TableError::Peer { peer: "x86_64", reason: "it is not in this build".to_owned() })
}

#[cfg(not(feature = "peers"))]
fn with_multi(_: Size, _: &Rc<TableHost>) -> Result<Times, TableError> {
    Err(TableError::Peer { peer: "page_table_multiarch", reason: "it is not in this build".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::map_from;
    use super::*;

    #[test]
    fn every_contestant_maps_the_same_and_leaves_no_table() {
        for size in SIZES {
            // Two tables of leaves and a part of a third.
            let size = Size { pages: 1100, ..size };
            let host = Rc::new(TableHost::new(64, (FIRST + size.pages) as usize, 0).expect("memory"));
            for who in Who::ALL.into_iter().filter(|who| who.is_ours() || cfg!(feature = "peers")) {
                life(who, size, &host).unwrap_or_else(|error| panic!("{who:?}: {error}"));
                assert_eq!(host.live_tables(), 0, "{who:?}");
            }
        }
    }

    #[test]
    fn a_range_has_one_flush_and_single_pages_have_one_each() {
        let size = Size { pages: 600, ..SIZES[0] };
        let flushes = |who| {
            let host = Rc::new(TableHost::new(64, (FIRST + size.pages) as usize, 0).expect("memory"));
            let space = HostSpace::new(&host, SpaceId(1), &[Node(0)], SpaceOptions::default()).expect("a root");
            map_from(&host, &space, size.size, FIRST..FIRST + size.pages).expect("it is free");
            let before = host.asked().flushes;
            let unmapped = match who {
                Who::Range => by_range(&space, Operation::Unmap, size),
                _ => by_page(&space, Operation::Unmap, size),
            };
            unmapped.expect("it is mapped");
            host.asked().flushes - before
        };
        // A whole table, and 88 pages of another.
        assert_eq!((flushes(Who::Range), flushes(Who::Single)), (1, 600));
    }
}
