//! Why a process cannot be frozen, or a child cannot be had.

use palimpsest_sys::MapError;
use palimpsest_sys::mapped_vec::Full;
use palimpsest_sys::pagemap::PagemapError;
use palimpsest_sys::seccomp::Verdict;
use palimpsest_sys::vmas::VmasError;
use palimpsest_sys::world::StopError;
use rustix::io::Errno;

/// Why nothing was frozen. The process is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// The caller runs in another process's memory.
    #[error("this is a child of vfork, in the memory of process {owner}; freeze there")]
    BorrowedMemory {
        /// Whose memory it is.
        owner: i32,
    },
    /// Another freeze, repair or thaw of this process is under way.
    #[error("another freeze of this process is under way; let one thread freeze")]
    Busy,
    /// Other threads could write while memory is copied.
    #[error(
        "the process has {count} threads, whose writes would be lost; freeze before threads are started, or with OtherThreads::Stop"
    )]
    Threads {
        /// How many, the caller included.
        count: usize,
    },
    /// Other threads could not be held still; those that were run again.
    #[error("the other threads cannot be stopped; freeze before they are started")]
    NotStopped(#[from] StopError),
    /// A runtime discards memory by system calls of its own and expects zeros.
    #[error(
        "{what} manages memory by system calls that cannot be interposed; it may be answered for (Answer::RawAllocator) if it discards none"
    )]
    RawAllocator {
        /// What was found.
        what: String,
    },
    /// The kernel writes to pages that would be replaced.
    #[error(
        "io_uring descriptor {descriptor} has {buffers} registered buffers and {pending} requests under way, which hold on to old pages; freeze without them, or answer for it (Answer::IoUring)"
    )]
    IoUring {
        /// The descriptor.
        descriptor: i32,
        /// Registered buffers.
        buffers: u64,
        /// Requests that have no completion yet.
        pending: u64,
    },
    /// `mlockall(MCL_FUTURE)` is in effect.
    #[error(
        "all future memory is locked (mlockall(MCL_FUTURE)), so that freezing would copy memory and gain nothing; call munlockall first"
    )]
    FutureLocked,
    /// Memory files cannot be made.
    #[error("memfd_create is not possible here: {verdict:?}; allow it in the seccomp filter")]
    NoMemfd {
        /// What became of a trial.
        verdict: Verdict,
    },
    /// The file-size limit forbids memory files of the size that is needed.
    #[error("RLIMIT_FSIZE is {limit} bytes at most, which forbids memory files; raise it (`ulimit -f unlimited`)")]
    FileSizeLimit {
        /// The hard limit, in bytes.
        limit: u64,
    },
    /// The list of mappings cannot be had.
    #[error("the mappings of the process cannot be told")]
    Mappings(#[from] VmasError),
    /// Which pages are in use cannot be told.
    #[error("which pages are in use cannot be told")]
    Pages(#[from] PagemapError),
    /// There is no memory for the tables.
    #[error("no memory for the tables of a freeze")]
    Tables(#[from] MapError),
    /// A table is too small.
    #[error("too many mappings or threads for a freeze")]
    TooMany(#[from] Full),
    /// `/proc` cannot be read.
    #[error("cannot read {path}; is /proc mounted?")]
    NoProc {
        /// The file.
        path: String,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
}

/// Why there is no child.
#[derive(Debug, thiserror::Error)]
#[error("no child process could be made: {0}; raise RLIMIT_NPROC or free memory")]
pub struct ForkError(pub Errno);
