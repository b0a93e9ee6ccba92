//! Physical memory: two nodes, told apart by address.

mod arena;
mod heap;
mod machine;
mod replicas;

pub(crate) use arena::{ASKED_AT, Records, in_use};
pub(crate) use machine::{Memory, balance, charged};
pub(crate) use replicas::count as text_replicas;

use palimpsest_paging::{Frame, Node, PAGE};

use crate::arch::layout;

/// NUMA nodes of the machine; see README.md.
pub(crate) const NODES: usize = 2;
/// Bytes of each node's memory.
pub(crate) const NODE_BYTES: u64 = 256 << 20;

/// Offset of a node's memory for programs.
const PACKS_AT: u64 = 32 << 20;

/// Returns where a node's copy of the packs lies.
pub(crate) fn packs_of(node: Node) -> u64 {
    layout::RAM_BASE + u64::from(node.0) * NODE_BYTES + PACKS_AT
}

/// Returns the address at which the kernel reaches physical memory.
pub(crate) fn alias(physical: u64) -> *mut u8 {
    (layout::PHYSICAL_MAP + physical) as *mut u8
}

/// Returns the node of a physical address.
pub(crate) fn node_of(physical: u64) -> Node {
    Node(((physical - layout::RAM_BASE) / NODE_BYTES) as u8)
}

/// Returns all nodes.
pub(crate) fn nodes() -> [Node; NODES] {
    core::array::from_fn(|node| Node(node as u8))
}

/// Copies whole frames.
///
/// # Safety
///
/// 1. `to` is the caller's own, and `bytes` from each frame on are memory of one node.
unsafe fn copy_frames(from: Frame, to: Frame, bytes: u64) {
    let (from, to) = (alias(from.address()), alias(to.address()));
    debug_assert!(bytes.is_multiple_of(PAGE));
    // SAFETY: mapped by the physical map; apart, since `to` is the caller's own (1). If user mode writes the source
    // meanwhile, the copy is a mixture, as any copy would be.
    unsafe { core::ptr::copy_nonoverlapping(from, to, bytes as usize) };
}
