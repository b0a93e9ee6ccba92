//! What each node's packs hold, and where their pages really are.

use std::fmt;

use palimpsest_sys::Causes;
use palimpsest_sys::numa::NodeId;
use palimpsest_sys::numa::placement::Summary;
use palimpsest_sys::numa::policy::NumaError;

use crate::pack::{Packs, Stats};

/// The packs of one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodePacks {
    /// The node.
    pub node: NodeId,
    /// What they hold.
    pub stats: Stats,
    /// Where their pages are; `None` if the kernel does not tell.
    pub placed: Option<Summary>,
    /// Why their memory could not be requested from the node, if it should have been.
    pub refused: Option<NumaError>,
}

impl NodePacks {
    pub(super) fn of(node: NodeId, packs: &Packs) -> Self {
        let placed = packs.places().ok().map(|places| Summary::of(&places, node));
        Self { node, stats: packs.stats(), placed, refused: packs.node_refused() }
    }
}

impl fmt::Display for NodePacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, stats, placed, refused } = self;
        write!(f, "{node}: {} programs in {} bytes of {}", stats.programs, stats.used_bytes, stats.reserved_bytes)?;
        if let Some(placed) = placed {
            write!(f, "; {placed}")?;
        }
        refused.map_or(Ok(()), |why| write!(f, "; not asked of the node: {}", Causes(&why)))
    }
}
