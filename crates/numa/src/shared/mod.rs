//! Copies that all processes of a user share: how processes find each other's copies.
//!
//! A copy is a constant memory object (`palimpsest_sys::memory::sealed`), and lives as long as a process has it. The
//! folder contains only names: an empty file's name tells which contents a process has, for which node, and at which
//! descriptor. So nothing in the folder could be half written or damaged, and nothing takes memory when its processes
//! are gone.
//!
//! A process that searches a copy opens what such a name points to, and uses it if it is sealed, belongs to its user,
//! is the object that the name says, **and all its bytes are the wanted ones**. A name is only a hint; a false one
//! achieves nothing except that the process makes another copy.
//!
//! Others are kept out: the folder belongs to the user and nobody else may enter it; it is opened without following a
//! link, and checked after it was opened. `/proc/PID/fd` of a process is closed to other users.
//!
//! The first process that needs a copy makes it under a lock, so that a hundred processes that start together make one.
//! The kernel releases the lock of a killed process. A process that cannot get the lock in time makes its own copy.

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

/// A shared copy, and what its user makes of it.
#[derive(Debug)]
pub(crate) enum Obtained<T> {
    /// Another process had it.
    Found {
        taken: T,
        process: Pid,
        /// This process's own entry for it, if it could make one: the other process may end first.
        registered: Option<Registered>,
        passed_over: Vec<PassedOver>,
    },
    /// This process has made it.
    Made { taken: T, made: Made, registered: Registered, passed_over: Vec<PassedOver> },
    /// This process has made it, and offers it to nobody, since its memory is not on the node: others would take it for
    /// a copy there.
    Misplaced { taken: T, made: Made, file: SealedFile, passed_over: Vec<PassedOver> },
}

/// The judgement on a copy that was found.
#[derive(Debug)]
pub(crate) enum Judged<T> {
    /// It has the wanted bytes.
    Same(T),
    /// It has different bytes.
    Different,
    /// This process cannot tell.
    Unknown(String),
}

/// An entry of a process whose copy was not used, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum PassedOver {
    /// Its object is not what the entry says, or cannot be reached.
    #[error(transparent)]
    NotTaken(#[from] AdoptError),
    /// It has ended without removing its entry.
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
        /// The reason.
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
        /// The lock file, in the folder.
        lock: String,
    },
    /// No object could be made.
    #[error("no object to share")]
    Seal(#[source] SealError),
    /// The node was not asked for its memory.
    #[error("others would look for it on {node}, which was not asked for its memory")]
    Misplaced {
        /// The node.
        node: NodeId,
    },
}

impl Folder {
    /// Finds the copy `key` for `node` that `judge` accepts, or has it made. Waits for others no longer than `patience`
    /// allows.
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
        // A search alone waits for nobody.
        if let Some(found) = find(self, folder.as_fd(), key, node, &mut judge, &mut passed_over)? {
            return Ok(found);
        }
        let held = lock.take(folder.as_fd(), patience)?;
        step(Step::Locked);
        // Entries that were passed over are gone, or are passed over again.
        passed_over.retain(|passed| match passed {
            PassedOver::NotTaken(why) => !may_be_good(why),
            PassedOver::Unknown { .. } => false,
            PassedOver::Ended { .. } | PassedOver::Different { .. } => true,
        });
        if let Some(found) = find(self, folder.as_fd(), key, node, &mut judge, &mut passed_over)? {
            return Ok(found);
        }
        let (taken, file, made) = make().map_err(NotShared::Seal)?;
        step(Step::Sealed);
        if made.not_placed.is_some() {
            return Ok(Obtained::Misplaced { taken, made, file, passed_over });
        }
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

/// Whether what this process cannot take may be good for others; in all other cases the name is wrong.
const fn may_be_good(why: &AdoptError) -> bool {
    matches!(why, AdoptError::Refused { .. } | AdoptError::Untold { .. })
}

/// Searches the names; removes those of processes that are gone, whatever they had.
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
    let (gone, mut alive): (Vec<Name>, Vec<Name>) = folder::names(folder)?
        .into_iter()
        .filter(|name| name.namespace == here)
        .partition(|name| !name.process_is_there());
    // Its own first: who holds those for ever needs no second descriptor of the same object.
    let own = rustix::process::getpid();
    alive.sort_by_key(|name| name.process != own);
    // All of them, even if a copy was found: otherwise entries of short-lived processes would pile up beside a
    // long-lived one.
    for name in gone {
        folder::remove(folder, &name);
        passed_over.push(PassedOver::Ended { process: name.process });
    }
    for name in alive.into_iter().filter(|name| name.is_of(key, node)) {
        let process = name.process;
        let file = match SealedFile::adopt(process, name.descriptor, name.inode) {
            Ok(file) => file,
            Err(why) => {
                if !may_be_good(&why) {
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

/// Points at which tests kill the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Opened,
    Locked,
    Sealed,
    Registered,
    /// Of text: everything is ready to be exchanged.
    Standing,
    /// Of text: everything is exchanged.
    Exchanged,
}

#[cfg(not(test))]
pub(crate) fn step(_: Step) {}

#[cfg(test)]
pub(crate) use tests::step;

#[cfg(test)]
pub(crate) mod tests;
