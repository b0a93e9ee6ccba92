//! Why cores cannot be synchronised.

use std::io;

use crate::causes::Causes;
use crate::objects::NotLoaded;
use crate::seccomp::Untried;

/// Why `membarrier` is not used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel or a seccomp filter refuses it.
    #[error(
        "membarrier(PRIVATE_EXPEDITED_SYNC_CORE) is refused; it needs Linux 4.16 and a seccomp profile that allows it"
    )]
    Refused(#[source] io::Error),
    /// A seccomp filter answers it with a signal.
    #[error("a seccomp filter kills membarrier with signal {signal}; allow the system call")]
    Filtered {
        /// The signal that ended the probe.
        signal: i32,
    },
    /// How a seccomp filter answers cannot be found out.
    #[error("membarrier could be deadly under this seccomp filter; allow the system call")]
    Untried(#[source] Untried),
    /// No real-time signal is left for the broadcast.
    #[error("all real-time signals have handlers; free one for core synchronisation, or allow membarrier")]
    NoFreeSignal,
    /// The threads of this process cannot be listed, so that no broadcast can reach them.
    #[error("cannot list the process's threads: mount /proc, or allow membarrier")]
    NoThreadList(#[source] io::Error),
    /// The threads of this process have other numbers in `/proc` than here, so that no broadcast can reach them.
    #[error(
        "/proc is that of another PID namespace, and numbers this process's threads otherwise; mount it anew \
        (unshare --mount-proc), or allow membarrier"
    )]
    OtherNamespace,
    /// The handler of the broadcast could be unloaded.
    #[error(transparent)]
    Unloadable(#[from] NotLoaded),
    /// Neither `membarrier` nor the broadcast works.
    #[error("cores must be reached by signals, since {}", Causes(membarrier.as_ref()))]
    Neither {
        /// Why `membarrier` is not used.
        membarrier: Box<SetupError>,
        /// Why the broadcast does not work.
        #[source]
        signals: Box<SetupError>,
    },
}

/// Why a core synchronisation did not happen. Memory that waits for it must be left alone.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// `membarrier` failed, though it had worked before: a seccomp filter was added.
    #[error("membarrier failed after it had been granted; was a seccomp filter added later?")]
    Membarrier(#[source] io::Error),
    /// The threads could not be listed.
    #[error("cannot list the process's threads; is /proc still mounted?")]
    ThreadList(#[source] io::Error),
    /// `/proc` was replaced by that of another pid namespace, which numbers the threads otherwise.
    #[error("/proc is that of another PID namespace by now, and numbers this process's threads otherwise")]
    OtherNamespace,
    /// No listing of the threads was known to lack none.
    #[error("{listings} listings in /proc/self/task may all lack threads; start fewer, or allow membarrier")]
    Incomplete {
        /// How often they were listed.
        listings: u32,
    },
    /// No real-time signal is left for the broadcast: the program has taken or ignores the last one.
    #[error(
        "all real-time signals have handlers or are ignored; free one for core synchronisation, or allow membarrier"
    )]
    NoFreeSignal,
    /// A thread could not be signalled.
    #[error("cannot signal thread {tid}")]
    Signal {
        /// The thread's id.
        tid: i32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A thread does not take the signal.
    #[error("thread {tid} blocks signal {signal} (pthread_sigmask); unblock it, or allow membarrier")]
    Blocked {
        /// The thread's id.
        tid: i32,
        /// The signal's number.
        signal: i32,
    },
    /// A thread did not answer in time.
    #[error("thread {tid} did not answer signal {signal} within {waited_ms} ms")]
    Timeout {
        /// The thread's id.
        tid: i32,
        /// The signal's number.
        signal: i32,
        /// How long the caller waited, in milliseconds.
        waited_ms: u64,
    },
}
