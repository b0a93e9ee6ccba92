//! Copies of a program before they are put into the packs of their nodes.

use std::fmt;

use palimpsest_sys::numa::NodeId;

use super::nodes::PerNode;
use super::program::ReplicatedProgram;
use crate::address::CodeAddress;
use crate::pack::{FinalizeError, Staged, finalize_all};

/// A place on each node, and a private image of each copy. Dropping it gives the places back.
pub struct StagedReplicas(PerNode<Staged>);

impl StagedReplicas {
    pub(super) fn new(staged: PerNode<Staged>) -> Self {
        Self(staged)
    }

    /// Returns where the copy for threads on `node` will run.
    pub fn address_on(&self, node: NodeId) -> CodeAddress {
        self.0.on(node).address()
    }

    /// Returns the copies, in the order of their nodes.
    pub fn replicas_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut Staged)> {
        self.0.with_nodes_mut()
    }

    /// Copies the images into the packs and makes them a program, with one core synchronisation for all copies if the
    /// ISA needs it.
    ///
    /// # Errors
    ///
    /// See [`FinalizeError`]; all places are free again.
    pub fn finalize(self) -> Result<ReplicatedProgram, FinalizeError> {
        let nodes = std::sync::Arc::clone(self.0.nodes());
        Ok(ReplicatedProgram::new(PerNode::new(&nodes, finalize_all(self.0.into_iter().collect())?)))
    }
}

impl fmt::Debug for StagedReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.with_nodes()).finish()
    }
}
