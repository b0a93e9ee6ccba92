//! Programs with a copy on every node. Absent nodes have copies too, wherever their memory is.

mod common;

use std::collections::BTreeSet;

use common::{assert_never_writable_and_executable, call, exit_code, fork_and_wait, identity, one_at_a_time};
use palimpsest_sys::numa::NodeId;
use palimpsest_sys::numa::policy::{self, NumaError};
use palimpsest_text::{LoadError, PACK, Packs, ReplicatedPacks, ReplicatedProgram, StageError};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1000), NodeId(1001)];

fn packs(nodes: &[NodeId]) -> ReplicatedPacks {
    ReplicatedPacks::open(nodes, |node| node, |_| Packs::builder()).unwrap()
}

/// Returns what each node's copy returns.
fn answers(program: &ReplicatedProgram) -> Vec<u64> {
    program.replicas().map(call).collect()
}

#[test]
fn each_node_has_a_copy_at_an_address_of_its_own() {
    let _alone = one_at_a_time();
    let packs = packs(&NODES);
    let program = packs.load_named("answer", &identity(42, 100), 16).unwrap();
    assert_eq!(answers(&program), [42; 3]);
    assert_eq!((program.len(), program.name()), (100, "answer"));
    let entries: BTreeSet<_> = NODES.iter().map(|&node| program.entry_on(node)).collect();
    assert_eq!(entries.len(), 3);
    assert!(entries.contains(&program.entry()) && entries.contains(&program.entry_at(0).unwrap()));
    assert_eq!(program.entry_on(NodeId(7)), program.entry_on(NODES[0]), "a node that is none of them");
    for copy in program.replicas() {
        let found = packs.lookup(copy.address().get() + 50).expect("every copy is found");
        assert_eq!((found.address(), found.name(), found.offset()), (copy.address(), "answer", 50));
    }
    for node in NODES {
        assert!(packs.on(node).region().contains(&program.entry_on(node).addr()), "{node}");
    }
    // SAFETY: 1. made by `identity`; 2. borrowed.
    let local = unsafe { program.function::<extern "C" fn() -> u64>() };
    assert_eq!(local(), 42);
    assert_never_writable_and_executable();
}

#[test]
fn each_copy_is_written_for_its_own_address_and_beside_its_own_data() {
    let _alone = one_at_a_time();
    let packs = packs(&NODES);
    let data = packs
        .load_data(8, 8, |node, staged| {
            let address = staged.address() as u64;
            staged.image().copy_from_slice(&(address + u64::from(node.0)).to_le_bytes());
        })
        .unwrap();
    let program = packs
        .load_each(64, 16, |node, staged| {
            let code = identity(data.address_on(node) as u64, staged.len());
            staged.image().copy_from_slice(&code);
        })
        .unwrap();
    for node in NODES {
        let told = call(program.on(node));
        assert_eq!(told as usize, data.address_on(node));
        let at = std::ptr::with_exposed_provenance::<u64>(data.address_on(node));
        // SAFETY: data of eight bytes at a multiple of eight, in place as long as `data` is.
        assert_eq!(unsafe { at.read() }, told + u64::from(node.0));
        assert!(packs.on(node).region().contains(&data.address_on(node)), "within reach of its programs");
    }
    let mut staged = packs.stage(32, 32).unwrap();
    let addresses: Vec<_> = staged.replicas_mut().map(|(node, staged)| (node, staged.address())).collect();
    assert!(addresses.iter().all(|(node, address)| staged.address_on(*node) == *address));
}

#[test]
fn a_drop_retires_all_copies_and_a_pin_keeps_all() {
    let _alone = one_at_a_time();
    let packs = packs(&NODES);
    let program = packs.load(&identity(1, 500), 16).unwrap();
    let addresses: Vec<usize> = program.replicas().map(|copy| copy.address().get()).collect();
    let participant = packs.participant();
    let pinned = participant.pin();
    drop(program);
    let waiting = packs.reclaim().unwrap();
    assert_eq!((waiting.programs, waiting.waiting_for_threads), (0, 3));
    assert!(addresses.iter().all(|&address| packs.lookup(address).is_some()));
    drop(pinned);
    let mut freed = 0;
    while freed < 3 {
        freed += packs.reclaim().unwrap().programs;
    }
    assert!(addresses.iter().all(|&address| packs.lookup(address).is_none()));
    for node in packs.status() {
        assert_eq!((node.stats.programs, node.stats.retired_bytes, node.stats.frees), (0, 0, 1), "{node}");
    }
}

