//! Whether a folder can be trusted with the object: only root and this user can change what is in it.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use palimpsest_sys::proc::owners::Numbers;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Why a folder will not do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("cannot be used ({source})")]
    File {
        #[from]
        source: io::Error,
    },
    #[error("is a symbolic link or no folder")]
    NoFolder,
    #[error("belongs to {}", called(*owner))]
    Foreign { owner: u32 },
    #[error("is below {}, which belongs to {}", above.display(), called(*owner))]
    BelowForeign { above: PathBuf, owner: u32 },
    #[error("can be written by others (mode {mode:o})")]
    Open { mode: u32 },
    #[error("is below {}, which others can write to (mode {mode:o})", above.display())]
    BelowOpen { above: PathBuf, mode: u32 },
    #[error("is mounted with noexec")]
    NoExec,
    #[error("has a name that LD_PRELOAD does not take literally (a colon, a blank or a dollar sign)")]
    Name,
}

const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Whether what is shown as this user's is his: a user namespace shows one number for all users that it does not know.
pub(super) fn is_own(owner: u32) -> bool {
    owner == geteuid().as_raw() && Numbers::of_users().is_known(owner)
}

fn is_trusted(owner: u32) -> bool {
    is_own(owner) || owner == 0 && Numbers::of_users().is_known(0)
}

fn called(owner: u32) -> String {
    if Numbers::of_users().is_known(owner) {
        format!("user {owner}")
    } else {
        format!("somebody whom this user namespace does not know (shown as user {owner})")
    }
}

/// Checks every folder above `path`, which has no symbolic links: whoever can rename one of them can replace the file.
///
/// In a sticky folder such as `/tmp` others can make entries, but can neither rename nor remove ours.
///
/// # Errors
///
/// The folder that is not safe.
pub(super) fn check_path(path: &Path) -> Result<(), Refused> {
    for above in path.ancestors().skip(1) {
        let found = fs::symlink_metadata(above)?;
        if !is_trusted(found.uid()) {
            return Err(Refused::BelowForeign { above: above.into(), owner: found.uid() });
        }
        if found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0 {
            return Err(Refused::BelowOpen { above: above.into(), mode: found.mode() & 0o7777 });
        }
    }
    Ok(())
}

/// Checks who has made each existing name on the way to `path`, links too: their owner chooses where they lead.
///
/// # Errors
///
/// The name that belongs to another user.
pub(super) fn check_names(path: &Path) -> Result<(), Refused> {
    for above in path.ancestors().skip(1) {
        match fs::symlink_metadata(above) {
            Ok(found) if !is_trusted(found.uid()) => {
                return Err(Refused::BelowForeign { above: above.into(), owner: found.uid() });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks a folder of ours itself.
///
/// # Errors
///
/// Somebody else has made it, or can write to it.
pub(super) fn check_own(found: &Metadata) -> Result<(), Refused> {
    if !found.is_dir() {
        return Err(Refused::NoFolder);
    }
    if !is_own(found.uid()) {
        return Err(Refused::Foreign { owner: found.uid() });
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(Refused::Open { mode: found.mode() & 0o7777 });
    }
    Ok(())
}

/// Root's programs may become another user's, who must be able to read.
pub(super) fn rights() -> (u32, u32) {
    if geteuid().is_root() { (0o755, 0o444) } else { (0o700, 0o400) }
}

/// Opens a folder of ours, and gives it its rights.
///
/// # Errors
///
/// It is not a folder, or somebody else can change it.
pub(super) fn open_folder(at: impl AsFd, path: impl rustix::path::Arg) -> Result<File, Refused> {
    let opened = open_as_it_is(at, path)?;
    let (folders, _) = rights();
    if opened.metadata()?.mode() & 0o777 != folders {
        // Made just now, subject to the umask. One on a read-only file system stays as it is.
        let _unchanged = opened.set_permissions(Permissions::from_mode(folders));
    }
    Ok(opened)
}

/// Opens a folder of this user's, which another program may have made.
///
/// # Errors
///
/// It is not a folder, or somebody else can change it.
pub(super) fn open_as_it_is(at: impl AsFd, path: impl rustix::path::Arg) -> Result<File, Refused> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened: OwnedFd = match openat(at, path, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(Refused::NoFolder),
        opened => opened.map_err(io::Error::from)?,
    };
    let opened = File::from(opened);
    check_own(&opened.metadata()?)?;
    Ok(opened)
}

/// Whether only root and this user can write to this file.
pub(super) fn file_is_safe(path: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(path) else { return false };
    let folder = path.parent().and_then(|folder| fs::symlink_metadata(folder).ok());
    let folder_is_safe = folder.is_some_and(|found| found.is_dir() && is_closed(&found));
    found.is_file() && is_closed(&found) && folder_is_safe
}

fn is_closed(found: &Metadata) -> bool {
    is_trusted(found.uid()) && found.mode() & OTHERS_WRITE == 0
}
