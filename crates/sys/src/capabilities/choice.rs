//! The available mechanisms that Palimpsest will use.

use std::fmt;

use super::Capabilities;
use crate::threads::core_sync::SyncPath;

/// The memory of packs for code, the best first. Same names as the backings of `palimpsest-text`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum TextBacking {
    /// A memfd mapped twice, collapsed into huge pages.
    CollapsedMemfd,
    /// A memfd from the hugetlb pool, mapped twice.
    HugetlbMemfd,
    /// A memfd mapped twice, in base pages.
    SmallMemfd,
    /// Private memory, written through `/proc/self/mem`.
    ProcMem,
}

impl fmt::Display for TextBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CollapsedMemfd => "collapsed-memfd",
            Self::HugetlbMemfd => "hugetlb-memfd",
            Self::SmallMemfd => "small-memfd",
            Self::ProcMem => "proc-mem",
        })
    }
}

/// The mechanisms that will be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// `None` if no code can be loaded.
    pub backing: Option<TextBacking>,
    /// How cores are synchronised; `None` if no way works.
    pub core_sync: Option<SyncPath>,
}

impl Capabilities {
    /// Returns what Palimpsest will use here.
    pub fn choice(&self) -> Choice {
        let backing = if self.dual_mapping.is_ok() {
            Some(match (&self.huge_text, &self.huge_pool) {
                (Ok(_), _) => TextBacking::CollapsedMemfd,
                (Err(_), Ok(_)) => TextBacking::HugetlbMemfd,
                (Err(_), Err(_)) => TextBacking::SmallMemfd,
            })
        } else {
            self.proc_mem.as_ref().ok().map(|_| TextBacking::ProcMem)
        };
        Choice { backing, core_sync: self.core_sync.as_ref().ok().copied() }
    }
}

impl Choice {
    /// Returns the name of the way to synchronise cores.
    pub fn core_sync_name(&self) -> Option<&'static str> {
        self.core_sync.map(|path| match path {
            SyncPath::Membarrier => "membarrier",
            SyncPath::Signals => "signals",
        })
    }
}
