use std::fmt::Write as _;
use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// One node of a tree: number, list of CPUs, KiB of memory, distances.
type Line<'a> = (u32, &'a str, u64, &'a str);

/// Makes a tree like that of sysfs.
fn tree(online: &str, nodes: &[Line<'_>]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("online"), format!("{online}\n")).expect("written");
    for (node, cpus, kilobytes, distances) in nodes {
        let place = folder.path().join(format!("node{node}"));
        fs::create_dir(&place).expect("made");
        let mut meminfo = format!("Node {node} MemTotal:  {kilobytes} kB\n");
        writeln!(meminfo, "Node {node} MemFree:  {} kB", kilobytes / 2).expect("a string");
        for (name, text) in [("cpulist", *cpus), ("distance", *distances), ("meminfo", meminfo.as_str())] {
            fs::write(place.join(name), format!("{text}\n")).expect("written");
        }
    }
    folder
}

fn nodes(numbers: &[u32]) -> Vec<NodeId> {
    numbers.iter().copied().map(NodeId).collect()
}

fn allowed(cpus: Option<&[u32]>, of: Option<&[u32]>) -> Allowance {
    Allowance { cpus: cpus.map(<[u32]>::to_vec), nodes: of.map(|of| of.iter().copied().map(NodeId).collect()) }
}

const TWO: [Line<'static>; 2] = [(0, "0-1", 1 << 20, "10 21"), (1, "2-3", 1 << 20, "21 10")];

#[test]
fn two_sockets_are_two_homes() {
    let tree = tree("0-1", &TWO);
    let topology = Topology::below(tree.path(), Allowance::default()).expect("well formed");
    assert_eq!(topology.basis(), &Basis::Sysfs);
    assert_eq!(topology.homes(), nodes(&[0, 1]));
    assert_eq!(topology.node(NodeId(1)).expect("there").cpus, [2, 3]);
    assert_eq!(topology.node(NodeId(1)).expect("there").memory, Memory { total: 1 << 30, free: 1 << 29 });
    assert_eq!((topology.distance(NodeId(0), NodeId(1)), topology.distance(NodeId(1), NodeId(1))), (21, 10));
    assert_eq!(topology.home(NodeId(1)), NodeId(1));
    // A node that was plugged later is equally far from both.
    assert_eq!(topology.home(NodeId(7)), NodeId(0));
    assert_eq!(topology.places()[..3], [0, 1, 0]);
}

/// Fails on: a process with one home that takes the machine for one node, and leaves its text where the file is.
#[test]
fn who_is_limited_to_a_node_of_several_knows_of_the_others() {
    let both = tree("0-1", &TWO);
    let bound = Topology::below(both.path(), allowed(Some(&[2, 3]), Some(&[1]))).expect("well formed");
    assert_eq!((bound.homes(), bound.is_one_node()), (&nodes(&[1])[..], false));
    let no_memory = tree("0-1", &[TWO[0], (1, "2-3", 0, "21 10")]);
    assert!(Topology::below(no_memory.path(), Allowance::default()).expect("well formed").is_one_node());
    let untold = tree("0-1", &[(0, "0-1", 0, "10 21"), (1, "2-3", 0, "21 10")]);
    assert!(!Topology::below(untold.path(), Allowance::default()).expect("well formed").is_one_node());
    assert!(Topology::assumed("nothing is mounted".to_owned(), Allowance::default()).is_one_node());
}

/// Fails on: a node that is taken for one with memory since a machine with other nodes has its number.
#[test]
fn a_node_that_is_absent_or_has_no_memory_is_told_with_those_that_have() {
    let three = tree("0-2", &[TWO[0], TWO[1], (2, "4", 0, "21 21 10")]);
    let topology = Topology::below(three.path(), Allowance::default()).expect("well formed");
    assert_eq!([0, 1].map(|node| topology.check(NodeId(node))), [Ok(()), Ok(())]);
    for absent in [2, 7] {
        let error = topology.check(NodeId(absent)).expect_err("no memory");
        let told = format!("this machine has no node {absent} with memory; there is node 0, node 1");
        assert_eq!(error.to_string(), told);
    }
    let untold = tree("0-1", &[(0, "0-1", 0, "10 21"), (1, "2-3", 0, "21 10")]);
    let untold = Topology::below(untold.path(), Allowance::default()).expect("well formed");
    assert!(untold.check(NodeId(1)).is_ok() && untold.check(NodeId(2)).is_err());
    // Nothing is known of such a machine.
    Topology::assumed("nothing is mounted".to_owned(), Allowance::default()).check(NodeId(7)).expect("it may be there");
}

#[test]
fn cpusets_affinity_and_policies_limit_the_homes() {
    let tree = tree("0-1", &TWO);
    let homes = |allowance| Topology::below(tree.path(), allowance).expect("well formed").homes().to_vec();
    assert_eq!(homes(allowed(Some(&[1]), None)), nodes(&[0]), "taskset -c 1");
    assert_eq!(homes(allowed(Some(&[1, 2]), None)), nodes(&[0, 1]));
    assert_eq!(homes(allowed(None, Some(&[1]))), nodes(&[1]), "numactl --membind 1");
    // The policy to run here and have memory there counts.
    assert_eq!(homes(allowed(Some(&[0]), Some(&[1]))), nodes(&[1]));
    // CPUs and memory that are not in the snapshot.
    assert_eq!(homes(allowed(Some(&[99]), None)), nodes(&[0]));
    assert_eq!(homes(allowed(None, Some(&[9]))), nodes(&[0, 1]));
}

#[test]
fn nodes_without_memory_or_cpus_have_homes_elsewhere() {
    let lines = [
        (0, "0-1", 0, "10 40 30 20"),
        (2, "2-3", 1 << 20, "40 10 20 30"),
        (5, "", 1 << 20, "30 20 10 20"),
        (8, "4", 0, "20 30 20 10"),
    ];
    let tree = tree("0,2,5,8", &lines);
    let topology = Topology::below(tree.path(), Allowance::default()).expect("well formed");
    // Node 5 has only memory, and is the nearest for both nodes without.
    assert_eq!(topology.homes(), nodes(&[2, 5]));
    assert_eq!([0, 2, 5, 8].map(|node| topology.home(NodeId(node)).0), [5, 2, 5, 5]);
}

#[test]
fn a_node_that_is_unplugged_while_it_is_looked_at_is_left_out() {
    let tree = tree("0-2", &[(0, "0", 1024, "10 20 20"), (2, "1", 1024, "20 20")]);
    let topology = Topology::below(tree.path(), Allowance::default()).expect("well formed");
    assert_eq!(topology.nodes().iter().map(|node| node.id).collect::<Vec<_>>(), nodes(&[0, 2]));
    // The second list of distances was written when there was one node less: which nodes it belongs to is unknown.
    assert_eq!((topology.distance(NodeId(0), NodeId(2)), topology.distance(NodeId(2), NodeId(0))), (20, 20));
    assert_eq!(topology.distance(NodeId(2), NodeId(2)), 10);
    fs::remove_file(tree.path().join("node2/meminfo")).expect("there");
    let topology = Topology::below(tree.path(), Allowance::default()).expect("well formed");
    assert_eq!(topology.homes(), nodes(&[0]));
}

#[test]
fn no_node_at_all_is_taken_for_one() {
    let tree = tree("", &[]);
    let topology = Topology::below(tree.path(), allowed(Some(&[3]), None)).expect("well formed");
    assert!(matches!(topology.basis(), Basis::Assumed { why } if why.contains("lists no node")));
    assert_eq!((topology.homes(), &topology.nodes()[0].cpus), (&nodes(&[0])[..], &vec![3]));
}

#[test]
fn trees_of_another_form_are_refused_by_name() {
    let tree = tree("0", &[(0, "all", 1024, "10")]);
    let error = Topology::below(tree.path(), Allowance::default()).expect_err("no list of CPUs");
    assert!(Causes(&error).to_string().contains("node0/cpulist"), "{}", Causes(&error));
    let absent = Topology::below(&tree.path().join("absent"), Allowance::default()).expect_err("no tree");
    assert!(absent.is_absent());
}

#[test]
fn this_machine_has_a_home_for_this_thread() {
    let topology = Topology::read();
    let here = palimpsest_sys::numa::current_node();
    assert!(topology.node(here).is_some(), "{here} is not in {topology:?}");
    assert!(topology.homes().contains(&topology.home(here)));
}

proptest! {
    #[test]
    fn no_allowed_memory_is_nearer_than_home(
        lines in prop::collection::vec((prop::bool::ANY, prop::bool::ANY, prop::bool::ANY), 1..6),
        distances in prop::collection::vec(10_u32..60, 36),
    ) {
        let lists: Vec<String> = (0..lines.len())
            .map(|row| (0..lines.len()).map(|to| distances[6 * row + to].to_string()).collect::<Vec<_>>().join(" "))
            .collect();
        let cpus: Vec<String> = (0..lines.len()).map(|node| node.to_string()).collect();
        let described: Vec<Line<'_>> = lines.iter().enumerate()
            .map(|(node, (has_cpus, has_memory, _))| {
                let cpus = if *has_cpus { cpus[node].as_str() } else { "" };
                (node as u32, cpus, u64::from(*has_memory), lists[node].as_str())
            })
            .collect();
        let tree = tree(&format!("0-{}", lines.len() - 1), &described);
        let may: NodeSet = (0..lines.len()).filter(|node| lines[*node].2).map(|node| NodeId(node as u32)).collect();
        let topology = Topology::below(tree.path(), Allowance { cpus: None, nodes: Some(may) }).expect("well formed");
        let usable: Vec<NodeId> = (0..lines.len()).filter(|node| lines[*node].1 && lines[*node].2)
            .map(|node| NodeId(node as u32)).collect();
        prop_assert!(!topology.homes().is_empty());
        for (node, (has_cpus, ..)) in lines.iter().enumerate() {
            let node = NodeId(node as u32);
            let home = topology.home(node);
            prop_assert!(topology.homes().contains(&home));
            if *has_cpus && !usable.is_empty() {
                prop_assert!(usable.contains(&home));
                let nearest = usable.iter().map(|other| topology.distance(node, *other)).min();
                prop_assert_eq!(Some(topology.distance(node, home)), nearest);
            }
        }
    }
}
