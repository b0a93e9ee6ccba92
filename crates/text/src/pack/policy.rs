//! Policies, chosen when packs are opened.

use super::PACK;

/// What forked children can do with the packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForkPolicy {
    /// A child can run the programs that it inherits, but neither change nor free them; what it loads goes to packs of
    /// its own. As long as a child that may hold a program has neither exited nor called `exec`, the parent does not
    /// reuse that program's memory.
    #[default]
    Inherit,
    /// A child has no programs: calling one of the parent's is a segmentation fault. (Writable data is private memory
    /// and is inherited.) For processes whose children only call `exec`; the parent reuses memory whatever they do.
    Omit,
}

/// When the memory of code can be written, which limits an attacker who can write anywhere in this process.
///
/// The book's chapter on soundness says what each is worth, and what other systems do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteView {
    /// At all times, through a second view at a secret address: a load needs no system call.
    #[default]
    Standing,
    /// Only while something is copied, filled or changed in place: at other times the view has no rights. Then a pack's
    /// whole view is open, for the whole process. Each load takes two system calls, which interrupt the other cores
    /// that run the process.
    DuringCopies,
    /// Never: the kernel writes, through `/proc/self/mem`. Implies the backing [`ProcMem`](super::Backing::ProcMem),
    /// and is implied by it.
    None,
}

/// Where branches through registers may lead in the packs' code, if the machine checks that: AArch64 with BTI (Armv8.5,
/// Linux 5.8). Elsewhere it makes no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BranchTargets {
    /// To any instruction. By default, since nobody knows whether all code that will be loaded has landing pads: most
    /// compilers make them only on request.
    #[default]
    Any,
    /// To landing pads only (`bti c`, `paciasp`): the memory is mapped with `PROT_BTI`. Code without one where it is
    /// called by its address then ends the process by SIGILL. eBPF programs of `palimpsest-bpf` have them.
    LandingPads,
}

/// When retired programs are reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// When [`Packs::reclaim`](super::Packs::reclaim) is called, when room runs out, and after about every
    /// `retired_bytes` that are retired; the drop that passes this mark does the work.
    Automatic {
        /// Bytes of programs whose handles were dropped.
        retired_bytes: usize,
    },
    /// Only when [`Packs::reclaim`](super::Packs::reclaim) is called. A full region is an error even if retired
    /// programs could make room.
    Manual,
}

impl Default for ReclaimPolicy {
    /// Returns `Automatic` at half a pack: about two thousand programs of 500 bytes share two core synchronisations and
    /// one check of forked children.
    fn default() -> Self {
        Self::Automatic { retired_bytes: PACK / 2 }
    }
}
