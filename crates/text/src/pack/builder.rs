//! Options for opening packs.

use palimpsest_sys::numa::NodeId;

use super::backing::Backing;
use super::config::{Config, RegionLen};
use super::policy::{BranchTargets, ForkPolicy, ReclaimPolicy, WriteView};
use crate::observe::Observer;

/// Options for [`Packs`](super::Packs); see [`Packs::builder`](super::Packs::builder).
#[must_use = "packs are opened by `open`"]
pub struct PacksBuilder(pub(super) Config);

impl PacksBuilder {
    pub(super) fn new() -> Self {
        Self(Config {
            backing: None,
            region: RegionLen::AsMuchAsCanBe,
            near: None,
            node: None,
            write_view: None,
            branch_targets: BranchTargets::default(),
            fork: ForkPolicy::default(),
            reclaim: ReclaimPolicy::default(),
            observers: Vec::new(),
            epochs: None,
        })
    }

    /// Uses only this backing. By default the best that works is used, and [`Packs::refused`](super::Packs::refused)
    /// lists better ones.
    pub fn backing(mut self, backing: Backing) -> Self {
        self.0.backing = Some(backing);
        self
    }

    /// Reserves `bytes` of address space, rounded up to whole packs: all programs and data lie in it, so that they
    /// reach each other by direct branches. By default 1 GiB (128 MiB on AArch64), less if `RLIMIT_AS` does not allow
    /// that.
    pub fn region_len(mut self, bytes: usize) -> Self {
        self.0.region = RegionLen::Exactly(bytes);
        self
    }

    /// Places the region within reach of direct branches from `address` and back. `address` may be that of a function
    /// that the code calls (`f as *const () as usize`). Opening fails if no gap of the address space is within reach;
    /// the room into which the heap and the first thread's stack may grow is none.
    pub fn near(mut self, address: usize) -> Self {
        self.0.near = Some(address);
        self
    }

    /// Asks for memory of this NUMA node, for code and data; other nodes provide it where this one has none. Children
    /// that open packs of their own ask for the same. [`Packs::node_refused`](super::Packs::node_refused) tells whether
    /// asking failed, and [`Packs::places`](super::Packs::places) where the pages are.
    pub fn node(mut self, node: NodeId) -> Self {
        self.0.node = Some(node);
        self
    }

    /// Sets when the memory of code can be written. By default at all times, through a second view.
    pub fn write_view(mut self, view: WriteView) -> Self {
        self.0.write_view = Some(view);
        self
    }

    /// Sets where branches through registers may lead. By default anywhere.
    /// [`Packs::branch_targets`](super::Packs::branch_targets) tells whether this machine checks them.
    pub fn branch_targets(mut self, targets: BranchTargets) -> Self {
        self.0.branch_targets = targets;
        self
    }

    /// Sets what forked children get.
    pub fn fork(mut self, policy: ForkPolicy) -> Self {
        self.0.fork = policy;
        self
    }

    /// Sets when retired programs are reclaimed.
    pub fn reclaim(mut self, policy: ReclaimPolicy) -> Self {
        self.0.reclaim = policy;
        self
    }

    /// Adds an observer, which follows programs as they are loaded and unloaded.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.0.observers.push(Box::new(observer));
        self
    }
}
