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

use std::os::fd::AsFd;

use palimpsest_sys::memory::sealed::{Made, SealError, SealedBytes};
use palimpsest_sys::memory::sealed_file::{AdoptError, SealedFile};
use palimpsest_sys::numa::NodeId;
use rustix::process::Pid;

pub(crate) use folder::Registered;
pub use folder::{Folder, FolderError};
pub(crate) use name::Key;

use lock::Lock;
use name::Name;

/// A copy that is shared.
#[derive(Debug)]
pub(crate) enum Obtained {
    /// Another process had it.
    Found {
        bytes: SealedBytes,
        process: Pid,
        /// This process offers it as well, if it could say so: the other may end first.
        registered: Option<Registered>,
    },
    /// This process has made it.
    Made { bytes: SealedBytes, made: Made, registered: Registered },
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
    /// Finds a copy of `content` for `node` or makes one.
    pub(crate) fn obtain(&self, key: &Key, node: NodeId, content: &[u8]) -> Result<Obtained, NotShared> {
        let folder = self.open()?;
        let lock = Lock::of(key);
        step(Step::Opened);
        let held = lock.take(folder.as_fd())?;
        step(Step::Locked);
        if let Some(found) = find(self, folder.as_fd(), key, node, content)? {
            return Ok(found);
        }
        let (bytes, file, made) = SealedBytes::with_file(content, Some(node)).map_err(NotShared::Seal)?;
        step(Step::Sealed);
        let registered = Registered::new(self, folder.as_fd(), key, node, file)?;
        step(Step::Registered);
        drop(held);
        Ok(Obtained::Made { bytes, made, registered })
    }
}

/// Looks through the names; those of processes that are gone are removed, whatever they have had.
fn find(
    place: &Folder,
    folder: rustix::fd::BorrowedFd<'_>,
    key: &Key,
    node: NodeId,
    content: &[u8],
) -> Result<Option<Obtained>, NotShared> {
    let here = name::pid_namespace();
    for name in folder::names(folder)? {
        // Processes of other name spaces have other numbers.
        if name.namespace != here {
            continue;
        }
        if !name.is_of(key, node) {
            if !name.process_is_there() {
                folder::remove(folder, &name);
            }
            continue;
        }
        match adopt(&name, content) {
            Ok(Some((bytes, file))) => {
                let registered = Registered::new(place, folder, key, node, file).ok();
                return Ok(Some(Obtained::Found { bytes, process: name.process, registered }));
            }
            // What it is said to be it is not.
            Ok(None) | Err(AdoptError::Gone { .. } | AdoptError::Foreign { .. }) => folder::remove(folder, &name),
            // It may be there, for others.
            Err(AdoptError::Refused { .. }) => {}
        }
    }
    Ok(None)
}

/// The object that a name points to, if its bytes are `content`.
fn adopt(name: &Name, content: &[u8]) -> Result<Option<(SealedBytes, SealedFile)>, AdoptError> {
    let file = SealedFile::adopt(name.process, name.descriptor, name.inode)?;
    let bytes = SealedBytes::map(&file, content.len());
    Ok(bytes.ok().filter(|bytes| bytes.as_bytes() == content).map(|bytes| (bytes, file)))
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
