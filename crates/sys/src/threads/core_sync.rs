//! Core synchronisation: every core that runs this process executes a serialising instruction.
//!
//! After [`CoreSync::sync`] returns, no thread of the process can execute an instruction that its core fetched before
//! the call, and every memory access that a thread made before it was interrupted by the call is visible to the caller,
//! and the caller's to the thread: it is a full barrier on every running thread. That is what code patching and
//! epoch-based reclaim need; both take one sync for any number of sites or programs.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::thread::MembarrierCommand;

use super::broadcast;
#[cfg(not(test))]
use crate::arch::serialize_this_core;
use crate::seccomp::{self, Probe, Untried, Verdict};
#[cfg(test)]
use tests::serialize_this_core;

/// How a core synchronisation reaches the other cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPath {
    /// `membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE)`: the kernel interrupts the cores that run this process.
    Membarrier,
    /// A real-time signal to every thread, whose handler executes a serialising instruction.
    Signals,
}

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
    /// It cannot be found out how a seccomp filter answers.
    #[error("membarrier could be deadly under this seccomp filter; allow the system call")]
    Untried(#[source] Untried),
    /// No real-time signal is left for the broadcast.
    #[error("all real-time signals have handlers; free one for core synchronisation, or allow membarrier")]
    NoFreeSignal,
    /// The threads of this process cannot be listed, so that no broadcast can reach them.
    #[error("cannot list the process's threads: mount /proc, or allow membarrier")]
    NoThreadList(#[source] io::Error),
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
    /// No real-time signal is left for the broadcast: the program has taken or ignores the one that was.
    #[error(
        "all real-time signals have handlers or are ignored; free one for core synchronisation, or allow membarrier"
    )]
    NoFreeSignal,
    /// A thread could not be signalled.
    #[error("cannot signal thread {tid}")]
    Signal {
        /// The thread's id.
        tid: i32,
        /// The kernel's answer.
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
        /// How long it was waited for, in milliseconds.
        waited_ms: u64,
    },
}

/// A way to synchronise the cores of this process, and a count of how often it was used.
#[derive(Debug)]
pub struct CoreSync {
    path: SyncPath,
    syncs: AtomicU64,
    refused: Option<SetupError>,
}

impl CoreSync {
    /// Takes `membarrier` if it is granted, else the signal broadcast; [`refused`](Self::refused) tells why.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if neither works.
    pub fn new() -> Result<Self, SetupError> {
        match Self::with_path(SyncPath::Membarrier) {
            Ok(sync) => Ok(sync),
            Err(refused) => Ok(Self { refused: Some(refused), ..Self::with_path(SyncPath::Signals)? }),
        }
    }

    /// Takes one path and no other.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if it does not work here.
    pub fn with_path(path: SyncPath) -> Result<Self, SetupError> {
        match path {
            SyncPath::Membarrier => register_membarrier()?,
            SyncPath::Signals => broadcast::install()?,
        }
        Ok(Self { path, syncs: AtomicU64::new(0), refused: None })
    }

    /// The path in use.
    pub fn path(&self) -> SyncPath {
        self.path
    }

    /// Why the better path is not in use, if it is not.
    pub fn refused(&self) -> Option<&SetupError> {
        self.refused.as_ref()
    }

    /// Synchronises all cores once.
    ///
    /// # Errors
    ///
    /// [`SyncError`]: some core may still hold old instructions.
    pub fn sync(&self) -> Result<(), SyncError> {
        match self.path {
            SyncPath::Membarrier => membarrier()?,
            SyncPath::Signals => drop(broadcast::sync()?),
        }
        // The kernel leaves the calling core out when it runs the only thread (`kernel/sched/membarrier.c`).
        serialize_this_core();
        // Relaxed: a statistic.
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How many times [`sync`](Self::sync) has succeeded.
    pub fn syncs(&self) -> u64 {
        // Relaxed: a statistic.
        self.syncs.load(Ordering::Relaxed)
    }
}

fn register_membarrier() -> Result<(), SetupError> {
    // The probe registers in this process only where no filter is installed.
    match seccomp::probe(Probe::Membarrier) {
        Verdict::Allowed => rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)
            .map_err(|errno| SetupError::Refused(errno.into())),
        Verdict::Refused(errno) => Err(SetupError::Refused(errno.into())),
        Verdict::Killed { signal } => Err(SetupError::Filtered { signal }),
        Verdict::Unknown(untried) => Err(SetupError::Untried(untried)),
    }
}

fn membarrier() -> Result<(), SyncError> {
    loop {
        match rustix::thread::membarrier(MembarrierCommand::PrivateExpeditedSyncCore) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(SyncError::Membarrier(errno.into())),
        }
    }
}

#[cfg(test)]
#[path = "core_sync_tests.rs"]
mod tests;
