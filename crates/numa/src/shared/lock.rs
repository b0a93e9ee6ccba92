//! The lock of who makes a copy.

use std::time::Duration;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::name::Key;
use super::{FolderError, NotShared};

/// How often, and how long apart, a lock is asked for: for as long as it takes to copy a few gigabytes. Whoever waits
/// longer waits for a process that is stopped.
const TRIALS: u32 = 2000;
const APART: Duration = Duration::from_millis(5);

/// A lock on a group of keys. Its file stays: there are sixteen.
#[derive(Debug)]
pub(super) struct Lock {
    name: String,
    trials: u32,
}

impl Lock {
    pub(super) fn of(key: &Key) -> Self {
        Self { name: format!("lock-{}", key.group()), trials: TRIALS }
    }

    #[cfg(test)]
    pub(super) fn with_trials(self, trials: u32) -> Self {
        Self { trials, ..self }
    }

    /// Takes it until the result is dropped, or this process ends and the children that were forked meanwhile.
    pub(super) fn take(&self, folder: BorrowedFd<'_>) -> Result<Held, NotShared> {
        let failed = |errno| FolderError::Entry { name: self.name.clone(), errno };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(folder, self.name.as_str(), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        for trial in 0..self.trials {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Held(file)),
                Err(Errno::WOULDBLOCK) if trial + 1 < self.trials => std::thread::sleep(APART),
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno).into()),
            }
        }
        Err(NotShared::Locked { lock: self.name.clone() })
    }
}

/// A lock that is held.
#[derive(Debug)]
pub(super) struct Held(OwnedFd);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked meanwhile has the same open file, and would keep the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
impl Held {
    /// Another descriptor of the same open file.
    pub(super) fn duplicate(&self) -> OwnedFd {
        self.0.try_clone().expect("descriptors are left")
    }
}
