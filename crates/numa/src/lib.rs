//! NUMA: what is known of the nodes of this machine, and a copy of read-only data on each of them.
//!
//! | type | is |
//! |---|---|
//! | [`Topology`] | nodes, CPUs, distances and memory, and which of them this process may use |
//! | [`current_node`] | the node that the calling thread runs on |
//!
//! Nothing here needs a C library of NUMA. On a machine with one node everything works and costs next to nothing.
#![forbid(unsafe_code)]

mod topology;

pub use palimpsest_sys::numa::{Locating, NodeId, NodeSet, current_node, locating};
pub use topology::{Allowance, Basis, Memory, Node, Topology};
