//! The folder and its entries.

use std::path::{Path, PathBuf};

use palimpsest_sys::memory::sealed_file::SealedFile;
use palimpsest_sys::numa::NodeId;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::name::{Key, Name, pid_namespace};

/// The folder in which a user's processes find each other's copies. Made when it is first needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It could not be made or opened; links are not followed.
    #[error("cannot open the folder {}", path.display())]
    Open {
        /// The folder.
        path: PathBuf,
        /// The kernel's error: ENOTDIR or ELOOP for a link or a file.
        #[source]
        errno: Errno,
    },
    /// Somebody else could write to it or read it.
    #[error(
        "the folder {} belongs to user {owner} and has mode {mode:03o}; it must be this user's ({user}) and of mode \
         700: have it removed, or name another one, such as by XDG_RUNTIME_DIR", path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its access rights.
        mode: u32,
        /// This process's user.
        user: u32,
    },
    /// An entry could not be made or read.
    #[error("cannot use {name:?} in the folder of copies")]
    Entry {
        /// Its name.
        name: String,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
}

impl Folder {
    /// Returns the usual folder: `palimpsest-numa` below `$XDG_RUNTIME_DIR` if that is a folder of this user that
    /// nobody else can change or redirect; else `/run/palimpsest-numa` for root, and `/dev/shm/palimpsest-numa-UID` for
    /// others. Ignores the environment of a set-user-id program.
    pub fn usual() -> Self {
        let told = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !palimpsest_sys::in_secure_execution());
        Self::usual_of(told.map(PathBuf::from), rustix::process::geteuid().as_raw())
    }

    fn usual_of(told: Option<PathBuf>, user: u32) -> Self {
        let path = match told.filter(|path| path.is_absolute() && is_closed(path, user)) {
            Some(path) => path.join("palimpsest-numa"),
            None if user == 0 => PathBuf::from("/run/palimpsest-numa"),
            None => PathBuf::from(format!("/dev/shm/palimpsest-numa-{user}")),
        };
        Self { path }
    }

    /// Returns another folder. Its parent must exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it, and checks what was opened.
    pub(super) fn open(&self) -> Result<OwnedFd, FolderError> {
        let path = || self.path.clone();
        let failed = |errno| FolderError::Open { path: path(), errno };
        match rustix::fs::mkdir(&self.path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let user = rustix::process::geteuid().as_raw();
        let foreign = |found: &Stat| {
            let (owner, mode) = (found.st_uid, found.st_mode & 0o7777);
            FolderError::Foreign { path: path(), owner, mode, user }
        };
        let folder = rustix::fs::openat(CWD, &self.path, flags, Mode::empty()).map_err(|errno| {
            // If it is another user's closed folder, the error says so.
            let found =
                rustix::fs::lstat(&self.path).ok().filter(|found| errno == Errno::ACCESS && found.st_uid != user);
            found.map_or_else(|| failed(errno), |found| foreign(&found))
        })?;
        let found = rustix::fs::fstat(&folder).map_err(failed)?;
        if found.st_uid != user || found.st_mode & 0o077 != 0 {
            return Err(foreign(&found));
        }
        Ok(folder)
    }
}

/// Returns whether this is a folder of the user to which only the user and root can write, and nobody else owns a name
/// on the path to it, links included: a link's owner chooses where it leads. (Root may run with another user's
/// variables.)
fn is_closed(path: &Path, user: u32) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let is_of = |found: &Stat, kind| FileType::from_raw_mode(found.st_mode) == kind;
    let is_safe = |above: &Path| {
        rustix::fs::lstat(above).is_ok_and(|found| {
            let is_shut = found.st_mode & OTHERS_WRITE == 0 || found.st_mode & STICKY != 0;
            [0, user].contains(&found.st_uid) && (is_shut || is_of(&found, FileType::Symlink))
        })
    };
    let is_own =
        |found: Stat| is_of(&found, FileType::Directory) && found.st_uid == user && found.st_mode & OTHERS_WRITE == 0;
    rustix::fs::lstat(path).is_ok_and(is_own) && path.ancestors().skip(1).all(is_safe)
}

/// Returns the entries of a folder; skips names that are no entries.
pub(super) fn names(folder: BorrowedFd<'_>) -> Result<Vec<Name>, FolderError> {
    let failed = |errno| FolderError::Entry { name: ".".to_owned(), errno };
    let mut found = Vec::new();
    for entry in Dir::read_from(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Some file systems do not tell the type; such a name is never opened, so a link does no harm.
        if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
            found.extend(entry.file_name().to_str().ok().and_then(Name::parse));
        }
    }
    Ok(found)
}

