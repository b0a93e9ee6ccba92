//! Copies that all processes of a user share: where they find each other.
//!
//! A copy is a memory object that nobody can change (`palimpsest_sys::memory::sealed`), and lives as long as a process
//! has it. What lies in the folder are names alone: an empty file tells in its name which contents a process has, for
//! which node, and at which descriptor. So there is nothing in the folder that could be half written or damaged, and
//! nothing that takes memory when its processes are gone.
//!
//! Who looks for a copy opens what such a name points to, and takes it if it is sealed, its user's own, the object that
//! the name says, **and its bytes are those that were wanted**, all of them. A name is a hint; whoever lies in one wins
//! nothing but a copy that is made anew.
//!
//! What keeps others out: the folder belongs to the user and nobody else may enter it; it is opened without following a
//! link, and looked at after it was opened. `/proc/PID/fd` of a process is closed to other users.
//!
//! The first who needs a copy makes it while it holds a lock, so that a hundred processes that start together make one.
//! The kernel takes the lock away from who is killed. Who cannot get it in time makes a copy for itself.

mod folder;
mod lock;
mod name;
mod origin;

use std::os::fd::AsFd;

use palimpsest_sys::Causes;
use palimpsest_sys::memory::sealed::{Made, SealError, SealedBytes};
use palimpsest_sys::memory::sealed_file::{AdoptError, SealedFile};
use palimpsest_sys::numa::NodeId;
use rustix::process::Pid;

pub(crate) use folder::Registered;
pub use folder::{Folder, FolderError};
pub(crate) use lock::Patience;
pub(crate) use name::Key;
pub use origin::{Origin, Sharing};

use lock::Lock;
use name::Name;

/// A copy that is shared, and what its user makes of it.
#[derive(Debug)]
pub(crate) enum Obtained<T> {
    /// Another process had it.
    Found {
        taken: T,
        process: Pid,
        /// This process offers it as well, if it could say so: the other may end first.
        registered: Option<Registered>,
        passed_over: Vec<PassedOver>,
    },
    /// This process has made it.
    Made { taken: T, made: Made, registered: Registered, passed_over: Vec<PassedOver> },
}

/// What somebody thinks of a copy that was found.
#[derive(Debug)]
pub(crate) enum Judged<T> {
    /// It has the bytes that are wanted.
    Same(T),
    /// It has others.
    Different,
    /// This process cannot tell.
    Unknown(String),
}

/// A process that said it had a copy, and why that was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum PassedOver {
    /// Its object is not what it is said to be, or cannot be reached.
    #[error(transparent)]
    NotTaken(#[from] AdoptError),
    /// It has ended without taking its entry back.
    #[error("process {process} has ended, and its entry is removed")]
    Ended {
        /// The process.
        process: Pid,
    },
    /// Its object has other bytes.
    #[error("what process {process} says to have has other bytes")]
    Different {
        /// The process.
        process: Pid,
    },
    /// Its object could not be compared.
    #[error("what process {process} has cannot be compared: {why}")]
    Unknown {
        /// The process.
        process: Pid,
        /// Why.
        why: String,
    },
}

