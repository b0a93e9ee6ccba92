//! What is decided when packs are opened.

use super::PACK;

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
    /// Never: the kernel writes, through `/proc/self/mem`. It means the backing [`ProcMem`](super::Backing::ProcMem),
    /// and that means it.
    None,
}

/// When retired programs are reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// When [`Packs::reclaim`](super::Packs::reclaim) is called, when room runs out, and about every `retired_bytes`
    /// that are retired; the drop that passes the mark does the work.
    Automatic {
        /// Bytes of programs whose handles were dropped.
        retired_bytes: usize,
    },
    /// Only when [`Packs::reclaim`](super::Packs::reclaim) is called. A full region is an error even if retired
    /// programs could make room.
    Manual,
}

impl Default for ReclaimPolicy {
    /// Automatic at half a pack: the two core synchronisations and the look at forked children are shared by about two
    /// thousand programs of 500 bytes.
    fn default() -> Self {
        Self::Automatic { retired_bytes: PACK / 2 }
    }
}
