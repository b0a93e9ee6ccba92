//! Why threads cannot be held.

use rustix::io::Errno;

use super::SEATS;
use crate::memory::error::MapError;
use crate::threads::task::ThreadName;
pub use crate::threads::tracer::Refusal;

/// Why threads could not be held. All that were held run again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The calling thread holds the others already.
    #[error("this very thread holds the others already; let them go first")]
    Busy,
    /// There is no memory for the table.
    #[error("no memory for a table of threads")]
    Memory(#[from] MapError),
    /// The program handles or ignores all real-time signals, and a thread cannot be traced instead.
    #[error("no real-time signal is free (SIG_DFL), and {thread} cannot be held by ptrace; free one")]
    NoFreeSignal {
        /// The first such thread.
        thread: ThreadName,
        /// Why it cannot be traced.
        #[source]
        refusal: Refusal,
    },
    /// The threads cannot be listed.
    #[error("the threads cannot be listed: {0}; is /proc mounted?")]
    Listing(Errno),
    /// The threads have other numbers in `/proc` than here.
    #[error(
        "/proc is that of another PID namespace, and numbers this process's threads otherwise; mount it anew \
        (unshare --mount-proc)"
    )]
    OtherNamespace,
    /// The list is incomplete.
    #[error("/proc/self/task names {named} threads of {threads}")]
    Incomplete {
        /// Threads that it names.
        named: usize,
        /// Threads that exist.
        threads: usize,
    },
    /// There are more than can be held.
    #[error("there are more than {SEATS} threads")]
    TooMany,
    /// A thread cannot be signalled.
    #[error("{thread} cannot be signalled: {errno}")]
    Signal {
        /// The thread.
        thread: ThreadName,
        /// The kernel's error.
        errno: Errno,
    },
    /// A thread blocks the signal, and cannot be traced instead.
    #[error("{thread} blocks signal {signal} and cannot be held by ptrace")]
    Blocked {
        /// The thread.
        thread: ThreadName,
        /// The signal.
        signal: i32,
        /// Why it cannot be traced.
        #[source]
        refusal: Refusal,
    },
    /// A thread did not come to rest.
    #[error("{thread} did not answer signal {signal} within {waited_ms} ms; is it in vfork, or stopped by a debugger?")]
    Silent {
        /// The thread.
        thread: ThreadName,
        /// The signal.
        signal: i32,
        /// How long the caller waited.
        waited_ms: u64,
    },
    /// A traced thread did not stop.
    #[error("{thread} did not stop for ptrace within {waited_ms} ms; is it in vfork, or in a file system that hangs?")]
    Unstopped {
        /// The thread.
        thread: ThreadName,
        /// How long the caller waited.
        waited_ms: u64,
    },
    /// The tracing process is gone.
    #[error("threads that block signals can no longer be held")]
    TracerLost(#[source] Refusal),
}
