//! Copies of the image's constant frames on other nodes: one for each frame and node, however many spaces refer to it.
//!
//! On x86-64 every process has tables of its own for the kernel. Each space asks for its own replicas, and all get the
//! same frames, so that a node has the kernel's text once, and changing it writes each copy once.

use core::sync::atomic::Ordering;

use palimpsest_paging::{Frame, Node, PAGE};

use super::arena::Records;
use super::{NODES, copy_frames};
use crate::kernel_space::{self, ImageRights};
use crate::sync::SpinLock;

/// Frames of the image that can have replicas: 4 MiB.
const FRAMES: usize = 1024;

/// By node, then by frame of the image.
static REPLICAS: SpinLock<[[Option<Frame>; FRAMES]; NODES]> = SpinLock::new([[None; FRAMES]; NODES]);

/// Returns the number of `frame` among the image's constant frames, if it is one.
pub(crate) fn index(frame: Frame) -> Option<usize> {
    let image = kernel_space::image_frames(ImageRights::Constant);
    image
        .contains(&frame.address())
        .then(|| ((frame.address() - image.start) / PAGE) as usize)
        .filter(|&index| index < FRAMES)
}

/// Returns the replica for `node` of the image's frame `index`, with one more reference; another node's if that node is
/// full.
pub(crate) fn get(index: usize, original: Frame, node: Node) -> Option<Frame> {
    let mut replicas = REPLICAS.lock();
    let replica = &mut replicas[usize::from(node.0)][index];
    if let Some(frame) = *replica {
        // Relaxed: the count falls under the lock too.
        Records::of(frame)?.references.fetch_add(1, Ordering::Relaxed);
        return Some(frame);
    }
    let frame = Records::allocate(node, 1)?;
    // SAFETY: 1. allocated just now; one frame each.
    unsafe { copy_frames(original, frame, PAGE) };
    // Relaxed: read under the lock.
    Records::of(frame)?.replica_of.store(index as u32 + 1, Ordering::Relaxed);
    *replica = Some(frame);
    Some(frame)
}

/// Drops a reference to `frame` if it is a replica. Returns false if it is none.
pub(crate) fn release(frame: Frame) -> bool {
    let Some(record) = Records::of(frame) else { return false };
    // Relaxed: set before anybody had a reference.
    let Some(index) = record.replica_of.load(Ordering::Relaxed).checked_sub(1) else { return false };
    let mut replicas = REPLICAS.lock();
    // Relaxed: under the lock.
    if record.references.fetch_sub(1, Ordering::Relaxed) == 1 {
        for node in replicas.iter_mut() {
            if node[index as usize] == Some(frame) {
                node[index as usize] = None;
            }
        }
        Records::free(frame);
    }
    true
}

/// Counts the replicas.
pub(crate) fn count() -> usize {
    REPLICAS.lock().iter().flatten().flatten().count()
}