/// Removes an entry, if it is still there.
pub(super) fn remove(folder: BorrowedFd<'_>, name: &Name) {
    // If this fails, the next process that searches tries again.
    let _ = rustix::fs::unlinkat(folder, name.to_string(), AtFlags::empty());
}

/// This process's entry, with the descriptor that it offers. Dropping this removes both.
#[derive(Debug)]
pub(crate) struct Registered {
    folder: Folder,
    name: Name,
    file: SealedFile,
}

impl Registered {
    /// Enters in the folder that this process has a copy.
    pub(super) fn new(
        place: &Folder,
        folder: BorrowedFd<'_>,
        key: &Key,
        node: NodeId,
        file: SealedFile,
    ) -> Result<Self, FolderError> {
        let name = Name::new(key, node, file.descriptor(), file.id().inode);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(folder, name.to_string(), flags, Mode::RUSR | Mode::WUSR) {
            // The entry of a killed process with the same number says the same.
            Ok(_) | Err(Errno::EXIST) => Ok(Self { folder: place.clone(), name, file }),
            Err(errno) => Err(FolderError::Entry { name: name.to_string(), errno }),
        }
    }
}

impl Registered {
    /// Returns the object that it offers.
    pub(crate) fn file(&self) -> &SealedFile {
        &self.file
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A forked child leaves its parent's entry alone; in another pid name space it can have its parent's number.
        if self.name.process == rustix::process::getpid()
            && self.name.namespace == pid_namespace()
            && let Ok(folder) = self.folder.open()
        {
            remove(rustix::fd::AsFd::as_fd(&folder), &self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use palimpsest_sys::memory::sealed::SealedBytes;
    use rustix::fd::AsFd;

    use super::*;

    #[test]
    fn a_folder_that_the_environment_names_is_used_only_if_it_is_the_users_own() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
        let parent = tempfile::tempdir().expect("a folder");
        let user = fs::metadata(parent.path()).expect("there").uid();
        let (named, link) = (parent.path().join("named"), parent.path().join("link"));
        fs::create_dir(&named).expect("made");
        symlink(&named, &link).expect("made");
        let closed = |mode, path: &Path, user| {
            fs::set_permissions(&named, fs::Permissions::from_mode(mode)).expect("own");
            is_closed(path, user)
        };
        assert!(closed(0o700, &named, user) && closed(0o755, &named, user));
        assert!(!closed(0o777, &named, user) && !closed(0o770, &named, user), "others can write to it");
        assert!(!closed(0o700, &named, user + 1), "another's");
        assert!(!closed(0o700, &link, user), "a link");
        assert!(!is_closed(&parent.path().join("absent"), user));
        let shared = Path::new("/dev/shm/palimpsest-numa-65533");
        assert_eq!(Folder::usual_of(Some(named.clone()), 65533).path(), shared);
        assert_eq!(Folder::usual_of(None, 65533).path(), shared);
        fs::set_permissions(&named, fs::Permissions::from_mode(0o777)).expect("own");
        let below = named.join("below");
        fs::create_dir(&below).expect("made");
        fs::set_permissions(&below, fs::Permissions::from_mode(0o700)).expect("own");
        assert!(!is_closed(&below, user), "others can put another in its place");
        assert_eq!(Folder::usual_of(Some(named.clone()), 0).path(), Path::new("/run/palimpsest-numa"));
        assert!(closed(0o700, &below, user));
        assert_eq!(Folder::usual_of(Some(named.clone()), user).path(), named.join("palimpsest-numa"));
    }

    #[test]
    fn an_entry_of_another_name_space_with_this_number_is_left_alone() {
        let parent = tempfile::tempdir().expect("a folder");
        let place = Folder::at(parent.path().join("copies"));
        let opened = place.open().expect("made");
        let (_bytes, file, _) = SealedBytes::with_file(b"content", None).expect("made");
        let key = Key::of(b"content");
        let mut entry = Registered::new(&place, opened.as_fd(), &key, NodeId(0), file).expect("made");
        entry.name.namespace += 1;
        let other = place.path().join(entry.name.to_string());
        fs::write(&other, "").expect("it can be written");
        drop(entry);
        assert!(other.exists());
    }
}
