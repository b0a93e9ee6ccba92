//! Programs with a copy on every node.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use palimpsest_numa::{NodeId, Topology};
use palimpsest_sys::HUGE_PAGE;
use palimpsest_text::{Backing, Packs, PacksBuilder, ReplicatedPacks};

use crate::machine::{Machine, in_the_guest, on, placed, several_nodes};

fn open(topology: &Topology, options: impl Fn() -> PacksBuilder) -> ReplicatedPacks {
    ReplicatedPacks::open(topology.homes(), |node| topology.home(node), |_| options()).expect("opened")
}

/// Checks that every page of the packs is on its node, if that has room.
fn all_are_placed(machine: &Machine, packs: &ReplicatedPacks, backing: Backing) {
    for node in packs.status() {
        assert_eq!(node.refused, None, "{node}");
        assert_eq!((node.stats.backing, node.stats.programs), (backing, 3), "{node}");
        if machine.large_homes().contains(&node.node) {
            let placed = node.placed.as_ref().expect("told");
            let whole = node.stats.reserved_bytes as u64;
            // In small pages, those of data that nobody has written exist, but are not mapped yet.
            let untold = if backing == Backing::SmallMemfd { HUGE_PAGE as u64 } else { 0 };
            assert_eq!((placed.here + placed.untold, placed.elsewhere.len()), (whole, 0), "{backing}: {node}");
            assert!(placed.untold <= untold, "{backing}: {node}");
        }
    }
}

/// Loads a small program, one that is longer than a pack, and data, by a thread of one node: the writer's node must not
/// decide where they are.
fn fill(machine: &Machine, backing: Backing) {
    let node = machine.homes()[1];
    on(machine, node, || {
        let packs = open(machine, || Packs::builder().backing(backing));
        let _small = packs.load(&[0; 1000], 16).expect("loaded");
        let _long = packs.load_each(HUGE_PAGE + 1, 16, |_, _| ()).expect("loaded");
        let _data = packs.load_data(100, 8, |_, _| ()).expect("loaded");
        all_are_placed(machine, &packs, backing);
    });
}

#[test]
fn every_page_of_the_packs_is_on_its_node() {
    let Some(machine) = several_nodes() else { return };
    for backing in [Backing::CollapsedMemfd, Backing::SmallMemfd, Backing::ProcMem] {
        fill(&machine, backing);
    }
}

/// Sets how many huge pages each of these nodes keeps in the pool.
fn keep(nodes: &[NodeId], count: usize) {
    for node in nodes {
        let path = format!("/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages", node.0);
        fs::write(&path, count.to_string()).expect("root may");
        assert_eq!(fs::read_to_string(&path).expect("there").trim(), count.to_string(), "{path}");
    }
}

#[test]
fn huge_pages_that_are_kept_are_taken_from_the_node() {
    let Some(machine) = several_nodes() else { return };
    if !in_the_guest() {
        return println!("skipped: it would change how many huge pages this machine keeps");
    }
    let (large, small) = (machine.large_homes(), NodeId(3));
    keep(&large, 16);
    keep(&[small], 0);
    fill(&machine, Backing::HugetlbMemfd);
    keep(&large, 0);
}

#[test]
fn a_thread_enters_the_copy_of_its_node_or_of_the_nearest_with_memory() {
    let Some(machine) = several_nodes() else { return };
    let packs = open(&machine, Packs::builder);
    let program = packs.load(&[0; 64], 16).expect("loaded");
    for node in machine.nodes() {
        let home = machine.home(node.id);
        on(&machine, node.id, || {
            let entry = program.entry().addr();
            assert_eq!(entry, program.entry_on(home).addr(), "{}", node.id);
            // Makes the page exist where it runs.
            let memory = File::open("/proc/self/mem").expect("there");
            memory.read_exact_at(&mut [0], entry as u64).expect("mapped");
            if machine.large_homes().contains(&home) {
                assert_eq!(placed(entry..entry + 1).0[0].0, home, "for {}", node.id);
            }
        });
    }
}
