//! Nodes, and which of them this process may use.

use std::path::Path;

use palimpsest_sys::Causes;
use palimpsest_sys::numa::policy::{self, Policy};
use palimpsest_sys::numa::{MOST_NODES, NodeId, NodeSet, sysfs};
use palimpsest_sys::proc::ProcError;

pub use palimpsest_sys::numa::sysfs::{Memory, Node};

/// Distance of a node to itself (ACPI specification, "System Locality Information Table").
const TO_ITSELF: u32 = 10;
/// What is taken for the distance to another node where the machine tells none.
const TO_ANOTHER: u32 = 20;

/// Where the nodes of a [`Topology`] are known from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The kernel's files, or a tree that looks like them.
    Sysfs,
    /// Nowhere: the whole machine is taken for one node.
    Assumed {
        /// Why the files gave no answer.
        why: String,
    },
}

/// What cpusets, `numactl`, `taskset` and the program itself leave to this process. `None` stands for no limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allowance {
    /// CPUs that it may run on, ascending.
    pub cpus: Option<Vec<u32>>,
    /// Nodes that memory is to come from.
    pub nodes: Option<NodeSet>,
}

impl Allowance {
    /// What is left to the calling thread, and so to the threads that it starts: its affinity, the nodes of its
    /// cpuset, and of those the ones that its memory policy names, if it names any (`numactl --membind`,
    /// `--interleave`, `--preferred`). What cannot be found out is no limit.
    pub fn of_this_thread() -> Self {
        let allowed = policy::allowed_nodes().ok().filter(|nodes| !nodes.is_empty());
        let named = match policy::of_this_thread() {
            Ok(Policy::Bound(nodes) | Policy::Interleaved(nodes) | Policy::Preferred(nodes)) => Some(nodes),
            Ok(Policy::Local | Policy::Unknown { .. }) | Err(_) => None,
        };
        let nodes = match (allowed, named) {
            (Some(allowed), Some(named)) => {
                Some(allowed.intersection(&named)).filter(|both| !both.is_empty()).or(Some(allowed))
            }
            (allowed, named) => allowed.or(named),
        };
        Self { cpus: policy::affinity().ok(), nodes }
    }
}

/// The nodes of a machine, and what of them may be used.
///
/// It is a picture of one moment. CPUs and memory that are plugged or unplugged later, and an affinity that is changed
/// later, are not in it; [`home`](Self::home) has an answer for every node all the same.
///
/// # Examples
///
/// ```
/// use palimpsest_numa::{Topology, current_node};
///
/// let topology = Topology::read();
/// for node in topology.nodes() {
///     println!("{}: CPUs {:?}, {} MiB", node.id, node.cpus, node.memory.total >> 20);
/// }
/// // Where to put memory that the calling thread is going to use.
/// let home = topology.home(current_node());
/// assert!(topology.homes().contains(&home));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Ascending, at least one.
    nodes: Vec<Node>,
    basis: Basis,
    allowance: Allowance,
    /// Ascending, at least one.
    homes: Vec<NodeId>,
}

impl Topology {
    /// Reads what the kernel tells now. Never fails: a machine that tells nothing is one node ([`basis`](Self::basis)
    /// says so).
    pub fn read() -> Self {
        let allowance = Allowance::of_this_thread();
        match sysfs::nodes() {
            Ok(nodes) if !nodes.is_empty() => Self::new(nodes, Basis::Sysfs, allowance),
            Ok(_) => Self::assumed("no node is online".to_owned(), allowance),
            Err(error) => Self::assumed(Causes(&error).to_string(), allowance),
        }
    }

    /// Reads a tree that looks like `/sys/devices/system/node`: that of another machine, or one made for a test.
    ///
    /// # Errors
    ///
    /// A file is missing or has an unknown form.
    pub fn below(folder: &Path, allowance: Allowance) -> Result<Self, ProcError> {
        let nodes = sysfs::nodes_below(folder)?;
        if nodes.is_empty() {
            return Ok(Self::assumed(format!("{} lists no node", folder.join("online").display()), allowance));
        }
        Ok(Self::new(nodes, Basis::Sysfs, allowance))
    }

    fn assumed(why: String, allowance: Allowance) -> Self {
        let id = NodeId(0);
        let cpus = allowance.cpus.clone().unwrap_or_default();
        let node = Node { id, cpus, distances: vec![(id, TO_ITSELF)], memory: Memory::default() };
        Self::new(vec![node], Basis::Assumed { why }, allowance)
    }

    fn new(nodes: Vec<Node>, basis: Basis, allowance: Allowance) -> Self {
        let mut topology = Self { nodes, basis, allowance, homes: Vec::new() };
        let near_threads = topology.nodes.iter().filter(|node| node.cpus.iter().any(|cpu| topology.may_run_on(*cpu)));
        let mut homes: Vec<NodeId> = near_threads.map(|node| topology.nearest_memory(node.id)).collect();
        if homes.is_empty() {
            // No CPU is listed that this process may run on: it runs somewhere, so one copy there is.
            homes.push(topology.nearest_memory(topology.nodes[0].id));
        }
        homes.sort_unstable();
        homes.dedup();
        topology.homes = homes;
        topology
    }

    /// The nodes that are online, by number. Some may have no CPU, some no memory.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of that number.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Where this is known from.
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// What of it may be used.
    pub fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// Distance between two nodes, in tenths of that of a node to itself. Where the machine tells none, it is 10 or
    /// 20.
    pub fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        let told = self.node(from).and_then(|node| node.distances.iter().find(|(other, _)| *other == to));
        told.map_or(if from == to { TO_ITSELF } else { TO_ANOTHER }, |(_, distance)| *distance)
    }

    /// The nodes that are worth a copy of what all threads read: those with allowed memory that are the nearest such
    /// for some CPU that this process may run on. At least one, ascending.
    pub fn homes(&self) -> &[NodeId] {
        &self.homes
    }

    /// The nearest of [`homes`](Self::homes) for threads that run on `node`, which may be one that was plugged since.
    pub fn home(&self, node: NodeId) -> NodeId {
        // There is at least one.
        self.homes.iter().copied().min_by_key(|&home| (self.distance(node, home), home)).unwrap_or_default()
    }

    /// For each node that a kernel can have, the place of its home among [`homes`](Self::homes), for look-ups in no
    /// time.
    pub(crate) fn places(&self) -> Box<[u16]> {
        let place = |node| {
            let home = self.home(node);
            self.homes.iter().position(|&other| other == home).and_then(|place| u16::try_from(place).ok())
        };
        (0..MOST_NODES).map(|node| place(NodeId(node)).unwrap_or(0)).collect()
    }

    fn may_run_on(&self, cpu: u32) -> bool {
        self.allowance.cpus.as_ref().is_none_or(|cpus| cpus.binary_search(&cpu).is_ok())
    }

    /// The nearest node whose memory may be used; if none is known to have any, the nearest that may be used, or
    /// `node` itself.
    fn nearest_memory(&self, node: NodeId) -> NodeId {
        let is_allowed = |id| self.allowance.nodes.is_none_or(|nodes| nodes.contains(id));
        let allowed = || self.nodes.iter().filter(move |node| is_allowed(node.id));
        let nearest = |id: &NodeId| (self.distance(node, *id), *id);
        let with_memory = allowed().filter(|node| node.memory.total > 0).map(|node| node.id).min_by_key(nearest);
        with_memory.or_else(|| allowed().map(|node| node.id).min_by_key(nearest)).unwrap_or(node)
    }
}

#[cfg(test)]
mod tests;
