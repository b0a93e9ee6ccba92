//! Suite `paging`: page tables in software: mapping, unmapping and querying page by page against the peers; forks that
//! share tables against forks that copy them; faults that undo the sharing; costs and gains of replicas.
//!
//! Times are of the operations alone, on a machine that checks nothing (`machine::TableHost`). Counts come from the
//! software machine of `palimpsest_paging::sim`, which has CPUs with TLBs; they are the same in each run.

mod fault;
mod fork;
mod operations;
mod pages;
mod replica;

pub(super) use fork::{tour, tour_group};

use palimpsest_paging::format::X86_64;
use palimpsest_paging::{AddressSpace, Attributes, PAGE, PageSize, PageSizes, Rights, VirtAddr};

use crate::TableError;
use crate::harness::{BenchError, Context, Group, Suite};
use crate::machine::{TableHost, map_pages};

/// See the module.
pub(super) struct Paging;

impl Suite for Paging {
    fn id(&self) -> &'static str {
        "paging"
    }

    fn description(&self) -> &'static str {
        "page tables: map, unmap and query against the peers; forks with shared tables; replicas"
    }

    fn groups(&self) -> Vec<Group> {
        let mut groups = pages::groups();
        groups.extend(fork::groups());
        groups.extend(fault::groups());
        groups.push(operations::group());
        groups.push(replica::group());
        groups
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        pages::run(context)?;
        fork::run(context)?;
        fault::run(context)?;
        operations::run(context)?;
        replica::run(context)
    }
}

/// Spaces on the fast machine. Their format is the same on every ISA, since nobody loads them.
type HostSpace<'h> = AddressSpace<X86_64, &'h TableHost>;

/// Where spaces have their pages: at the start of a table of level 3.
const START: u64 = 0x40_0000_0000;

const READ_WRITE: Attributes = Attributes::user(Rights::READ.union(Rights::WRITE));

/// Returns the range of this many pages from [`START`] on.
fn range_of(size: PageSize, pages: u64) -> std::ops::Range<VirtAddr> {
    VirtAddr(START)..VirtAddr(START + pages * size.bytes())
}

/// Maps the pages with these numbers of the fast machine from [`START`] on, each with one reference.
fn map_from(
    host: &TableHost,
    space: &HostSpace<'_>,
    size: PageSize,
    pages: std::ops::Range<u64>,
) -> Result<(), TableError> {
    host.give(size, pages.start as usize..pages.end as usize);
    let (first, count) = (TableHost::page(size, pages.start), pages.end - pages.start);
    Ok(map_pages(space, range_of(size, count), first, READ_WRITE, PageSizes::Only(size))?)
}

/// Fails unless a value is as expected.
fn expect(what: &'static str, found: u64, expected: u64) -> Result<(), TableError> {
    if found == expected { Ok(()) } else { Err(TableError::Wrong { what, expected, found }) }
}

/// Returns how many pages of 4 KiB these bytes have.
const fn small_pages(bytes: u64) -> u64 {
    bytes / PAGE
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_agreed_ids_exist_once_each() {
        let groups = Paging.groups();
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        let distinct: HashSet<&str> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len());
        let mut agreed = vec!["paging.fault.break".to_owned()];
        for size in ["1g", "64g"] {
            for way in ["cow", "full"] {
                agreed.push(format!("paging.fork.{size}.{way}"));
                agreed.extend(["entries", "tables", "bytes"].map(|what| format!("paging.fork.{size}.{way}.{what}")));
            }
        }
        for operation in ["map", "unmap", "query"] {
            for size in ["4k", "2m"] {
                agreed.push(format!("paging.{operation}.{size}.per_page"));
                agreed.extend(
                    ["x86_64", "page_table_multiarch"].map(|who| format!("paging.{operation}.{size}.per_page.{who}")),
                );
            }
        }
        for id in agreed {
            assert!(distinct.contains(id.as_str()), "{id} is missing");
        }
    }
}
