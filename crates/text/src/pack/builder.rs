//! How packs are opened.

use std::sync::Arc;

use palimpsest_sys::arch::DIRECT_BRANCH_REACH;

use super::PACK;
use super::backing::Backing;
use super::error::OpenError;
use super::handle::Packs;
use super::memory::Profiling;
use super::root::Root;
use crate::observe::Observer;

/// What forked children get of the packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForkPolicy {
    /// A child goes on running the programs that it inherits, which it can neither change nor free; what it loads
    /// itself goes to packs of its own. As long as a child that may hold a program has neither exited nor called
    /// `exec`, the parent does not reuse that program's memory.
    #[default]
    Inherit,
    /// A child has no programs (what was staged as writable data is private memory and is inherited): calling one that
    /// it inherits is a segmentation fault. For processes whose children only call `exec`; the parent reuses memory
    /// whatever they do.
    Omit,
}

/// When the memory of code can be written, and so what somebody can do who may write anywhere in this process.
///
/// What each is worth, and what other systems do, is in the book's chapter on soundness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteView {
    /// At all times, through a second view whose address nobody is told: a load costs no system call.
    #[default]
    Standing,
    /// While something is copied, filled or changed in place: the view has no right at other times. A pack's whole view
    /// is open then, for the whole process. Two system calls for each load, which the other cores that run the process
    /// hear of.
    DuringCopies,
    /// Never: the kernel writes, through `/proc/self/mem`. It means the backing [`ProcMem`](Backing::ProcMem), and that
    /// means it.
    None,
}

/// When retired programs are reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// When [`Packs::reclaim`] is called, when room runs out, and about every `retired_bytes` that are retired; the
    /// drop that passes the mark does the work.
    Automatic {
        /// Bytes of programs whose handles were dropped.
        retired_bytes: usize,
    },
    /// Only when [`Packs::reclaim`] is called. A full region is an error even if retired programs could make room.
    Manual,
}

impl Default for ReclaimPolicy {
    /// Automatic at half a pack: the two core synchronisations and the look at forked children are shared by about two
    /// thousand programs of 500 bytes.
    fn default() -> Self {
        Self::Automatic { retired_bytes: PACK / 2 }
    }
}

/// How long the region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionLen {
    /// As much as direct branches reach, at most 1 GiB, and less under a tight `RLIMIT_AS`.
    AsMuchAsCanBe,
    /// So many bytes or an error.
    Exactly(usize),
}

/// What a store is made from, also in a forked child.
pub(super) struct Config {
    /// `None`: the best that works.
    pub(super) backing: Option<Backing>,
    pub(super) region: RegionLen,
    pub(super) near: Option<usize>,
    pub(super) write_view: Option<WriteView>,
    pub(super) fork: ForkPolicy,
    pub(super) reclaim: ReclaimPolicy,
    pub(super) observers: Vec<Box<dyn Observer>>,
}

impl Config {
    /// The backings to try, the best first.
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
            // All but the last, which has no view to be open or closed.
            (Some(WriteView::Standing | WriteView::DuringCopies), None) => {
                Ok(&[Backing::CollapsedMemfd, Backing::HugetlbMemfd, Backing::SmallMemfd])
            }
        }
    }

    /// When packs of this backing can be written.
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

/// Options for [`Packs`]; see [`Packs::builder`].
#[must_use = "packs are opened by `open`"]
pub struct PacksBuilder(Config);

impl PacksBuilder {
    pub(super) fn new() -> Self {
        Self(Config {
            backing: None,
            region: RegionLen::AsMuchAsCanBe,
            near: None,
            write_view: None,
            fork: ForkPolicy::default(),
            reclaim: ReclaimPolicy::default(),
            observers: Vec::new(),
        })
    }

    /// Takes this backing or none. By default the best that works is taken, and [`Packs::refused`] tells of better
    /// ones.
    pub fn backing(mut self, backing: Backing) -> Self {
        self.0.backing = Some(backing);
        self
    }

    /// Reserves `bytes` of address space, rounded up to whole packs: all programs and data lie in it, so that they
    /// reach each other by direct branches. By default 1 GiB (128 MiB on AArch64), less if `RLIMIT_AS` does not allow
    /// it.
    pub fn region_len(mut self, bytes: usize) -> Self {
        self.0.region = RegionLen::Exactly(bytes);
        self
    }

    /// Places the region so that direct branches between it and `address` reach, such as that of a function of the
    /// program that the code calls (`f as *const () as usize`). Opening fails if no gap of the address space is within
    /// reach.
    pub fn near(mut self, address: usize) -> Self {
        self.0.near = Some(address);
        self
    }

    /// Says when the memory of code can be written. By default at all times, through a second view.
    pub fn write_view(mut self, view: WriteView) -> Self {
        self.0.write_view = Some(view);
        self
    }

    /// Says what forked children get.
    pub fn fork(mut self, policy: ForkPolicy) -> Self {
        self.0.fork = policy;
        self
    }

    /// Says when retired programs are reclaimed.
    pub fn reclaim(mut self, policy: ReclaimPolicy) -> Self {
        self.0.reclaim = policy;
        self
    }

    /// Adds something that follows programs as they come and go.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.0.observers.push(Box::new(observer));
        self
    }

    /// Opens the packs, and makes the first.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(self) -> Result<Packs, OpenError> {
        Ok(Packs::over(Arc::new(Root::open(self.0)?)))
    }
}

impl RegionLen {
    /// The longest region: its ends reach each other.
    pub(super) const MAX: usize = DIRECT_BRANCH_REACH;

    /// What is tried first.
    pub(super) const DEFAULT: usize = if Self::MAX < 1 << 30 { Self::MAX } else { 1 << 30 };

    /// The lengths to try, longest first, in bytes.
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
