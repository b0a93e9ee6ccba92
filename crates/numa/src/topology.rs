//! Nodes, and which of them this process may use.

use std::path::Path;

use palimpsest_sys::Causes;
use palimpsest_sys::numa::policy::{self, Policy};
use palimpsest_sys::numa::{MOST_NODES, NodeId, NodeSet, sysfs};
use palimpsest_sys::proc::ProcError;

pub use palimpsest_sys::numa::sysfs::{Memory, Node};

/// Distance of a node to itself (ACPI specification, "System Locality Information Table").
const TO_ITSELF: u32 = 10;
/// The distance assumed to another node if the machine does not tell.
const TO_ANOTHER: u32 = 20;

/// The source of a [`Topology`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The kernel's files, or a similar tree.
    Sysfs,
    /// None: the whole machine counts as one node.
    Assumed {
        /// Why the files could not be used.
        why: String,
    },
}

/// A node from which no memory can come.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this machine has no {node} with memory; there is {}", listed(there))]
pub struct NoSuchNode {
    /// The node.
    pub node: NodeId,
    /// Those with memory.
    pub there: Vec<NodeId>,
}

fn listed(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

/// What cpusets, `numactl`, `taskset` and the program itself allow this process. `None` means no limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allowance {
    /// The CPUs on which it may run, ascending.
    pub cpus: Option<Vec<u32>>,
    /// The nodes for its memory.
    pub nodes: Option<NodeSet>,
}

impl Allowance {
    /// Returns what the calling thread, and so the threads that it starts, may use: its affinity, and the nodes of its
    /// cpuset, limited to those that its memory policy names, if any (`numactl --membind`, `--interleave`,
    /// `--preferred`). What cannot be found out counts as no limit.
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

/// The nodes of a machine, and which of them may be used.
///
/// It is a snapshot. Later changes, by plugging CPUs or memory or by setting an affinity, are not in it;
/// [`home`](Self::home) still has an answer for every node.
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
    /// Reads the present state from the kernel. Never fails: without information the machine counts as one node
    /// ([`basis`](Self::basis) says so).
    pub fn read() -> Self {
        let allowance = Allowance::of_this_thread();
        match sysfs::nodes() {
            Ok(nodes) if !nodes.is_empty() => Self::new(nodes, Basis::Sysfs, allowance),
            Ok(_) => Self::assumed("no node is online".to_owned(), allowance),
            Err(error) => Self::assumed(Causes(&error).to_string(), allowance),
        }
    }

    /// Reads a tree like `/sys/devices/system/node`: that of another machine, or one made for a test.
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
            // No listed CPU is allowed, but the process runs somewhere: so makes one copy there.
            homes.push(topology.nearest_memory(topology.nodes[0].id));
        }
        homes.sort_unstable();
        homes.dedup();
        topology.homes = homes;
        topology
    }

    /// Returns the nodes that are online, sorted by number. Some may have no CPU, some no memory.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the node with that number.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Returns the source of the information.
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Returns which parts of it may be used.
    pub fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// Returns the distance between two nodes, in tenths of that of a node to itself. If the machine does not tell, it
    /// is 10 or 20.
    pub fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        let told = self.node(from).and_then(|node| node.distances.iter().find(|(other, _)| *other == to));
        told.map_or(if from == to { TO_ITSELF } else { TO_ANOTHER }, |(_, distance)| *distance)
    }

    /// Returns the nodes that are worth a copy of data that all threads read: those with allowed memory that are
    /// nearest for some CPU on which this process may run. At least one, ascending.
    pub fn homes(&self) -> &[NodeId] {
        &self.homes
    }

    /// Checks that a node is there and has memory, as far as the kernel tells.
    ///
    /// # Errors
    ///
    /// [`NoSuchNode`].
    pub fn check(&self, node: NodeId) -> Result<(), NoSuchNode> {
        let there = self.with_memory();
        let is_told = self.basis == Basis::Sysfs;
        if is_told && !there.contains(&node) { Err(NoSuchNode { node, there }) } else { Ok(()) }
    }

    /// Returns the nodes with memory; all of them if the kernel tells of none.
    fn with_memory(&self) -> Vec<NodeId> {
        let is_told = self.nodes.iter().any(|node| node.memory.total > 0);
        self.nodes.iter().filter(|node| node.memory.total > 0 || !is_told).map(|node| node.id).collect()
    }

    /// Returns whether only one node of the machine has memory, so that nothing can be nearer to anybody. A process
    /// that is limited to one of several nodes may still find files, and what others have made, on the others.
    pub fn is_one_node(&self) -> bool {
        self.with_memory().len() == 1
    }

    /// Returns the nearest of [`homes`](Self::homes) for threads that run on `node`, which may have been plugged since.
    pub fn home(&self, node: NodeId) -> NodeId {
        // There is at least one.
        self.homes.iter().copied().min_by_key(|&home| (self.distance(node, home), home)).unwrap_or_default()
    }

    /// Returns, for each node that a kernel can have, the index of its home in [`homes`](Self::homes), for fast
    /// look-ups.
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

    /// Returns the nearest node with memory that may be used; if no such memory is known, the nearest node that may be
    /// used, or `node` itself.
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
