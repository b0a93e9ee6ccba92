//! Replicated data.

use palimpsest_numa::{Folder, NodeId, Origin, ReplicateOptions, Replicated, Sharing, Topology, When};
use palimpsest_sys::numa::numa_maps::{self, Shown};

use crate::machine::{apart, on, placed, several_nodes};

/// Two huge pages and a rest.
const LEN: usize = (4 << 20) + 12_345;

fn content() -> Vec<u8> {
    some(LEN)
}

/// Returns bytes without repetition within a page.
fn some(len: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..251).collect();
    let mut bytes = period.repeat(len / period.len() + 1);
    bytes.truncate(len);
    bytes
}

fn eager() -> ReplicateOptions {
    ReplicateOptions::new().when(When::Eager)
}

#[test]
fn every_page_of_a_copy_is_on_its_node() {
    let Some(topology) = several_nodes() else { return };
    let data = Replicated::<[u8]>::new(&content(), eager()).expect("made");
    let whole = LEN.next_multiple_of(rustix::param::page_size());
    let maps = numa_maps::of_process(rustix::process::getpid()).expect("the kernel tells");
    for status in data.status().into_iter().filter(|status| topology.large_homes().contains(&status.node)) {
        let copy = data.get_on(status.node);
        let start = copy.as_ptr().addr();
        // According to `move_pages`.
        assert_eq!(placed(start..start + LEN), (vec![(status.node, whole)], 0), "{status}");
        // According to the kernel's own table.
        let map = maps.iter().find(|map| map.start == start).expect("a mapping of its own");
        assert_eq!(map.present, [(status.node, whole as u64)], "{map:?}");
        assert!(matches!(&map.shown, Shown::File(path) if path.to_string_lossy().contains("palimpsest")), "{map:?}");
        // According to what users are told.
        let told = status.placed.as_ref().expect("it is told");
        assert_eq!((told.at_home, told.untold, told.elsewhere.len()), (whole as u64, 0, 0), "{status}");
        assert_eq!(told.huge, 4 << 20, "{status}");
        assert!(status.lacks.is_empty(), "{status}");
    }
    assert_eq!(data.status().len(), topology.homes().len());
}

#[test]
fn a_thread_reads_from_its_node_or_from_the_nearest_with_memory() {
    let Some(topology) = several_nodes() else { return };
    let data = Replicated::<[u8]>::new(&content(), ReplicateOptions::new()).expect("made");
    for node in topology.nodes() {
        let home = topology.home(node.id);
        assert!(node.memory.total > 0 || home != node.id, "{node:?}");
        on(&topology, node.id, || {
            let start = data.get().as_ptr().addr();
            assert!(std::ptr::eq(&*data.get(), &*data.get_on(home)), "{}", node.id);
            assert_eq!(placed(start..start + 1).0[0].0, home, "for {}", node.id);
            assert!(*data.get() == content()[..]);
        });
    }
}

#[test]
fn an_update_is_on_the_nodes_too() {
    let Some(topology) = several_nodes() else { return };
    let data = Replicated::<[u8]>::new(b"before", eager()).expect("made");
    // By a thread of each node in turn: the writer's node does not decide where a copy is.
    for &node in topology.homes() {
        on(&topology, node, || data.update(&content()).expect("made"));
        for home in topology.large_homes() {
            let start = data.get_on(home).as_ptr().addr();
            assert_eq!(placed(start..start + LEN).0.len(), 1, "updated on {node}");
            assert_eq!(placed(start..start + LEN).0[0].0, home, "updated on {node}");
        }
    }
}

/// Tells a child where copies are shared.
const FOLDER: &str = "PALIMPSEST_TEST_FOLDER";

fn shared(folder: &str, topology: Topology) -> Replicated<[u8]> {
    let options =
        ReplicateOptions::new().topology(topology).sharing(Sharing::User(Folder::at(folder))).when(When::Eager);
    Replicated::<[u8]>::new(&content(), options).expect("made")
}

#[test]
fn two_processes_share_the_copies_of_all_nodes() {
    let Some(topology) = several_nodes() else { return };
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("copies").into_os_string().into_string().expect("text");
    let here = shared(&folder, Topology::clone(&topology));
    let child = apart("data::another_process_finds_the_copies", &[(FOLDER, &folder)]);
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    for &node in topology.homes() {
        let inode = inode(&here, node);
        assert!(said.contains(&format!("{node} shows {inode}.")), "{inode}: {said}");
    }
}

fn inode(data: &Replicated<[u8]>, node: NodeId) -> u64 {
    let maps = palimpsest_sys::pages::maps::Maps::read().expect("mounted");
    maps.at(data.get_on(node).as_ptr().addr()).expect("mapped").inode
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn another_process_finds_the_copies() {
    let topology = several_nodes().expect("as the parent has found");
    let last = *topology.homes().last().expect("several");
    // What it finds is where it was, although this process runs elsewhere.
    let data = on(&topology, last, || shared(&std::env::var(FOLDER).expect("told"), Topology::clone(&topology)));
    for status in data.status() {
        assert!(matches!(status.origin, Some(Origin::Found { .. })), "{status}");
        let start = data.get_on(status.node).as_ptr().addr();
        let whole = vec![(status.node, LEN.next_multiple_of(rustix::param::page_size()))];
        assert!(!topology.large_homes().contains(&status.node) || placed(start..start + LEN).0 == whole, "{status}");
        println!("{} shows {}.", status.node, inode(&data, status.node));
    }
}

#[test]
fn a_full_node_gives_what_it_has_and_the_rest_is_told() {
    let Some(topology) = several_nodes() else { return };
    let smallest = topology.homes().iter().filter_map(|&home| topology.node(home)).min_by_key(|node| node.memory.total);
    let small = smallest.expect("several");
    if small.memory.total > 128 << 20 {
        return println!("skipped: {} has too much memory to be filled", small.id);
    }
    // More than it has; the content itself comes from a larger node.
    let len = usize::try_from(small.memory.total).expect("checked above") * 5 / 4;
    let content = some(len);
    let data = Replicated::<[u8]>::new(&content, ReplicateOptions::new()).expect("made");
    assert!(*data.get_on(small.id) == content[..], "made all the same");
    let status = data.status().into_iter().find(|status| status.node == small.id).expect("a home");
    let told = status.placed.as_ref().expect("it is told");
    let elsewhere: u64 = told.elsewhere.iter().map(|(_, bytes)| bytes).sum();
    assert!(elsewhere >= (len / 5) as u64, "{status}");
    let all = told.at_home + elsewhere;
    // Whole pages, perhaps whole huge pages.
    assert!((len as u64..(len + (2 << 20)) as u64).contains(&all), "{status}");
    assert!(status.to_string().contains("bytes are on node"), "{status}");
}
