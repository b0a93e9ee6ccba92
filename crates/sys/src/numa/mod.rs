//! NUMA: the nodes of the machine, the calling thread's node, memory policies, and where memory is.
//!
//! | module or function | contents |
//! |---|---|
//! | [`sysfs`] | nodes with their CPUs, distances and memory, from a directory tree |
//! | [`current_node`] | the node that the calling thread runs on |
//! | [`policy`] | the calling thread's memory policy and affinity, as `numactl` and cpusets left them |
//! | [`placement`] | the node that each page is on |
//! | [`numa_maps`] | the same for each mapping of any process |
//! | [`text`] | copies that replace the program's text |
//!
//! Uses no C library of NUMA, but only system calls and files of `/sys` and `/proc`.
//!
//! ```
//! use palimpsest_sys::numa::{current_node, placement, sysfs};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nodes = sysfs::nodes().unwrap_or_default();
//! println!("this thread runs on {}, one of {}", current_node(), nodes.len().max(1));
//! // The page of a local variable is somewhere, unless the container forbids to ask.
//! let local = 7_u8;
//! let address = (&raw const local).addr();
//! if let Ok(pages) = placement::of_own_pages(address..address + 1) {
//!     println!("and its stack is {}", pages[0]);
//! }
//! # Ok(())
//! # }
//! ```

mod current;
pub mod numa_maps;
pub mod placement;
pub mod policy;
mod set;
pub mod sysfs;
pub mod text;

use std::fmt;

pub use current::{Locating, current_node, locating};
pub use set::NodeSet;

/// Number of nodes that any kernel can have: `CONFIG_NODES_SHIFT` is at most 10 (`arch/*/Kconfig`).
pub const MOST_NODES: u32 = 1 << 10;

/// The number of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "node {}", self.0)
    }
}
