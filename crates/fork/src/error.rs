//! Why a process cannot be frozen, or a child cannot be made.

use std::fmt;

use palimpsest_sys::memory::vec::Full;
use palimpsest_sys::pages::pagemap::PagemapError;
use palimpsest_sys::pages::vmas::VmasError;
use palimpsest_sys::seccomp::{FreezeCall, Verdict};
use palimpsest_sys::threads::hold::StopError;
use palimpsest_sys::{Causes, MapError, NotLoaded};
use rustix::io::Errno;

use crate::hazards::found::{RawAllocator, RingHold};

/// Why nothing was frozen. The process is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// The caller runs in another process's memory, as a child of `vfork`.
    #[error("this is a child of vfork, in the memory of process {owner}; freeze there")]
    BorrowedMemory {
        /// Whose memory it is.
        owner: i32,
    },
    /// Another freeze, repair or thaw of this process is under way, or the caller is a signal handler that has
    /// interrupted a memory call; to a slice, another thread that is in the middle of one.
    #[error(
        "another freeze of this process is under way, or a memory call that was interrupted; let one thread freeze, \
         outside of signal handlers"
    )]
    Busy,
    /// Other threads could write while memory is copied.
    #[error(
        "the process has {count} threads, whose writes would be lost; freeze before threads are started, or with \
         OtherThreads::Stop"
    )]
    Threads {
        /// How many, the caller included.
        count: usize,
    },
    /// Other threads could write while memory is copied, and what is done beside them would take too long.
    #[error(
        "the process has {count} threads and more than {most} mappings: before Linux 6.11 memory is gathered beside \
         threads only if all mappings can be listed in each slice; take a longer pause (Pause::Within), or hold the \
         threads (OtherThreads::Stop)"
    )]
    ManyMappings {
        /// How many threads, the caller included.
        count: usize,
        /// How many mappings fit into a slice.
        most: usize,
    },
    /// Other threads could not be held still; those that were have been let go.
    #[error("the other threads cannot be stopped; freeze before they are started")]
    NotStopped(#[from] StopError),
    /// The library with this code might be unloaded, and the handler that holds threads with it.
    #[error(
        "the code that holds other threads cannot be kept loaded; freeze before threads are started, with \
         OtherThreads::Refuse"
    )]
    NotKept(#[from] NotLoaded),
    /// A runtime discards memory by system calls of its own and expects zeros.
    #[error(
        "{what} manages memory by system calls that cannot be interposed; it may be answered for \
         (Answer::RawAllocator) if it discards none"
    )]
    RawAllocator {
        /// The runtime.
        what: RawAllocator,
    },
    /// The kernel may write to pages that would be replaced.
    #[error(
        "io_uring {} {hold}: the kernel would go on with old pages; \
         freeze without it, or answer for it (Answer::IoUring)",
        Descriptor(*.descriptor)
    )]
    IoUring {
        /// The descriptor, if the ring has one.
        descriptor: Option<i32>,
        /// What it holds on to, as far as known.
        hold: RingHold,
    },
    /// The kernel may write to pages that would be replaced, for requests under way.
    #[error(
        "there is a context of Linux AIO ({context:#x}), whose requests under way would go to old pages; \
         freeze before io_setup, or answer for it (Answer::LinuxAio)"
    )]
    LinuxAio {
        /// The context.
        context: usize,
    },
    /// `mlockall(MCL_FUTURE)` is in effect.
    #[error(
        "all future memory is locked (mlockall(MCL_FUTURE)), so that freezing would copy memory and gain \
         nothing; call munlockall first"
    )]
    FutureLocked,
    /// Memory files cannot be made.
    #[error("memfd_create is not possible here: {verdict}; allow it in the seccomp filter")]
    NoMemfd {
        /// The result of a trial.
        verdict: Verdict,
    },
    /// A seccomp filter kills a call that freezing makes.
    #[error("{call} is not possible here: {verdict}; freeze before the seccomp filter is installed, or allow it")]
    Filtered {
        /// The call.
        call: FreezeCall,
        /// The result of a trial.
        verdict: Verdict,
    },
    /// The file-size limit forbids memory files of the size needed.
    #[error("RLIMIT_FSIZE is {limit} bytes at most, which forbids memory files; raise it (`ulimit -f unlimited`)")]
    FileSizeLimit {
        /// The hard limit, in bytes.
        limit: u64,
    },
    /// The list of mappings cannot be read.
    #[error("the mappings of the process cannot be told")]
    Mappings(#[from] VmasError),
    /// The kernel does not say which pages are in use.
    #[error("which pages are in use cannot be told")]
    Pages(#[from] PagemapError),
    /// There is no memory for the tables.
    #[error("no memory for the tables of a freeze")]
    Tables(#[from] MapError),
    /// There is no memory for the stack on which a slice or a repair works.
    #[error(
        "no memory for the stack of a freeze: limits (RLIMIT_AS, RLIMIT_MEMLOCK with mlockall), or the most mappings \
         that a process may have"
    )]
    NoStack,
    /// A table is too small.
    #[error("too many mappings or threads for a freeze")]
    TooMany(#[from] Full),
    /// `/proc` cannot be read.
    #[error("cannot read {path}; is /proc mounted?")]
    NoProc {
        /// The file.
        path: &'static str,
        /// The operating system's error.
        #[source]
        source: Errno,
    },
}

impl FreezeError {
    /// Returns it with its sources, to be shown in one line.
    // Not inlined: its sources are many types, of which the caller's crate would have tables and code of its own.
    #[inline(never)]
    pub fn causes(&self) -> Causes<'_> {
        Causes(self)
    }
}

/// A ring's descriptor, for messages.
struct Descriptor(Option<i32>);

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "descriptor {number}"),
            None => f.write_str("ring"),
        }
    }
}

/// Why no child was made.
#[derive(Debug, thiserror::Error)]
#[error("no child process could be made: {0}; raise RLIMIT_NPROC or free memory")]
pub struct ForkError(pub Errno);

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a line that leaves out why.
    #[test]
    fn an_error_is_told_with_its_source() {
        let source = Errno::NOENT;
        let error = FreezeError::NoProc { path: "/proc/self/task", source };
        let line = error.causes().to_string();
        assert!(line.starts_with(&error.to_string()) && line.ends_with(&source.to_string()), "{line}");
    }
}
