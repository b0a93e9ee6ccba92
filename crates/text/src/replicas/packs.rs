//! Packs on every node.

use std::fmt;
use std::sync::Arc;

use palimpsest_sys::numa::NodeId;

use super::data::ReplicatedData;
use super::nodes::{Nodes, PerNode};
use super::program::ReplicatedProgram;
use super::staged::StagedReplicas;
use super::status::NodePacks;
use crate::pack::{
    DataAccess, FinalizeError, Found, LoadError, OpenError, Packs, PacksBuilder, Participant, Program, ReclaimError,
    Reclaimed, StageError, Staged, StagedData,
};

/// Packs for programs that have a copy on every node; see [`replicas`](crate::replicas). It is a handle, as [`Packs`]
/// is.
#[derive(Clone)]
pub struct ReplicatedPacks {
    packs: Arc<PerNode<Packs>>,
}

impl ReplicatedPacks {
    /// Opens packs for each of `homes`, each with its `options`. `home` tells for every node which home its threads
    /// use; a node that is not among `homes` counts as the first. (Pass `Topology::homes` and `Topology::home` of
    /// `palimpsest-numa`.)
    ///
    /// If there are several, their memory is requested from their nodes, and comes from others where those have none:
    /// [`status`](Self::status) tells.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(
        homes: &[NodeId],
        home: impl Fn(NodeId) -> NodeId,
        options: impl Fn(NodeId) -> PacksBuilder,
    ) -> Result<Self, OpenError> {
        let nodes = Arc::new(Nodes::new(homes, home));
        let mut opened: Vec<Packs> = Vec::with_capacity(nodes.homes().len());
        for &node in nodes.homes() {
            let mut builder = options(node);
            if nodes.homes().len() > 1 {
                builder = builder.node(node);
            }
            if let Some(first) = opened.first() {
                builder = builder.pinned_with(first);
            }
            opened.push(builder.open()?);
        }
        Ok(Self { packs: Arc::new(PerNode::new(&nodes, opened)) })
    }

    /// Returns the nodes that have copies, ascending.
    pub fn homes(&self) -> &[NodeId] {
        self.packs.nodes().homes()
    }

    /// Returns the packs whose programs threads on `node` run.
    pub fn on(&self, node: NodeId) -> &Packs {
        self.packs.on(node)
    }

    /// Reserves a place on each node for a program of `len` bytes at a multiple of `align` bytes, as [`Packs::stage`]
    /// does.
    ///
    /// # Errors
    ///
    /// See [`StageError`]; then no place is reserved.
    pub fn stage(&self, len: usize, align: usize) -> Result<StagedReplicas, StageError> {
        let staged: Result<Vec<Staged>, _> = self.packs.iter().map(|packs| packs.stage(len, align)).collect();
        Ok(StagedReplicas::new(PerNode::new(self.packs.nodes(), staged?)))
    }

    /// Loads a program of `len` bytes that depend on its address: calls `write` for each copy.
    ///
    /// # Errors
    ///
    /// See [`LoadError`]; then no copy is in place.
    pub fn load_each(
        &self,
        len: usize,
        align: usize,
        mut write: impl FnMut(NodeId, &mut Staged),
    ) -> Result<ReplicatedProgram, LoadError> {
        let mut staged = self.stage(len, align)?;
        staged.replicas_mut().for_each(|(node, one)| write(node, one));
        Ok(staged.finalize()?)
    }

    /// Loads position-independent code, at a multiple of `align` bytes.
    ///
    /// # Errors
    ///
    /// As for [`load_each`](Self::load_each).
    pub fn load(&self, code: &[u8], align: usize) -> Result<ReplicatedProgram, LoadError> {
        match self.homes() {
            // Needs no image in between.
            [_] => Ok(self.single(self.packs.first().load(code, align)?)),
            _ => self.load_each(code.len(), align, |_, staged| staged.image().copy_from_slice(code)),
        }
    }

    /// Does the same as [`load`](Self::load), with a name for observers and for [`lookup`](Self::lookup).
    ///
    /// # Errors
    ///
    /// As for [`load_each`](Self::load_each).
    pub fn load_named(&self, name: &str, code: &[u8], align: usize) -> Result<ReplicatedProgram, LoadError> {
        match self.homes() {
            [_] => Ok(self.single(self.packs.first().load_named(name, code, align)?)),
            _ => self.load_each(code.len(), align, |_, staged| {
                staged.set_name(name);
                staged.image().copy_from_slice(code);
            }),
        }
    }

    fn single(&self, program: Program) -> ReplicatedProgram {
        ReplicatedProgram::new(PerNode::new(self.packs.nodes(), [program]))
    }

    /// Loads `len` bytes of read-only data on each node, within reach of that node's programs.
    ///
    /// # Errors
    ///
    /// See [`LoadError`]; then no copy is in place.
    pub fn load_data(
        &self,
        len: usize,
        align: usize,
        mut write: impl FnMut(NodeId, &mut StagedData),
    ) -> Result<ReplicatedData, LoadError> {
        let mut all = Vec::with_capacity(self.homes().len());
        for (node, packs) in self.packs.with_nodes() {
            let mut staged = packs.stage_data(DataAccess::ReadOnly, len, align)?;
            write(node, &mut staged);
            all.push(staged);
        }
        let data: Result<Vec<_>, FinalizeError> = all.into_iter().map(StagedData::finalize).collect();
        Ok(ReplicatedData::new(PerNode::new(self.packs.nodes(), data?)))
    }

    /// Returns the copy of a program, or of data, that covers `address`; see [`Packs::lookup`].
    pub fn lookup(&self, address: usize) -> Option<Found<'_>> {
        self.packs.iter().find_map(|packs| packs.lookup(address))
    }

    /// Registers the calling thread as one that runs code by address. Pinning it pins it for all copies.
    pub fn participant(&self) -> Participant {
        self.packs.first().participant()
    }

    /// Reclaims retired copies on all nodes, as [`Packs::reclaim`] does. Returns the sum. Each node on which something
    /// is retired takes two core synchronisations.
    ///
    /// # Errors
    ///
    /// See [`ReclaimError`]; the first node's error is returned. Other nodes are reclaimed all the same.
    pub fn reclaim(&self) -> Result<Reclaimed, ReclaimError> {
        let all: Vec<_> = self.packs.iter().map(Packs::reclaim).collect();
        all.into_iter().sum()
    }

    /// Returns what each node's packs hold, and where their pages really are. Takes about a microsecond per page.
    pub fn status(&self) -> Vec<NodePacks> {
        self.packs.with_nodes().map(|(node, packs)| NodePacks::of(node, packs)).collect()
    }
}

impl fmt::Debug for ReplicatedPacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.packs.with_nodes()).finish()
    }
}
