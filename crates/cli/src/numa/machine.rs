//! The nodes of a machine, as a table.

use std::fmt;

use palimpsest_numa::{Basis, Locating, Memory, NodeId, Topology};
use serde::Serialize;

/// Version of the JSON layout. It changes when a field changes its meaning or disappears.
const FORMAT_VERSION: u32 = 1;

/// What is shown of a machine.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    version: u32,
    nodes: Vec<Node>,
    /// Why the machine is taken for one node, if the kernel told nothing.
    assumed: Option<String>,
    /// Where this thread runs, and how that was found out.
    current: NodeId,
    located_by: &'static str,
    /// Nodes that are worth a copy of what all threads read.
    homes: Vec<NodeId>,
    /// CPUs and nodes that this process is limited to.
    allowed_cpus: Option<Vec<u32>>,
    allowed_nodes: Option<Vec<NodeId>>,
}

#[derive(Debug, Serialize)]
struct Node {
    id: NodeId,
    cpus: Vec<u32>,
    memory: Memory,
    distances: Vec<u32>,
    /// Where copies for its threads are put.
    home: NodeId,
}

impl Machine {
    pub(super) fn new(topology: &Topology, current: NodeId, locating: Locating) -> Self {
        let nodes = topology.nodes();
        let distances = |from| nodes.iter().map(|to| topology.distance(from, to.id)).collect();
        let node = |node: &palimpsest_numa::Node| Node {
            id: node.id,
            cpus: node.cpus.clone(),
            memory: node.memory,
            distances: distances(node.id),
            home: topology.home(node.id),
        };
        Self {
            version: FORMAT_VERSION,
            nodes: nodes.iter().map(node).collect(),
            assumed: match topology.basis() {
                Basis::Sysfs => None,
                Basis::Assumed { why } => Some(why.clone()),
            },
            current,
            located_by: match locating {
                Locating::RestartableSequence => "restartable sequence",
                Locating::Getcpu => "getcpu",
            },
            homes: topology.homes().to_vec(),
            allowed_cpus: topology.allowance().cpus.clone(),
            allowed_nodes: topology.allowance().nodes.map(|nodes| nodes.iter().collect()),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.nodes.len();
        let plural = if count == 1 { "" } else { "s" };
        writeln!(formatter, "{count} node{plural}; this thread runs on {} ({})", self.current, self.located_by)?;
        if let Some(why) = &self.assumed {
            writeln!(formatter, "the machine is taken for one node: {why}")?;
        }
        let ids: String = self.nodes.iter().map(|node| format!("{:>5}", node.id.0)).collect();
        writeln!(formatter, "\n  node  {:>10}  {:>10}  home   distance to{ids}   CPUs", "memory", "free")?;
        for node in &self.nodes {
            let distances: String = node.distances.iter().map(|distance| format!("{distance:>5}")).collect();
            let memory = if node.memory.total == 0 { "none".to_owned() } else { mebibytes(node.memory.total) };
            let cpus = if node.cpus.is_empty() { "none".to_owned() } else { list(&node.cpus) };
            let (id, free, home) = (node.id.0, mebibytes(node.memory.free), node.home.0);
            writeln!(formatter, "  {id:>4}  {memory:>10}  {free:>10}  {home:>4}              {distances}   {cpus}")?;
        }
        let numbers = |nodes: &[NodeId]| list(&nodes.iter().map(|node| node.0).collect::<Vec<_>>());
        writeln!(formatter, "\ncopies of what all threads read: on nodes {}", numbers(&self.homes))?;
        if let Some(cpus) = &self.allowed_cpus {
            writeln!(formatter, "allowed CPUs:  {}", list(cpus))?;
        }
        if let Some(nodes) = &self.allowed_nodes {
            writeln!(formatter, "allowed nodes: {}", numbers(nodes))?;
        }
        Ok(())
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Writes ascending numbers as the kernel does: `0-3,8`.
fn list(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use palimpsest_numa::Allowance;

    use super::*;

    #[test]
    fn lists_are_short() {
        assert_eq!(list(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!((list(&[]).as_str(), list(&[5]).as_str()), ("", "5"));
    }

    #[test]
    fn a_machine_is_a_table() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("online"), "0-1\n").expect("written");
        for (node, cpus, distances, memory) in [(0, "0-1", "10 21", 1 << 20), (1, "", "21 10", 0)] {
            let place = folder.path().join(format!("node{node}"));
            fs::create_dir(&place).expect("made");
            let meminfo = format!("Node {node} MemTotal: {memory} kB\nNode {node} MemFree: {} kB\n", memory / 2);
            for (name, text) in [("cpulist", cpus), ("distance", distances), ("meminfo", meminfo.as_str())] {
                fs::write(place.join(name), text).expect("written");
            }
        }
        let allowance = Allowance { cpus: Some(vec![0, 1]), nodes: Some([NodeId(0)].into_iter().collect()) };
        let topology = Topology::below(folder.path(), allowance).expect("well formed");
        let text = Machine::new(&topology, NodeId(0), Locating::Getcpu).to_string();
        let expected = "\
2 nodes; this thread runs on node 0 (getcpu)

  node      memory        free  home   distance to    0    1   CPUs
     0    1024 MiB     512 MiB     0                 10   21   0-1
     1        none       0 MiB     0                 21   10   none

copies of what all threads read: on nodes 0
allowed CPUs:  0-1
allowed nodes: 0
";
        assert_eq!(text, expected);
    }
}
