//! The lock for making a copy.

use std::time::Duration;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::name::Key;
use super::{FolderError, NotShared};

/// How often, and how long apart, to try a lock: as long as copying a few gigabytes takes. A longer wait would be for a
/// stopped process.
const TRIALS: u32 = 2000;
const APART: Duration = Duration::from_millis(5);

/// How long to wait for others, for all locks together: after waiting for one in vain, waits for no other.
#[derive(Debug)]
pub(crate) struct Patience {
    trials: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { trials: TRIALS }
    }
}

impl Patience {
    #[cfg(test)]
    pub(super) fn of(trials: u32) -> Self {
        Self { trials }
    }

    /// Waits a moment, if time is left.
    fn wait(&mut self) -> bool {
        let Some(left) = self.trials.checked_sub(1) else { return false };
        std::thread::sleep(APART);
        self.trials = left;
        true
    }
}

/// A lock on a group of keys. Its file remains: there are sixteen.
#[derive(Debug)]
pub(super) struct Lock {
    name: String,
}

impl Lock {
    pub(super) fn of(key: &Key) -> Self {
        Self { name: format!("lock-{}", key.group()) }
    }

    /// Takes the lock until the result is dropped, or this process and the children forked meanwhile end.
    pub(super) fn take(&self, folder: BorrowedFd<'_>, patience: &mut Patience) -> Result<Held, NotShared> {
        let failed = |errno| FolderError::Entry { name: self.name.clone(), errno };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(folder, self.name.as_str(), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Held(file)),
                Err(Errno::WOULDBLOCK) if patience.wait() => {}
                Err(Errno::WOULDBLOCK) => return Err(NotShared::Locked { lock: self.name.clone() }),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno).into()),
            }
        }
    }
}

/// A lock that is held.
#[derive(Debug)]
pub(super) struct Held(OwnedFd);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing is not enough: a child forked meanwhile has the same open file, and would keep the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
impl Held {
    /// Returns another descriptor of the same open file.
    pub(super) fn duplicate(&self) -> OwnedFd {
        self.0.try_clone().expect("descriptors are left")
    }
}
