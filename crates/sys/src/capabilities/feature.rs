//! The features of Palimpsest: each works, works slower, or does not work.

use std::fmt;

use super::{Capabilities, DescriptorCount, Lack, MapCount, TextBacking, Trial};
use crate::memory::extent;
use crate::pages::pagemap::ScanWay;
use crate::threads::core_sync::SyncPath;

/// A part of Palimpsest that can be used by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum Feature {
    /// Programs in packs.
    Packs,
    /// Changing running code.
    Poke,
    /// Static keys.
    Keys,
    /// Compiled eBPF programs.
    Bpf,
    /// `palimpsest_fork::freeze`.
    Freeze,
    /// `palimpsest run`: unmodified programs.
    Run,
    /// Snapshots that are restored.
    Snapshot,
    /// The arena.
    Arena,
    /// A copy of read-only data on every node.
    Replicas,
    /// Text from huge pages on one node: `ProgramText`, `palimpsest run --local-text`.
    LocalText,
    /// `cargo xtask guest paging`, for work on page tables.
    PagingGuests,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Packs => "packs",
            Self::Poke => "poke",
            Self::Keys => "keys",
            Self::Bpf => "bpf",
            Self::Freeze => "freeze",
            Self::Run => "run",
            Self::Snapshot => "snapshot",
            Self::Arena => "arena",
            Self::Replicas => "replicas",
            Self::LocalText => "local-text",
            Self::PagingGuests => "paging-guests",
        })
    }
}

/// How well a feature works here.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(tag = "verdict", rename_all = "kebab-case"))]
pub enum Verdict {
    /// It works as well as it can.
    Works {
        /// How.
        how: String,
    },
    /// It works, but slower.
    Slower {
        /// What is used instead, and what was found.
        why: String,
        /// How to get the better way, in one line.
        fix: String,
    },
    /// It does not work.
    Fails {
        /// What was found.
        why: String,
        /// How to get it, in one line.
        fix: String,
    },
}

impl Verdict {
    /// Creates the verdict that it does not work because of this lack.
    pub fn fails(lack: &Lack) -> Self {
        Self::Fails { why: lack.why.clone(), fix: lack.fix.clone() }
    }

    /// Creates the verdict that `instead` is used because of this lack.
    fn slower(instead: &str, lack: &Lack) -> Self {
        Self::Slower { why: format!("{instead}: {}", lack.why), fix: lack.fix.clone() }
    }

    fn works(how: impl Into<String>) -> Self {
        Self::Works { how: how.into() }
    }

    /// Returns the grade that this verdict allows for the whole.
    pub fn grade(&self) -> Grade {
        match self {
            Self::Works { .. } => Grade::Best,
            Self::Slower { .. } => Grade::Slower,
            Self::Fails { .. } => Grade::Fails,
        }
    }
}

/// A feature and its verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Standing {
    /// The feature.
    pub feature: Feature,
    /// The verdict.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub verdict: Verdict,
}

/// All features in one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum Grade {
    /// All work as well as they can.
    Best,
    /// All work, some slower.
    Slower,
    /// Some do not work.
    Fails,
}

/// Descriptors that a freeze has open at the same time: the list of mappings, the map of pages, and an extent.
const FREEZE_DESCRIPTORS: u64 = 3;
/// Mappings that a freeze of a small process makes.
const FREEZE_MAPPINGS: u64 = 256;

impl Capabilities {
    /// Returns the verdicts on all features that depend only on this machine, the most used first. [`Feature::Run`] and
    /// [`Feature::PagingGuests`] also depend on programs; `palimpsest doctor` judges them.
    pub fn features(&self) -> Vec<Standing> {
        let standing = |feature, verdict| Standing { feature, verdict };
        vec![
            standing(Feature::Freeze, self.freezing()),
            standing(Feature::Snapshot, self.snapshots()),
            standing(Feature::Arena, self.arenas()),
            standing(Feature::Packs, self.packs()),
            standing(Feature::Poke, self.patching()),
            standing(Feature::Keys, self.patching()),
            standing(Feature::Bpf, self.compiled()),
            standing(Feature::Replicas, self.replicas()),
            standing(Feature::LocalText, self.local_text()),
        ]
    }

    fn packs(&self) -> Verdict {
        let lack = |trial: &Trial| trial.as_ref().err().cloned().unwrap_or_else(|| Lack::new("", ""));
        match self.choice().backing {
            Some(backing @ (TextBacking::CollapsedMemfd | TextBacking::HugetlbMemfd)) => {
                Verdict::works(format!("{backing}, huge pages"))
            }
            Some(backing @ TextBacking::SmallMemfd) => {
                Verdict::slower(&format!("{backing}, more iTLB misses"), &lack(&self.huge_text))
            }
            Some(backing @ TextBacking::ProcMem) => {
                Verdict::slower(&format!("{backing}, each load is a system call"), &lack(&self.dual_mapping))
            }
            None => Verdict::fails(&lack(&self.dual_mapping)),
        }
    }

    fn compiled(&self) -> Verdict {
        match self.packs() {
            Verdict::Fails { why, fix } => Verdict::Slower { why: format!("interpreted, not compiled: {why}"), fix },
            other => other,
        }
    }