/// Why a copy is not shared.
#[derive(Debug, thiserror::Error)]
pub enum NotShared {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Others hold the lock.
    #[error("other processes hold the lock {lock:?}; the one that makes the copy may be stopped")]
    Locked {
        /// The file, in the folder.
        lock: String,
    },
    /// No object could be made.
    #[error("no object to share")]
    Seal(#[source] SealError),
}

impl Folder {
    /// Finds the copy `key` for `node` of which `judge` says that it is the one, or has it made. Waits for others no
    /// longer than `patience` allows.
    pub(crate) fn obtain<T>(
        &self,
        key: &Key,
        node: NodeId,
        patience: &mut Patience,
        mut judge: impl FnMut(&SealedFile) -> Judged<T>,
        make: impl FnOnce() -> Result<(T, SealedFile, Made), SealError>,
    ) -> Result<Obtained<T>, NotShared> {
        let folder = self.open()?;
        let lock = Lock::of(key);
        step(Step::Opened);
        let mut passed_over = Vec::new();
        // Who only looks waits for nobody.
        if let Some(found) = find(self, folder.as_fd(), key, node, &mut judge, &mut passed_over)? {
            return Ok(found);
        }
        let held = lock.take(folder.as_fd(), patience)?;
        step(Step::Locked);
        // What was passed over is gone, or is passed over again.
        passed_over.retain(|passed| {
            !matches!(passed, PassedOver::NotTaken(AdoptError::Refused { .. }) | PassedOver::Unknown { .. })
        });
        if let Some(found) = find(self, folder.as_fd(), key, node, &mut judge, &mut passed_over)? {
            return Ok(found);
        }
        let (taken, file, made) = make().map_err(NotShared::Seal)?;
        step(Step::Sealed);
        let registered = Registered::new(self, folder.as_fd(), key, node, file)?;
        step(Step::Registered);
        drop(held);
        Ok(Obtained::Made { taken, made, registered, passed_over })
    }

    /// Finds a copy of `content` for `node` or makes one.
    pub(crate) fn obtain_bytes(&self, node: NodeId, content: &[u8]) -> Result<Obtained<SealedBytes>, NotShared> {
        let judge = |file: &SealedFile| match SealedBytes::map(file, content.len()) {
            Ok(bytes) if bytes.as_bytes() == content => Judged::Same(bytes),
            Ok(_) => Judged::Different,
            Err(error) => Judged::Unknown(Causes(&error).to_string()),
        };
        self.obtain(&Key::of(content), node, &mut Patience::default(), judge, || {
            SealedBytes::with_file(content, Some(node))
        })
    }
}

/// Looks through the names; those of processes that are gone are removed, whatever they have had.
fn find<T>(
    place: &Folder,
    folder: rustix::fd::BorrowedFd<'_>,
    key: &Key,
    node: NodeId,
    judge: &mut impl FnMut(&SealedFile) -> Judged<T>,
    passed_over: &mut Vec<PassedOver>,
) -> Result<Option<Obtained<T>>, NotShared> {
    let here = name::pid_namespace();
    // Processes of other name spaces have other numbers.
    let (gone, alive): (Vec<Name>, Vec<Name>) = folder::names(folder)?
        .into_iter()
        .filter(|name| name.namespace == here)
        .partition(|name| !name.process_is_there());
    // All of them, also where a copy is found: else those of short lives would heap up behind a long one.
    for name in gone {
        folder::remove(folder, &name);
        passed_over.push(PassedOver::Ended { process: name.process });
    }
    for name in alive.into_iter().filter(|name| name.is_of(key, node)) {
        let process = name.process;
        let file = match SealedFile::adopt(process, name.descriptor, name.inode) {
            Ok(file) => file,
            Err(why) => {
                // A copy that this process may not open may be good for others; in all other cases the name is wrong.
                if !matches!(why, AdoptError::Refused { .. }) {
                    folder::remove(folder, &name);
                }
                passed_over.push(why.into());
                continue;
            }
        };
        match judge(&file) {
            Judged::Same(taken) => {
                let registered = Registered::new(place, folder, key, node, file).ok();
                let passed_over = std::mem::take(passed_over);
                return Ok(Some(Obtained::Found { taken, process, registered, passed_over }));
            }
            Judged::Different => {
                folder::remove(folder, &name);
                passed_over.push(PassedOver::Different { process });
            }
            Judged::Unknown(why) => passed_over.push(PassedOver::Unknown { process, why }),
        }
    }
    Ok(None)
}

/// Places at which tests kill the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Opened,
    Locked,
    Sealed,
    Registered,
}

#[cfg(not(test))]
fn step(_: Step) {}

#[cfg(test)]
use tests::step;

#[cfg(test)]
mod tests;
