//! The nodes of the machine, from `/sys/devices/system/node` or a tree of the same form.
//!
//! Format: `Documentation/ABI/stable/sysfs-devices-node`, written by `drivers/base/node.c`. Nodes may come and go
//! meanwhile: this leaves out those that vanish between two files.

use std::path::Path;

use super::{MOST_NODES, NodeId};
use crate::proc::node::parse_list;
use crate::proc::{ParseError, ProcError, number, read_with};

/// Where the kernel shows nodes.
pub const PATH: &str = "/sys/devices/system/node";

/// The kernel's information on a node that is online.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Numbers of its CPUs that are online, ascending. Nodes with only memory have none.
    pub cpus: Vec<u32>,
    /// Distance to each node that was online, in tenths of the distance to itself (`distance` of the ACPI SLIT); empty
    /// if nodes came or went during reading.
    pub distances: Vec<(NodeId, u32)>,
    /// Its memory.
    pub memory: Memory,
}

/// The memory of a node, in bytes. A node without memory has a total of 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Memory {
    /// All memory that the kernel manages.
    pub total: u64,
    /// Free memory.
    pub free: u64,
}

/// Reads the nodes that are online, sorted by number.
///
/// # Errors
///
/// `/sys` is not mounted or the kernel has no NUMA ([`ProcError::is_absent`]); or a file has an unknown form.
pub fn nodes() -> Result<Vec<Node>, ProcError> {
    nodes_below(Path::new(PATH))
}

/// Does the same as [`nodes`], from a folder that looks like [`PATH`]: for tests, and for another machine's tree.
///
/// # Errors
///
/// As [`nodes`].
pub fn nodes_below(folder: &Path) -> Result<Vec<Node>, ProcError> {
    let online = read_with(folder.join("online"), |text| parse_nodes(text))?;
    let mut found = Vec::new();
    for &id in &online {
        match node(folder, id, &online) {
            Ok(node) => found.push(node),
            // Unplugged after the list was read.
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn node(folder: &Path, id: NodeId, online: &[NodeId]) -> Result<Node, ProcError> {
    let folder = folder.join(format!("node{}", id.0));
    let cpus = read_with(folder.join("cpulist"), |text| parse_cpus(text))?;
    let memory = read_with(folder.join("meminfo"), |text| parse_meminfo(text))?;
    let distances = read_with(folder.join("distance"), |text| parse_distances(text))?;
    let distances =
        if distances.len() == online.len() { online.iter().copied().zip(distances).collect() } else { Vec::new() };
    Ok(Node { id, cpus, distances, memory })
}

/// Parses a list of nodes such as `0-1,4`, ascending and without repetition.
///
/// # Errors
///
/// The text is no such list, or has a number that no kernel gives to a node.
pub fn parse_nodes(text: impl AsRef<[u8]>) -> Result<Vec<NodeId>, ParseError> {
    let text = text.as_ref();
    let nodes: Vec<NodeId> = ascending(parse_list(text)?).into_iter().map(NodeId).collect();
    if nodes.last().is_some_and(|last| last.0 >= MOST_NODES) {
        return Err(ParseError::new(1, text, "list of nodes below 1024"));
    }
    Ok(nodes)
}

/// Parses a list of CPUs such as `0-3,8`, ascending and without repetition.
///
/// # Errors
///
/// The text is no such list.
pub fn parse_cpus(text: impl AsRef<[u8]>) -> Result<Vec<u32>, ParseError> {
    parse_list(text).map(ascending)
}

fn ascending(mut numbers: Vec<u32>) -> Vec<u32> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Parses a line of distances such as `10 21`.
///
/// # Errors
///
/// A part of it is no number, or too large.
pub fn parse_distances(text: impl AsRef<[u8]>) -> Result<Vec<u32>, ParseError> {
    let text = text.as_ref().trim_ascii();
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let distance = |word| number(word, 10).and_then(|number| u32::try_from(number).ok());
    words
        .map(|word| distance(word).ok_or_else(|| ParseError::new(1, text, "list of distances such as 10 21")))
        .collect()
}

/// Parses a node's `meminfo`: lines such as `Node 0 MemTotal:  524288 kB`.
///
/// # Errors
///
/// There is no `MemTotal` or `MemFree`, or one without a number of kB.
pub fn parse_meminfo(text: impl AsRef<[u8]>) -> Result<Memory, ParseError> {
    let text = text.as_ref();
    let (mut total, mut free) = (None, None);
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).skip(2);
        let place = match words.next() {
            Some(b"MemTotal:") => &mut total,
            Some(b"MemFree:") => &mut free,
            _ => continue,
        };
        let kilobytes = words.next().and_then(|word| number(word, 10)).filter(|_| words.next() == Some(b"kB"));
        let bytes = kilobytes.and_then(|kilobytes| kilobytes.checked_mul(1024));
        *place = Some(bytes.ok_or_else(|| ParseError::new(index + 1, line, "number of kB"))?);
    }
    match (total, free) {
        (Some(total), Some(free)) => Ok(Memory { total, free }),
        _ => Err(ParseError::new(
            1,
            text.split(|byte| *byte == b'\n').next().unwrap_or_default(),
            "MemTotal and MemFree",
        )),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_machine_is_understood() {
        let all = match nodes() {
            Ok(all) => all,
            Err(error) if error.is_absent() => return println!("skipped: no {PATH} here"),
            Err(error) => panic!("{error:?}"),
        };
        assert!(all.iter().any(|node| node.memory.total > 0), "{all:?}");
        assert!(all.iter().any(|node| !node.cpus.is_empty()), "{all:?}");
        for node in &all {
            assert!(node.distances.iter().any(|(to, distance)| *to == node.id && *distance == 10), "{node:?}");
            assert!(node.memory.free <= node.memory.total, "{node:?}");
        }
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let text = "Node 1 MemTotal:  524288 kB\nNode 1 MemFree:     4 kB\nNode 1 HugePages_Total:     0\n";
        assert_eq!(parse_meminfo(text), Ok(Memory { total: 512 << 20, free: 4096 }));
        assert_eq!(parse_distances("10 21\n"), Ok(vec![10, 21]));
        assert_eq!(parse_distances("\n"), Ok(vec![]));
        assert_eq!(parse_nodes("1,0-1\n"), Ok(vec![NodeId(0), NodeId(1)]));
        assert_eq!(parse_cpus("\n"), Ok(vec![]));
    }

    #[test]
    fn other_forms_are_refused_with_the_line() {
        let error = parse_meminfo("Node 0 MemTotal: 1 kB\nNode 0 MemFree: many kB\n").unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (2, "Node 0 MemFree: many kB"));
        assert!(parse_meminfo("Node 0 MemTotal: 1 kB\n").is_err(), "a figure is missing");
        assert!(parse_meminfo("Node 0 MemTotal: 18446744073709551615 kB\nNode 0 MemFree: 1 kB").is_err(), "too large");
        assert!(parse_meminfo("Node 0 MemTotal: 1 MB\nNode 0 MemFree: 1 kB").is_err(), "another unit");
        assert!(parse_distances("10 far").is_err());
        assert!(parse_distances("4294967296").is_err());
        assert!(parse_nodes("0-1024").is_err());
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "(Node [0-9]{1,3} Mem(Total|Free):|[0-9 ,\\-]{0,8}|kB|\n){0,12}") {
            let _: Result<_, _> = parse_meminfo(&text);
            let _: Result<_, _> = parse_distances(&text);
        }
    }
}
