//! What a freeze did, or would do.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use palimpsest_sys::pages::pagemap::ScanWay;
use rustix::io::Errno;

use crate::engine::progress::{Progress, Stage};
use crate::worth::{Basis, Worth};

/// Why memory is not frozen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Skip {
    /// Fewer populated bytes than [`Options::least`](crate::Options::least).
    Small,
    /// A private mapping of a file with pages of its own, such as a library's data.
    File,
    /// A stack.
    Stack,
    /// Made by the kernel (`[vdso]` and the like).
    Kernel,
    /// Shared with other processes.
    Shared,
    /// Memory of a device.
    Device,
    /// Pages of hugetlbfs.
    Hugetlb,
    /// Not given to children (`MADV_DONTFORK`), so that it costs a fork nothing.
    NotForked,
    /// Children get zeros (`MADV_WIPEONFORK`), which mappings of files cannot give.
    WipedOnFork,
    /// Locked in memory.
    Locked,
    /// Watched by a userfaultfd.
    Userfault,
    /// It has guard regions or other pages that cannot be read.
    Guarded,
    /// Sealed against changes (`mseal`).
    Sealed,
    /// Its pages carry tags (AArch64 memory tagging).
    Tagged,
    /// The kernel may drop its pages.
    Droppable,
    /// It has a memory protection key.
    ProtectionKey,
    /// It has a policy for NUMA nodes, which a mapping of a file would not obey.
    MemoryPolicy,
    /// Executable.
    Executable,
    /// Without the right to read.
    Inaccessible,
    /// The calling thread's own: its stack, its thread-local storage (to which the kernel writes too), and this
    /// library's tables.
    InUse,
    /// Written to after each of the last freezes, so that freezing it does not pay for now.
    Hot,
    /// Not expected to pay within the number of forks that [`Pays`](crate::Pays) allows.
    Unprofitable,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Small => "too few pages",
            Self::File => "private pages of a file",
            Self::Stack => "stack",
            Self::Kernel => "the kernel's",
            Self::Shared => "shared",
            Self::Device => "device memory",
            Self::Hugetlb => "hugetlbfs",
            Self::NotForked => "not given to children",
            Self::WipedOnFork => "wiped in children",
            Self::Locked => "locked",
            Self::Userfault => "userfaultfd",
            Self::Guarded => "guard regions",
            Self::Sealed => "sealed",
            Self::Tagged => "memory tagging",
            Self::Droppable => "droppable",
            Self::ProtectionKey => "protection key",
            Self::MemoryPolicy => "memory policy",
            Self::Executable => "executable",
            Self::Inaccessible => "inaccessible",
            Self::InUse => "in use by this thread",
            Self::Hot => "written to all the time",
            Self::Unprofitable => "would not pay soon enough",
        })
    }
}

/// Memory that is frozen, or would be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FrozenRange {
    /// The addresses.
    pub range: Range<usize>,
    /// Populated bytes. From a survey: those of the whole mapping that the range is part of.
    pub bytes: usize,
    /// Whether it had a name (`PR_SET_VMA_ANON_NAME`), which is lost.
    pub lost_name: bool,
}

/// Memory that is not frozen.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SkippedRange {
    /// The addresses.
    pub range: Range<usize>,
    /// Its populated bytes, whose page table entries each fork still copies.
    pub bytes: usize,
    /// Why.
    pub reason: Skip,
}

/// What a freeze is worth.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing was measured.
    Unmeasured,
    /// Forks are quicker than before.
    Quicker,
    /// Forks are not noticeably quicker.
    NoBenefit {
        /// The mapping that costs most, as far as known.
        spoiler: Option<SkippedRange>,
    },
    /// Forks were dearer than before, so that everything was thawed again ([`Pays::Within`](crate::Pays::Within)).
    Thawed,
}

/// What a freeze did, or would do.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// What is frozen.
    pub frozen: Vec<FrozenRange>,
    /// What is not, and why; without mappings that have no populated page.
    pub skipped: Vec<SkippedRange>,
    /// Length of an extent in bytes.
    pub extent: usize,
    /// Extents made: sealed files.
    pub extents: usize,
    /// Pieces of 2 MiB that the kernel turned into huge pages.
    pub collapsed: usize,
    /// The shortest fork before.
    pub fork_before: Option<Duration>,
    /// The shortest fork afterwards.
    pub fork_after: Option<Duration>,
    /// What it is worth.
    pub verdict: Verdict,
    /// What freezing and gathering took and what each fork saves.
    pub worth: Option<Worth>,
    /// Which of that was measured: what it took, once it is over, and what forks save, if they were timed.
    pub basis: Basis,
    /// What is expected of memory that was left alone because it would not pay ([`Skip::Unprofitable`]).
    pub left_worth: Option<Worth>,
    /// The most memory held twice at one time, in bytes.
    pub peak_extra: usize,
    /// How long the freeze itself held the process up, without measurements.
    pub taken: Duration,
    /// How populated pages were found.
    #[cfg_attr(feature = "serde", serde(serialize_with = "way_name"))]
    pub way: ScanWay,
    /// Why the freeze ended early, if it did. What is frozen is right all the same.
    pub stopped: Option<String>,
    /// What changed in the process beside its memory, and what is lost.
    pub notes: Vec<String>,
    /// How far a freeze in slices has come ([`Pause::Within`](crate::Pause::Within)).
    pub progress: Option<Progress>,
}

#[cfg(feature = "serde")]
fn way_name<S: serde::Serializer>(way: &ScanWay, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match way {
        ScanWay::Ioctl => "pagemap-scan",
        ScanWay::Entries => "pagemap-entries",
    })
}

