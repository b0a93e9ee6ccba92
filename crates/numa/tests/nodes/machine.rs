//! The machine for these tests.

use std::ops::Range;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use palimpsest_numa::{NodeId, Topology, current_node};
use palimpsest_sys::numa::placement::{self, Place};
use palimpsest_sys::numa::policy;

/// The variable that lists the nodes worth a copy, `0,1,3`.
const HOMES: &str = "PALIMPSEST_TEST_HOMES";

/// A machine with several homes, for one test at a time: some tests fill a node.
pub(crate) struct Machine {
    topology: Topology,
    _alone: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Machine {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.topology
    }
}

impl Machine {
    /// Returns the homes with so much memory that all tests together do not fill them.
    pub(crate) fn large_homes(&self) -> Vec<NodeId> {
        let is_large = |home: &NodeId| self.topology.node(*home).is_some_and(|node| node.memory.total > 256 << 20);
        self.topology.homes().iter().copied().filter(is_large).collect()
    }
}

/// Returns whether this is the guest, whose settings may be changed.
pub(crate) fn in_the_guest() -> bool {
    std::env::var_os(HOMES).is_some()
}

static ALONE: Mutex<()> = Mutex::new(());

/// Returns the machine, if it has several homes.
pub(crate) fn several_nodes() -> Option<Machine> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let topology = Topology::read();
    let homes: Vec<String> = topology.homes().iter().map(|home| home.0.to_string()).collect();
    if let Ok(wanted) = std::env::var(HOMES) {
        assert_eq!(homes.join(","), wanted, "{topology:?}");
    } else if homes.len() < 2 {
        println!("skipped: this machine has one node; `cargo xtask guest numa` has several");
        return None;
    }
    Some(Machine { topology, _alone: alone })
}

/// Runs `work` on the CPUs of a node.
pub(crate) fn on<T: Send>(topology: &Topology, node: NodeId, work: impl FnOnce() -> T + Send) -> T {
    let cpus = topology.node(node).expect("a node of the machine").cpus.clone();
    let placed = move || {
        policy::set_affinity(&cpus).expect("CPUs that are there");
        assert_eq!(current_node(), node);
        work()
    };
    std::thread::scope(|scope| scope.spawn(placed).join().expect("no assertion fails"))
}

/// Returns the bytes of `range` on each node, ascending, and those that are absent.
pub(crate) fn placed(range: Range<usize>) -> (Vec<(NodeId, usize)>, usize) {
    let page = rustix::param::page_size();
    let (mut on, mut nowhere) = (std::collections::BTreeMap::new(), 0);
    for place in placement::of_own_pages(range).expect("the kernel tells") {
        match place {
            Place::On(node) => *on.entry(node).or_insert(0) += page,
            Place::Absent | Place::Untold(_) => nowhere += page,
        }
    }
    (on.into_iter().collect(), nowhere)
}

/// Runs one test of this program in its own process, with variables.
pub(crate) fn apart(name: &str, variables: &[(&str, &str)]) -> Output {
    let mut child = Command::new(std::env::current_exe().expect("known"));
    child.args(["--exact", name, "--nocapture", "--include-ignored"]).envs(variables.iter().copied());
    let output = child.output().expect("started");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}