    fn patching(&self) -> Verdict {
        match (&self.core_sync, &self.membarrier, &self.proc_mem) {
            (Err(lack), _, _) => Verdict::fails(lack),
            (Ok(SyncPath::Signals), Err(lack), _) => Verdict::slower("a signal to every thread", lack),
            (Ok(_), _, Err(lack)) => Verdict::slower("pages of program text are replaced, not written", lack),
            (Ok(SyncPath::Membarrier), _, Ok(_)) => Verdict::works("membarrier, text through /proc/self/mem"),
            (Ok(SyncPath::Signals), Ok(_), Ok(_)) => Verdict::works("a signal to every thread"),
        }
    }

    fn replicas(&self) -> Verdict {
        let nodes = self.machine.numa_nodes.len();
        match (&self.memory_object, &self.memory_policy, &self.huge_text) {
            (Err(lack), _, _) => Verdict::fails(lack),
            (_, Err(lack), _) if nodes > 1 => Verdict::slower("copies lie where the kernel puts them", lack),
            (_, _, Err(lack)) => Verdict::slower("copies in small pages", lack),
            _ if nodes > 1 => Verdict::works(format!("a copy on each of {nodes} nodes, in huge pages")),
            _ => Verdict::works("one node: one copy, in huge pages"),
        }
    }

    fn local_text(&self) -> Verdict {
        let one = self.machine.numa_nodes.len() <= 1;
        match (&self.proc, &self.page_scan) {
            (Err(lack), _) => return Verdict::fails(&Lack::new(format!("what is mapped: {}", lack.why), &*lack.fix)),
            (_, Err(lack)) => return Verdict::fails(lack),
            _ => {}
        }
        match self.replicas() {
            // Huge pages of the file are everybody's; a copy is its process's alone unless sharing is asked for.
            Verdict::Works { .. } if one => {
                Verdict::works("one node: huge pages of the file; or of copies, which --shared shares")
            }
            Verdict::Works { .. } => {
                Verdict::works("huge pages of copies on the wanted node, which --shared shares on each")
            }
            other => other,
        }
    }

    /// Returns what freezing lacks, if anything.
    pub fn freeze_lack(&self) -> Option<Lack> {
        if let Err(lack) = &self.proc {
            return Some(Lack::new(format!("what is mapped cannot be seen: {}", lack.why), &*lack.fix));
        }
        if let Err(lack) = &self.freeze_calls {
            return Some(lack.clone());
        }
        // The soft limit is lifted meanwhile.
        if let Some(bytes) = self.limits.most_file_size.filter(|&bytes| bytes < extent::LENGTH) {
            let why = format!("the hard RLIMIT_FSIZE is {bytes} bytes, which forbids memory files");
            return Some(Lack::new(why, "ulimit -f unlimited, by root: the limit is a hard one"));
        }
        self.few_descriptors().or_else(|| self.few_mappings())
    }

    fn few_descriptors(&self) -> Option<Lack> {
        let DescriptorCount { used, limit } = self.descriptors?;
        (limit.saturating_sub(used) < FREEZE_DESCRIPTORS).then(|| {
            let why = format!("{used} of {limit} descriptors are open, and {FREEZE_DESCRIPTORS} more are needed");
            Lack::new(why, "ulimit -n 1024")
        })
    }

    fn few_mappings(&self) -> Option<Lack> {
        let MapCount { used, limit } = *self.mappings.as_ref().ok()?;
        (limit.saturating_sub(used) < FREEZE_MAPPINGS).then(|| {
            let why = format!("{used} of {limit} mappings are in use, and {FREEZE_MAPPINGS} more are needed");
            Lack::new(why, format!("sysctl -w vm.max_map_count={}", limit.saturating_mul(4)))
        })
    }

    fn freezing(&self) -> Verdict {
        self.freeze_lack().map_or_else(|| Verdict::works("sealed memory files"), |lack| Verdict::fails(&lack))
    }

    fn snapshots(&self) -> Verdict {
        if let Some(lack) = self.freeze_lack() {
            return Verdict::fails(&lack);
        }
        // Its file stays, and nobody lifts the limit meanwhile.
        if let Some(bytes) = self.limits.file_size {
            let why = format!("RLIMIT_FSIZE is {bytes} bytes, and a snapshot is a file in memory");
            return Verdict::fails(&Lack::new(why, "ulimit -f unlimited"));
        }
        match &self.page_scan {
            Ok(ScanWay::Ioctl) => Verdict::works("pages that were written are found by PAGEMAP_SCAN"),
            Ok(ScanWay::Entries) => Verdict::Slower {
                why: "this kernel has no PAGEMAP_SCAN: the entry of every page is read".to_owned(),
                fix: "use Linux 6.7 or later".to_owned(),
            },
            Err(lack) => Verdict::fails(lack),
        }
    }

    fn arenas(&self) -> Verdict {
        match (&self.memory_object, self.few_descriptors()) {
            (Err(lack), _) => Verdict::fails(lack),
            (Ok(_), Some(lack)) => Verdict::fails(&lack),
            (Ok(_), None) => Verdict::works("shared memory files until it is frozen"),
        }
    }
}
