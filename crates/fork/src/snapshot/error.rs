//! What can go wrong with a snapshot.

use std::fmt;

use palimpsest_sys::MapError;
use palimpsest_sys::memory::extent::ExtentError;
use palimpsest_sys::memory::vec::Full;
use palimpsest_sys::pages::pagemap::PagemapError;
use palimpsest_sys::pages::vmas::VmasError;
use rustix::io::Errno;

use crate::arena::StrandedError;

/// Why no snapshot was taken. The process goes on unchanged; memory already moved to the snapshot's file keeps its
/// bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    /// Other threads could write while memory is copied.
    #[error("the process has {count} threads; end the others, or vouch for them by Threads::Asleep")]
    Threads {
        /// How many threads, including the calling one.
        count: usize,
    },
    /// A second snapshot of the whole process would undo the first one's mappings.
    #[error("there is a snapshot of the whole process already; drop it first")]
    Another,
    /// A snapshot cannot hold a chosen range.
    #[error("{start:#x}..{end:#x} cannot be in a snapshot: {reason}")]
    Range {
        /// First address.
        start: usize,
        /// One past the last address.
        end: usize,
        /// Why.
        reason: Left,
    },
    /// The running stack is not the thread's own.
    #[error(
        "{stack_pointer:#x} is not on this thread's own stack; take the snapshot outside of coroutines and signal \
         handlers"
    )]
    ForeignStack {
        /// The stack pointer.
        stack_pointer: usize,
    },
    /// The memory of the snapshot contains the stack of a deputy, which is still at work.
    #[error(
        "process {process}, which makes huge pages in this memory, has not ended within two seconds, or a filter does \
         not let this process wait for it; take the snapshot when it is gone, or gather with Errands::Own"
    )]
    Deputy {
        /// Its process id.
        process: i32,
    },
    /// `RLIMIT_FSIZE` limits files in memory, too.
    #[error("RLIMIT_FSIZE is finite, and a snapshot is a file in memory; run `ulimit -f unlimited` first")]
    FileSize,
    /// Memory of an [`Arena`](crate::arena::Arena) stays shared, so that the snapshot would hold half of the allocator.
    #[error("cannot hold an arena in the snapshot")]
    Arena(#[from] StrandedError),
    /// The snapshot's own tables could not be mapped.
    #[error("cannot map the snapshot's own memory")]
    Map(#[from] MapError),
    /// The mappings cannot be listed.
    #[error("cannot list the mappings of the process")]
    Vmas(#[from] VmasError),
    /// The page tables cannot be read.
    #[error("cannot tell which pages are in use")]
    Pagemap(#[from] PagemapError),
    /// The snapshot's file cannot be written or mapped.
    #[error("cannot copy memory into the snapshot")]
    Extent(#[from] ExtentError),
    /// A table is too small for this process.
    #[error("the process is too big for a table of the snapshot")]
    Full(#[from] Full),
    /// A system call failed.
    #[error("{call} failed while the snapshot was taken")]
    Call {
        /// Its name.
        call: &'static str,
        /// The kernel's error.
        #[source]
        errno: Errno,
    },
}

/// Why a snapshot was not restored. Part of what was written since may still be there, so that the process cannot go
/// on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The mappings cannot be listed.
    #[error("cannot list the mappings of the process")]
    Vmas(#[from] VmasError),
    /// The page tables cannot be read.
    #[error("cannot tell which pages were written")]
    Pagemap(#[from] PagemapError),
    /// The snapshot's file cannot be mapped; has the program closed its descriptor?
    #[error("cannot map memory of the snapshot again")]
    Extent(#[from] ExtentError),
    /// A table is too small.
    #[error("too much was written for a table of the snapshot")]
    Full(#[from] Full),
    /// A mapping that is not in the snapshot was removed or replaced.
    #[error(
        "the mapping at {start:#x}..{end:#x} is gone and was not in the snapshot; \
         keep the program from unmapping files and shared memory"
    )]
    Lost {
        /// First address.
        start: usize,
        /// One past the last address.
        end: usize,
    },
    /// A system call failed.
    #[error("{call} failed at {address:#x}")]
    Call {
        /// Its name.
        call: &'static str,
        /// Its subject: an address, or the number of a descriptor.
        address: usize,
        /// The kernel's error.
        #[source]
        errno: Errno,
    },
    /// Nothing was restored: the memory of the snapshot contains the stack of a deputy, which is still at work.
    #[error(
        "process {process}, which makes huge pages in this memory, has not ended within two seconds, or a filter does \
         not let this process wait for it; end the process"
    )]
    Deputy {
        /// Its process id.
        process: i32,
    },
    /// The restore would run on a stack that it overwrites.
    #[error(
        "{stack_pointer:#x} is not on the stack that the snapshot was taken on; leave the target by `abandon` first"
    )]
    ForeignStack {
        /// The stack pointer.
        stack_pointer: usize,
    },
}

/// Why memory is not in a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Left {
    /// Nothing is mapped there.
    Unmapped,
    /// Not a range of whole pages.
    Unaligned,
    /// It overlaps another range.
    Overlapping,
    /// Others see its writes.
    Shared,
    /// It is not writable.
    ReadOnly,
    /// It is executable.
    Executable,
    /// It is locked in memory, or has a protection key.
    Locked,
    /// It grows downwards, and is not the running stack.
    Stack,
    /// The program has told the kernel to wipe it in children.
    WipedOnFork,
    /// A userfaultfd watches it.
    Userfault,
    /// Memory of a device, of hugetlbfs, a shadow stack, tagged, sealed, droppable or with guards inside.
    Special,
    /// It belongs to the snapshot itself, or the caller excepted it.
    Excepted,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "nothing is mapped there",
            Self::Unaligned => "it is not made of whole pages",
            Self::Overlapping => "it overlaps another range",
            Self::Shared => "it is shared memory",
            Self::ReadOnly => "it cannot be written",
            Self::Executable => "it can be executed",
            Self::Locked => "it is locked or has a protection key",
            Self::Stack => "it is a stack that grows",
            Self::WipedOnFork => "it is wiped in children",
            Self::Userfault => "a userfaultfd watches it",
            Self::Special => "it is not ordinary memory",
            Self::Excepted => "it was excepted",
        })
    }
}
