//! What limits a process to nodes: a memory policy, a cpuset; and a node that goes while it is used.

use std::fs;
use std::path::Path;

use palimpsest_numa::{NodeId, ProgramText, ReplicateOptions, Replicated, TextOptions, Topology, When};

use crate::big_text::{all_work, whole};
use crate::machine::{Machine, apart, in_the_guest, placed, several_nodes};

/// Tells a child the node.
const NODE: &str = "PALIMPSEST_TEST_NODE";
/// Tells a child the folder of its control group.
const GROUP: &str = "PALIMPSEST_TEST_GROUP";

/// `include/uapi/linux/mempolicy.h`.
const MPOL_BIND: i32 = 2;
const MPOL_INTERLEAVE: i32 = 3;

fn wanted() -> NodeId {
    NodeId(std::env::var(NODE).expect("told").parse().expect("a number"))
}

/// Asserts that this process has one home, on which all that is asked for goes.
fn has_one_home(node: NodeId) {
    let topology = Topology::read();
    assert_eq!(topology.homes(), [node], "{topology:?}");
    assert_eq!(topology.allowance().nodes.map(|nodes| nodes.iter().collect()), Some(vec![node]));
    assert!(topology.nodes().iter().all(|other| topology.home(other.id) == node), "{topology:?}");
    let data = Replicated::<[u8]>::new(&[7; 1 << 20], ReplicateOptions::new().when(When::Eager)).expect("made");
    let start = data.get().as_ptr().addr();
    assert_eq!((data.status().len(), placed(start..start + (1 << 20))), (1, (vec![(node, 1 << 20)], 0)));
    let text = ProgramText::localize(&TextOptions::new()).expect("nothing is in the way");
    assert_eq!((text.node(), text.is_on_the_only_node()), (node, false));
    all_work();
    assert_eq!(placed(whole()), (vec![(node, whole().len())], 0), "{:?}", text.parts());
}

/// Returns the large home that is not the first: the file of this program lies on the first.
fn another(machine: &Machine) -> NodeId {
    *machine.large_homes().last().expect("several")
}

#[test]
fn a_memory_policy_limits_homes_data_and_text() {
    let Some(machine) = several_nodes() else { return };
    apart("limits::of_a_bound_process", &[(NODE, &another(&machine).0.to_string())]);
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn of_a_bound_process() {
    let node = wanted();
    for mode in [MPOL_INTERLEAVE, MPOL_BIND] {
        let mask = 1_u64 << node.0;
        // SAFETY: the kernel reads as many bits as told.
        let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, &raw const mask, 64_usize) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(Topology::read().homes(), [node], "mode {mode}");
    }
    has_one_home(node);
}

#[test]
fn a_cpuset_limits_homes_data_and_text() {
    let Some(machine) = several_nodes() else { return };
    if !in_the_guest() {
        return println!("skipped: only the guest's control groups may be changed");
    }
    let parent = tempfile::tempdir().expect("a folder");
    let path = std::ffi::CString::new(parent.path().as_os_str().as_encoded_bytes()).expect("no zero");
    let (none, kind) = (c"none".as_ptr(), c"cgroup2".as_ptr());
    // SAFETY: C strings, and no options.
    if unsafe { libc::mount(none, path.as_ptr(), kind, 0, std::ptr::null()) } != 0 {
        return println!("skipped: no control groups: {}", std::io::Error::last_os_error());
    }
    let node = another(&machine);
    let write = |file: &Path, text: &str| fs::write(file, text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    write(&parent.path().join("cgroup.subtree_control"), "+cpuset");
    let group = parent.path().join("palimpsest");
    fs::create_dir(&group).expect("a group");
    let cpus: Vec<String> = machine.node(node).expect("a home").cpus.iter().map(u32::to_string).collect();
    write(&group.join("cpuset.cpus"), &cpus.join(","));
    write(&group.join("cpuset.mems"), &node.0.to_string());
    apart("limits::of_a_cpuset", &[(NODE, &node.0.to_string()), (GROUP, group.to_str().expect("UTF-8"))]);
    fs::remove_dir(&group).expect("nobody is in it");
    // SAFETY: a C string; mounted above.
    assert_eq!(unsafe { libc::umount(path.as_ptr()) }, 0, "{}", std::io::Error::last_os_error());
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn of_a_cpuset() {
    let group = std::env::var(GROUP).expect("told");
    fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).expect("this process may");
    let node = wanted();
    let cpus = Topology::read().allowance().cpus.clone().expect("limited");
    assert!(!cpus.is_empty() && cpus.iter().all(|cpu| Topology::read().node(node).expect("there").cpus.contains(cpu)));
    has_one_home(node);
    // Another node than those that are allowed: the text is where it may be, and that is told.
    let other = NodeId(0);
    assert_ne!(node, other, "not the first");
    let text = ProgramText::localize(&TextOptions::new().node(other)).expect("nothing is in the way");
    let is_told = |lack: &String| lack.contains("not asked of the node");
    assert!(text.parts().iter().any(|part| part.exchanged > 0 && part.lacks.iter().any(is_told)), "{:?}", text.parts());
    all_work();
    assert_eq!(placed(whole()).0, [(node, whole().len())]);
}

/// Restores the CPUs of a node, also when an assertion fails.
struct Offline(Vec<u32>);

impl Offline {
    fn of(cpus: &[u32]) -> Option<Self> {
        let mut gone = Self(Vec::new());
        for &cpu in cpus {
            if let Err(error) = set(cpu, "0") {
                println!("skipped: CPU {cpu} stays: {error}");
                return None;
            }
            gone.0.push(cpu);
        }
        Some(gone)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        self.0.iter().for_each(|cpu| set(*cpu, "1").expect("it was there before"));
    }
}

fn set(cpu: u32, state: &str) -> std::io::Result<()> {
    fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), state)
}

/// Fails on: a copy that is lost with the CPUs of its node; a home where no thread runs; a status that ends early.
#[test]
fn a_node_that_loses_its_cpus_keeps_its_copy_and_is_no_home_for_new_ones() {
    let Some(machine) = several_nodes() else { return };
    if !in_the_guest() {
        return println!("skipped: only the guest's CPUs may go");
    }
    let homes = machine.homes().to_vec();
    let goes = machine.node(*homes.last().expect("several")).expect("a home").clone();
    let data = Replicated::<[u8]>::new(b"before", ReplicateOptions::new().when(When::Eager)).expect("made");
    let Some(gone) = Offline::of(&goes.cpus) else { return };
    let now = Topology::read();
    let rest: Vec<NodeId> = homes.iter().copied().filter(|home| *home != goes.id).collect();
    assert_eq!(now.homes(), rest, "{now:?}");
    assert!(rest.contains(&now.home(goes.id)), "{now:?}");
    // What was made for the machine as it was goes on.
    assert_eq!((&*data.get(), &*data.get_on(goes.id)), (&b"before"[..], &b"before"[..]));
    data.update(b"meanwhile").expect("made");
    assert!(homes.iter().all(|home| *data.get_on(*home) == *b"meanwhile"));
    assert_eq!(data.status().len(), homes.len());
    drop(gone);
    assert_eq!(Topology::read().homes(), homes);
    data.update(b"again").expect("made");
    assert_eq!(&*data.get_on(goes.id), b"again");
}