impl Report {
    /// Makes the report of a process whose mappings were not listed.
    pub(crate) const fn unseen(way: ScanWay) -> Self {
        Self {
            frozen: Vec::new(),
            skipped: Vec::new(),
            extent: 0,
            extents: 0,
            collapsed: 0,
            fork_before: None,
            fork_after: None,
            verdict: Verdict::Unmeasured,
            worth: None,
            basis: Basis::Expected,
            left_worth: None,
            peak_extra: 0,
            taken: Duration::ZERO,
            way,
            stopped: None,
            notes: Vec::new(),
            progress: None,
        }
    }

    /// Returns the frozen bytes.
    pub fn frozen_bytes(&self) -> usize {
        self.frozen.iter().map(|range| range.bytes).sum()
    }

    /// Returns the bytes that are populated and not frozen.
    pub fn skipped_bytes(&self) -> usize {
        self.skipped.iter().map(|range| range.bytes).sum()
    }

    /// Returns the skipped mapping with most populated bytes.
    pub fn largest_skipped(&self) -> Option<&SkippedRange> {
        // Memory that children do not get costs a fork nothing.
        self.skipped.iter().filter(|range| range.reason != Skip::NotForked).max_by_key(|range| range.bytes)
    }

    /// Notes that what was planned is done, in the time that it took.
    pub(crate) fn done(&mut self) {
        if let Some(worth) = &mut self.worth {
            worth.once = self.taken;
            self.basis = Basis::Taken;
        }
    }

    /// Returns the bytes that slices have put into huge pages where they are
    /// ([`Pages::Gather`](crate::Pages::Gather)).
    pub fn gathered_bytes(&self) -> usize {
        self.progress.map_or(0, |progress| progress.gathered_bytes)
    }

    /// Compares the measurements.
    pub(crate) fn judge(&mut self, before: Duration, after: Duration) {
        self.verdict = if after < before.mul_f64(0.9) {
            Verdict::Quicker
        } else {
            Verdict::NoBenefit { spoiler: self.largest_skipped().cloned() }
        };
        if self.frozen_bytes() > 0 {
            let worth = Worth { once: self.taken, per_fork: before.saturating_sub(after) };
            (self.worth, self.basis) = (Some(worth), Basis::Measured);
        }
    }

    /// Notes that all was thawed again, or why it was not.
    pub(crate) fn thawed(&mut self, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => {
                self.notes.push(format!("thawed {} kB again, which made no fork quicker", self.frozen_bytes() / KIB));
                self.frozen.clear();
                self.verdict = Verdict::Thawed;
            }
            Err(errno) => {
                self.notes.push(format!("what is frozen makes no fork quicker, and cannot be thawed: {errno}"))
            }
        }
    }
}

const KIB: usize = 1024;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gathered = self.gathered_bytes() / KIB;
        if gathered > 0 {
            writeln!(
                f,
                "huge     {gathered:>10} kB in huge pages where they are, which pays sooner than to freeze them"
            )?;
        }
        if gathered == 0 || !self.frozen.is_empty() {
            writeln!(
                f,
                "frozen   {:>10} kB in {} ranges, {} extents of {} kB, {:.1} ms, {} kB extra at most",
                self.frozen_bytes() / KIB,
                self.frozen.len(),
                self.extents,
                self.extent / KIB,
                self.taken.as_secs_f64() * 1e3,
                self.peak_extra / KIB,
            )?;
        }
        let mut reasons: Vec<_> = self.skipped.iter().map(|range| range.reason).collect();
        reasons.sort_unstable_by_key(|reason| *reason as u8);
        reasons.dedup();
        for reason in reasons {
            let of_reason = || self.skipped.iter().filter(|range| range.reason == reason);
            let bytes: usize = of_reason().map(|range| range.bytes).sum();
            write!(f, "left     {:>10} kB in {} ranges: {reason}", bytes / KIB, of_reason().count())?;
            match self.left_worth.filter(|_| reason == Skip::Unprofitable) {
                Some(worth) => writeln!(f, " (about {worth})")?,
                None => writeln!(f)?,
            }
        }
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        if let (Some(before), Some(after)) = (self.fork_before, self.fork_after) {
            writeln!(f, "fork     {:>10.0} µs before, {:.0} µs after", micros(before), micros(after))?;
        }
        if let Some(worth) = &self.worth {
            writeln!(f, "{}", worth.on(self.basis))?;
        }
        if let Verdict::NoBenefit { spoiler } = &self.verdict {
            write!(f, "no benefit")?;
            if let Some(SkippedRange { range, bytes, reason }) = spoiler {
                let Range { start, end } = range;
                write!(f, ": {} kB at {start:#x}..{end:#x} could not be frozen ({reason})", bytes / KIB)?;
            }
            writeln!(f)?;
        }
        if let Some(progress) = self.progress {
            let Progress { stage, planned_bytes, frozen_bytes, gathered_bytes, slices, .. } = progress;
            let Progress { longest, taken, beside, looked, .. } = progress;
            let millis = |time: Duration| time.as_secs_f64() * 1e3;
            if stage == Stage::UnderWay {
                writeln!(f, "under way {:>9} of {} kB", (frozen_bytes + gathered_bytes) / KIB, planned_bytes / KIB)?;
            }
            write!(
                f,
                "slices   {slices:>10}, the longest {:.1} ms, together {:.1} ms, after a look of {:.1} ms",
                millis(longest),
                millis(taken),
                millis(looked),
            )?;
            if beside.is_zero() {
                writeln!(f)?;
            } else {
                writeln!(f, "; deputies took {:.1} ms beside the process", millis(beside))?;
            }
        }
        if let Some(stopped) = &self.stopped {
            writeln!(f, "stopped early: {stopped}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
