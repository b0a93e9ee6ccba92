//! The configuration of a store.

use std::sync::Arc;

use palimpsest_sys::arch::DIRECT_BRANCH_REACH;
use palimpsest_sys::numa::NodeId;

use super::PACK;
use super::backing::Backing;
use super::epoch::EpochsByProcess;
use super::error::OpenError;
use super::memory::Profiling;
use super::policy::{BranchTargets, ForkPolicy, ReclaimPolicy, WriteView};
use crate::observe::Observer;

/// The length of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionLen {
    /// As much as direct branches reach, at most 1 GiB, and less under a tight `RLIMIT_AS`.
    AsMuchAsCanBe,
    /// Exactly this many bytes, or an error.
    Exactly(usize),
}

/// The configuration of a store, also in a forked child.
pub(super) struct Config {
    /// `None`: the best that works.
    pub(super) backing: Option<Backing>,
    pub(super) region: RegionLen,
    pub(super) near: Option<usize>,
    /// The node that memory should come from, if it matters.
    pub(super) node: Option<NodeId>,
    pub(super) write_view: Option<WriteView>,
    pub(super) branch_targets: BranchTargets,
    pub(super) fork: ForkPolicy,
    pub(super) reclaim: ReclaimPolicy,
    pub(super) observers: Vec<Box<dyn Observer>>,
    /// `None`: epochs of their own.
    pub(super) epochs: Option<Arc<EpochsByProcess>>,
}

impl Config {
    /// Returns the backings to try, the best first.
    pub(super) fn candidates(&self) -> Result<&[Backing], OpenError> {
        let has_none = |backing: Backing| backing == Backing::ProcMem;
        match (self.write_view, &self.backing) {
            (None, Some(backing)) => Ok(std::slice::from_ref(backing)),
            (Some(write_view), Some(backing)) if has_none(*backing) == (write_view == WriteView::None) => {
                Ok(std::slice::from_ref(backing))
            }
            (Some(write_view), &Some(backing)) => Err(OpenError::WriteView { backing, write_view }),
            (None, None) => Ok(&Backing::ALL),
            (Some(WriteView::None), None) => Ok(&[Backing::ProcMem]),
            // All backings but the last, which has no view to open or close.
            (Some(WriteView::Standing | WriteView::DuringCopies), None) => {
                Ok(&[Backing::CollapsedMemfd, Backing::HugetlbMemfd, Backing::SmallMemfd])
            }
        }
    }

    /// Returns when packs of this backing can be written.
    pub(super) fn write_view_of(&self, backing: Backing) -> WriteView {
        match backing {
            Backing::ProcMem => WriteView::None,
            _ => self.write_view.unwrap_or_default(),
        }
    }

    pub(super) fn profiling(&self) -> Profiling {
        if self.observers.is_empty() { Profiling::None } else { Profiling::ByName }
    }
}

impl RegionLen {
    /// The longest region whose ends reach each other.
    pub(super) const MAX: usize = DIRECT_BRANCH_REACH;

    /// The first length to try.
    pub(super) const DEFAULT: usize = if Self::MAX < 1 << 30 { Self::MAX } else { 1 << 30 };

    /// Returns the lengths to try, longest first, in bytes.
    pub(super) fn candidates(self) -> Result<Vec<usize>, OpenError> {
        const LEAST: usize = 8 * PACK;
        match self {
            Self::AsMuchAsCanBe => Ok(std::iter::successors(Some(Self::DEFAULT), |len| Some(len / 2))
                .take_while(|&len| len >= LEAST)
                .collect()),
            Self::Exactly(len) => match len.checked_next_multiple_of(PACK) {
                Some(rounded @ PACK..=Self::MAX) => Ok(vec![rounded]),
                _ => Err(OpenError::RegionLength { len, max: Self::MAX }),
            },
        }
    }
}
