//! What is said of a machine on which nothing can be nearer.

use palimpsest_numa::{Basis, Topology};

/// Returns that a machine has one node, or is taken for one; `None` if it has several.
pub(super) fn one_node(topology: &Topology) -> Option<String> {
    topology.is_one_node().then(|| match topology.basis() {
        Basis::Sysfs => "this machine has one node".to_owned(),
        Basis::Assumed { why } => format!("this machine is taken for one node: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use palimpsest_numa::Allowance;

    use super::*;

    /// Fails on: one node that is told as a fact when nothing is known.
    #[test]
    fn one_node_is_told_as_a_guess_if_it_is_one() {
        let tree = tempfile::tempdir().expect("a folder");
        let online = tree.path().join("online");
        let told = || one_node(&Topology::below(tree.path(), Allowance::default()).expect("well formed"));
        fs::write(&online, "").expect("written");
        let guess = format!("this machine is taken for one node: {} lists no node", online.display());
        assert_eq!(told(), Some(guess));
        let node = |id: u32| {
            let place = tree.path().join(format!("node{id}"));
            fs::create_dir(&place).expect("made");
            let meminfo = format!("Node {id} MemTotal: 9 kB\nNode {id} MemFree: 9 kB\n");
            for (name, text) in [("cpulist", "0"), ("distance", "10"), ("meminfo", &meminfo)] {
                fs::write(place.join(name), text).expect("written");
            }
        };
        node(0);
        fs::write(&online, "0").expect("written");
        assert_eq!(told().as_deref(), Some("this machine has one node"));
        node(1);
        fs::write(&online, "0-1").expect("written");
        assert_eq!(told(), None);
    }
}