#[test]
fn one_node_costs_what_packs_cost() {
    let _alone = one_at_a_time();
    // An absent node: requesting its memory would fail.
    let (plain, one, three) = (Packs::new().unwrap(), packs(&NODES[1..2]), packs(&NODES));
    let code = identity(3, 300);
    let of_plain: Vec<_> = (0..10).map(|_| plain.load(&code, 16).unwrap()).collect();
    let of_one: Vec<_> = (0..10).map(|_| one.load(&code, 16).unwrap()).collect();
    let of_three: Vec<_> = (0..10).map(|_| three.load(&code, 16).unwrap()).collect();
    let expected = plain.stats();
    let status = one.status();
    assert_eq!(status.len(), 1);
    assert_eq!(status[0].stats, expected, "packs, bytes, mappings, loads, flushes and syncs");
    assert_eq!(status[0].refused, None, "nobody has asked for a node");
    let sum =
        |of: fn(&palimpsest_text::Stats) -> usize| three.status().iter().map(|node| of(&node.stats)).sum::<usize>();
    assert_eq!(sum(|stats| stats.mappings), 3 * expected.mappings);
    assert_eq!(sum(|stats| stats.used_bytes), 3 * expected.used_bytes);
    // If caches must be synchronised, once for all copies of a program.
    assert_eq!(sum(|stats| stats.core_syncs as usize), expected.core_syncs as usize);
    assert!(of_one.iter().all(|program| program.replicas().count() == 1));
    drop((of_plain, of_one, of_three));
}

#[test]
fn what_became_of_the_nodes_is_told() {
    let _alone = one_at_a_time();
    if let Err(error) = policy::can_ask() {
        return println!("skipped: {error}");
    }
    let there = policy::allowed_nodes().unwrap().iter().next().unwrap();
    let packs = packs(&[there, NodeId(1000)]);
    let [near, far] = &packs.status()[..] else { panic!("two nodes") };
    let Some(placed) = &near.placed else { return println!("skipped: move_pages is refused") };
    assert_eq!((near.refused, placed.here, placed.elsewhere.len()), (None, PACK as u64, 0), "{near}");
    assert!(matches!(far.refused, Some(NumaError::Refused { call: "mbind", .. })), "{far}");
    let placed = far.placed.as_ref().expect("told");
    assert_eq!((placed.here, placed.elsewhere.iter().map(|(_, bytes)| bytes).sum::<u64>()), (0, PACK as u64), "{far}");
    assert!(far.to_string().contains("not asked of the node: mbind is refused"), "{far}");
}

#[test]
fn where_one_copy_has_no_room_none_is_placed() {
    let _alone = one_at_a_time();
    let len = |node: NodeId| if node == NODES[1] { PACK } else { 4 * PACK };
    let options = |node| Packs::builder().region_len(len(node));
    let packs = ReplicatedPacks::open(&NODES, |node| node, options).unwrap();
    let error = packs.load(&identity(1, PACK + 100), 16).unwrap_err();
    assert!(matches!(error, LoadError::Stage(StageError::TooLong { .. })), "{error}");
    for node in packs.status() {
        assert_eq!((node.stats.programs, node.stats.used_bytes), (0, 0), "{node}");
    }
    let error = packs.load_data(PACK + 100, 16, |_, _| ()).unwrap_err();
    assert!(matches!(error, LoadError::Stage(StageError::TooLong { .. })), "{error}");
}

#[test]
fn a_child_runs_what_it_inherits_and_has_packs_of_its_own() {
    let _alone = one_at_a_time();
    let packs = packs(&NODES[..2]);
    let program = packs.load(&identity(5, 64), 16).unwrap();
    let participant = packs.participant();
    let status = fork_and_wait(|| {
        assert_eq!(answers(&program), [5; 2]);
        let own = packs.load(&identity(6, 64), 16).unwrap();
        assert_eq!(answers(&own), [6; 2]);
        // One pin is a pin for both, in the child's own epochs.
        let pinned = participant.pin();
        drop(own);
        assert_eq!(packs.reclaim().unwrap().waiting_for_threads, 2);
        drop(pinned);
        let mut freed = 0;
        while freed < 2 {
            freed += packs.reclaim().unwrap().programs;
        }
        0
    });
    assert_eq!(exit_code(status), Some(0));
    assert_eq!(answers(&program), [5; 2]);
}
