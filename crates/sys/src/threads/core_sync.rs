//! Core synchronisation: every core that runs this process executes a serialising instruction.
//!
//! After [`CoreSync::sync`] returns, no thread of the process can execute an instruction that its core fetched before
//! the call. All memory accesses that a thread made before the call interrupted it are visible to the caller, and the
//! caller's to the thread: it is a full barrier on every running thread. Code patching and epoch-based reclaim need
//! this; both take one sync for any number of sites or programs.
//!
//! `membarrier` may be refused after it was granted: to all threads or to some, by a seccomp filter that was added.
//! [`CoreSync::sync_by_any_path`] takes the signals then.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::thread::MembarrierCommand;

use super::broadcast;
use super::sync_error::{SetupError, SyncError};
#[cfg(not(test))]
use crate::arch::serialize_this_core;
use crate::seccomp::{self, Probe, Verdict};
use crate::set_once::SetOnce;
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

/// A way to synchronise the cores of this process, and a count of its uses.
#[derive(Debug)]
pub struct CoreSync {
    path: SyncPath,
    /// A thread that synchronises adds one; any thread reads it.
    syncs: AtomicU64,
    /// Why `membarrier` is not used, or has failed since. Set once; signals are ready from then on.
    refused: SetOnce<SetupError>,
}

impl CoreSync {
    /// Uses `membarrier` if it is granted, else the signal broadcast; [`refused`](Self::refused) tells why.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if neither works.
    pub fn new() -> Result<Self, SetupError> {
        match Self::with_path(SyncPath::Membarrier) {
            Ok(sync) => Ok(sync),
            Err(refused) => match Self::with_path(SyncPath::Signals) {
                Ok(sync) => {
                    sync.refused.get_or_init(|| refused);
                    Ok(sync)
                }
                Err(signals) => Err(SetupError::Neither { membarrier: refused.into(), signals: signals.into() }),
            },
        }
    }

    /// Uses only this path.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if it does not work here.
    pub fn with_path(path: SyncPath) -> Result<Self, SetupError> {
        match path {
            SyncPath::Membarrier => register_membarrier()?,
            SyncPath::Signals => broadcast::install()?,
        }
        Ok(Self { path, syncs: AtomicU64::new(0), refused: SetOnce::new() })
    }

    /// Returns the path in use, which is tried first.
    pub fn path(&self) -> SyncPath {
        self.path
    }

    /// Returns why the better path is not in use, or has failed since for some thread, if so.
    pub fn refused(&self) -> Option<&SetupError> {
        self.refused.get()
    }

    /// Synchronises all cores once.
    ///
    /// # Errors
    ///
    /// [`SyncError`]: some core may still hold old instructions. [`SyncError::Membarrier`] if that has begun to fail:
    /// [`sync_by_any_path`](Self::sync_by_any_path) does without.
    pub fn sync(&self) -> Result<(), SyncError> {
        match self.path {
            SyncPath::Membarrier => match membarrier() {
                Err(_) if self.refused.get().is_some() => drop(broadcast::sync()?),
                done => done?,
            },
            SyncPath::Signals => drop(broadcast::sync()?),
        }
        // The kernel leaves out the calling core if the process has only one thread (`kernel/sched/membarrier.c`).
        serialize_this_core();
        // Relaxed: a statistic.
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Does the same, by signals if `membarrier` fails. Returns why it has failed, if that is new;
    /// [`refused`](Self::refused) tells it again.
    ///
    /// Callers take the same care as with [`stay_loaded`](crate::stay_loaded): if `membarrier` fails, this asks the
    /// dynamic linker. [`sync`](Self::sync) then does the same from now on, and does not ask.
    ///
    /// # Errors
    ///
    /// [`SyncError`]: some core may still hold old instructions.
    pub fn sync_by_any_path(&self) -> Result<Option<&SetupError>, SyncError> {
        let error = match self.sync() {
            Err(SyncError::Membarrier(error)) => error,
            done => return done.map(|()| None),
        };
        if broadcast::install().is_err() {
            return Err(SyncError::Membarrier(error));
        }
        let refused = self.refused.get_or_init(|| SetupError::Refused(error));
        self.sync().map(|()| Some(refused))
    }

    /// Returns how many times [`sync`](Self::sync) has succeeded.
    pub fn syncs(&self) -> u64 {
        // Relaxed: a statistic.
        self.syncs.load(Ordering::Relaxed)
    }
}

fn register_membarrier() -> Result<(), SetupError> {
    // The probe registers in this process only if no filter is installed.
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
