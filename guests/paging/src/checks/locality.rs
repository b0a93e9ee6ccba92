//! Locality: the tables and pages through which each node's CPUs run the kernel's text and read its constants, counted
//! by the nodes that hold them.

use alloc::collections::BTreeSet;

use palimpsest_paging::{Frame, PAGE, VirtAddr};

use crate::kernel_space::{self, ImageRights};
use crate::memory::{NODES, node_of, nodes};
use crate::say;

/// By node of the CPU, by node of the memory.
type Counts = [[usize; NODES]; NODES];

/// What a node's CPUs reach by the constant part of the image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Locality {
    /// Tables on the way to at least one page, each once.
    tables: Counts,
    /// Pages.
    pages: Counts,
}

/// Walks the tables of each node for each page.
pub(super) fn measure() -> Locality {
    let mut locality = Locality { tables: [[0; NODES]; NODES], pages: [[0; NODES]; NODES] };
    for (index, node) in nodes().into_iter().enumerate() {
        let root = kernel_space::get().root(node);
        let mut tables = BTreeSet::<Frame>::new();
        let range = kernel_space::image_range(ImageRights::Constant);
        for page in (range.start.0..range.end.0).step_by(PAGE as usize) {
            let place = kernel_space::walk_by(root, VirtAddr(page), |table| {
                tables.insert(table);
            });
            if let Some(place) = place {
                locality.pages[index][usize::from(node_of(place).0)] += 1;
            }
        }
        for table in tables {
            locality.tables[index][usize::from(node_of(table.address()).0)] += 1;
        }
    }
    locality
}

/// Counts those that are not on the node whose CPUs use them.
fn remote(counts: &Counts) -> usize {
    counts.iter().enumerate().map(|(own, by_node)| by_node.iter().sum::<usize>() - by_node[own]).sum()
}

fn percent(counts: &Counts) -> usize {
    remote(counts) * 100 / counts.iter().flatten().sum::<usize>().max(1)
}

impl Locality {
    /// Returns how many pages CPUs fetch from another node.
    pub(super) fn remote_pages(&self) -> usize {
        remote(&self.pages)
    }

    /// Prints the counts.
    pub(super) fn say(&self, when: &str) {
        for (node, (tables, pages)) in self.tables.iter().zip(&self.pages).enumerate() {
            say!("paging.replica.{when}.node-{node}.tables.own {}", tables[node]);
            say!("paging.replica.{when}.node-{node}.tables.remote {}", tables.iter().sum::<usize>() - tables[node]);
            say!("paging.replica.{when}.node-{node}.pages.own {}", pages[node]);
            say!("paging.replica.{when}.node-{node}.pages.remote {}", pages.iter().sum::<usize>() - pages[node]);
        }
        say!("paging.replica.{when}.remote-pages-percent {}", percent(&self.pages));
        say!("paging.replica.{when}.remote-tables-percent {}", percent(&self.tables));
    }
}
