//! What a snapshot holds, and how it is restored.

use std::ops::Range;

use palimpsest_sys::memory::span::Span;

/// What a snapshot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// These ranges of whole pages, in private writable mappings that stay where they are.
    Ranges(Vec<Range<usize>>),
    /// All private writable memory of the process except the running stack, and where everything is mapped.
    Whole,
}

/// When to search page tables for written pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Sweep {
    /// If the process has had a page fault since the last time, and in every 64th restore. Pages become private by
    /// faults, which the kernel counts; so without one, the last sweep's pages are all there are. Holes are kept from
    /// becoming parts of huge pages (`MADV_NOHUGEPAGE`), which takes no fault; programs must not ask for the opposite
    /// there. Faults of children count once they were waited for, so that what a child of `vfork` wrote is found then.
    /// Not for programs with writes that are not counted: of children that share the memory (`CLONE_VM`) and were not
    /// waited for before the restore, or never are because SIGCHLD is ignored; from another process (ptrace,
    /// `process_vm_writev`); by `UFFDIO_COPY`.
    #[default]
    OnFaults,
    /// In each restore.
    Always,
    /// In the first restore and in every n-th after it. Restores in between restore only
    /// [known](super::Snapshot::declare) pages: the caller claims that others do not matter.
    Every(u32),
    /// Never: only declared pages are restored, without a system call. The caller claims that there are no others.
    Never,
}

/// Whether to compare mappings with those of the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// In each restore: `/proc/self/maps` is read.
    #[default]
    Check,
    /// Never: the caller claims that nothing is mapped, unmapped or protected, and that the program break stays.
    Trust,
}

/// Which other threads the process may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Threads {
    /// None: no snapshot is taken while there are any.
    #[default]
    Alone,
    /// The caller claims that they sleep whenever a snapshot is taken or restored, and do not use the restored memory.
    Asleep,
}

/// How restores treat file descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Descriptors {
    /// Leave them alone.
    #[default]
    Leave,
    /// Close those opened since, restore those closed or replaced since from duplicates, and restore offsets.
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
    /// Makes options for `scope`, with [`Sweep::OnFaults`], [`Layout::Check`], no other threads, and descriptors left
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

    /// Sets when to search page tables.
    #[must_use]
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// Sets whether to compare mappings. No effect with [`Scope::Ranges`].
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets how many bytes of written pages at most are restored by copying, and stay resident. Pages beyond that are
    /// dropped, and the next write to each faults. 64 MiB by default.
    #[must_use]
    pub fn resident(mut self, bytes: usize) -> Self {
        self.resident = bytes;
        self
    }

    /// Sets which other threads there may be.
    #[must_use]
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// Sets how restores treat file descriptors.
    #[must_use]
    pub fn descriptors(mut self, descriptors: Descriptors) -> Self {
        self.descriptors = descriptors;
        self
    }

    /// Leaves alone the pages that hold any of `range`: they keep what is written to them.
    #[must_use]
    pub fn except(mut self, range: Range<usize>) -> Self {
        self.except.push(Span::of_pointers(range).range());
        self
    }
}
