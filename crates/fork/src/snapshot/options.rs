//! What a snapshot holds and how it is put back.

use std::ops::Range;

use palimpsest_sys::memory::span::Span;

/// What a snapshot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// These ranges of whole pages, in private writable mappings that stay where they are.
    Ranges(Vec<Range<usize>>),
    /// All private writable memory of the process, and where everything is mapped, but for the running stack.
    Whole,
}

/// When page tables are searched for pages that were written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Sweep {
    /// When the process has had a page fault since the last time, and in every 64th restore. A page can become private
    /// only by a fault, which the kernel counts; so without one, the pages of the last sweep are all there are. Faults
    /// of children count from when they were waited for, so what a child of `vfork` wrote is found then. Not counted,
    /// so not for programs with: children that share the memory (`CLONE_VM`) and were not waited for by the time of the
    /// restore, or are waited for by nobody, where SIGCHLD is ignored; writes from another process (ptrace,
    /// `process_vm_writev`); `UFFDIO_COPY`.
    #[default]
    OnFaults,
    /// In each restore.
    Always,
    /// In the first restore and in every n-th after it. The restores in between put back
    /// [known](super::Snapshot::declare) pages alone: the caller claims that others do not matter.
    Every(u32),
    /// Never: only declared pages are put back, without a system call. The caller's claim is that there are no others.
    Never,
}

/// Whether mappings are compared with those of the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// In each restore: `/proc/self/maps` is read.
    #[default]
    Check,
    /// Never: the caller's claim is that nothing is mapped, unmapped or protected, and that the program break stays.
    Trust,
}

/// Which other threads the process may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Threads {
    /// None: no snapshot is taken while there are any.
    #[default]
    Alone,
    /// The caller claims that they sleep whenever a snapshot is taken or put back, and do not use the memory that is
    /// put back.
    Asleep,
}

/// How restores treat file descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Descriptors {
    /// Leaves them alone.
    #[default]
    Leave,
    /// Closes those opened since, puts those closed or replaced since back from duplicates, and sets offsets back.
    Restore,
}

/// How a snapshot is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotOptions {
    pub(super) scope: Scope,
    pub(super) sweep: Sweep,
    pub(super) layout: Layout,
    pub(super) resident: usize,
    pub(super) threads: Threads,
    pub(super) descriptors: Descriptors,
    pub(super) except: Vec<Range<usize>>,
}

/// Bytes that stay private between restores unless [`SnapshotOptions::resident`] says otherwise: what can be copied in
/// a few milliseconds.
const RESIDENT: usize = 64 << 20;

impl SnapshotOptions {
    /// A snapshot of `scope`, with [`Sweep::OnFaults`], [`Layout::Check`], no other threads, and descriptors left
    /// alone.
    pub const fn new(scope: Scope) -> Self {
        Self {
            scope,
            sweep: Sweep::OnFaults,
            layout: Layout::Check,
            resident: RESIDENT,
            threads: Threads::Alone,
            descriptors: Descriptors::Leave,
            except: Vec::new(),
        }
    }

    /// When page tables are searched.
    #[must_use]
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// Whether mappings are compared; of no effect with [`Scope::Ranges`].
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// How many bytes of written pages are at most put back by copying, and stay resident. Pages beyond that are
    /// dropped, and the next write to each faults. 64 MiB by default.
    #[must_use]
    pub fn resident(mut self, bytes: usize) -> Self {
        self.resident = bytes;
        self
    }

    /// Which other threads there may be.
    #[must_use]
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// How restores treat file descriptors.
    #[must_use]
    pub fn descriptors(mut self, descriptors: Descriptors) -> Self {
        self.descriptors = descriptors;
        self
    }

    /// Leaves alone the pages that hold any of `range`; they keep what is written to them.
    #[must_use]
    pub fn except(mut self, range: Range<usize>) -> Self {
        self.except.push(Span::of_pointers(range).range());
        self
    }
}
