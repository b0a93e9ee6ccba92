//! The object as a file in one of the user's folders: `FOLDER/ID/NAME`, where ID is a name for its bytes.
//!
//! The folder is trusted only if nobody but root and this user could have changed it ([`place`](super::place)), and an
//! existing file only if it has all of the object's bytes. Anything else under the name (a file half-written, damaged,
//! or planted) is replaced by renaming a new file over it. No file is ever written in place: a running program may have
//! it mapped.

use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, fstatvfs, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::old;
use super::place::{Refused, check_names, check_path, is_own, open_folder, rights};
use crate::run::is_one_entry;

/// Puts `bytes` at `FOLDER/ID/NAME`, if they are not there yet. Returns the path, which contains no symbolic link.
///
/// # Errors
///
/// The folder cannot be trusted or written to, or nothing in it could be mapped executable.
pub(super) fn put(folder: &Path, id: &str, name: &str, bytes: &[u8]) -> Result<PathBuf, Refused> {
    check_names(folder)?;
    // Before anything is made: root, with another user's variables, must leave nothing where that user's links lead.
    if let Some(there) = folder.ancestors().skip(1).find_map(|above| fs::canonicalize(above).ok()) {
        check_path(&there.join(id))?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // In a folder that everybody may write to, somebody else may have taken the last name first.
    if !fs::symlink_metadata(folder)?.is_dir() {
        return Err(Refused::NoFolder);
    }
    let folder = fs::canonicalize(folder)?;
    check_path(&folder)?;
    let path = folder.join(id).join(name);
    if !is_one_entry(path.as_os_str()) {
        return Err(Refused::Name);
    }
    let opened = open_folder(rustix::fs::CWD, &folder)?;
    if fstatvfs(&opened).map_err(io::Error::from)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(Refused::NoExec);
    }
    let within = own_folder(&opened, id)?;
    if has_bytes(&within, name, bytes) {
        old::note_use(&within, name);
    } else {
        replace(&within, name, bytes)?;
        old::remove(&opened, &folder, id, name);
    }
    Ok(path)
}

fn own_folder(above: &File, name: &str) -> Result<File, Refused> {
    match mkdirat(above, name, Mode::RWXU) {
        // On a read-only file system an older run may have left it.
        Ok(()) | Err(Errno::EXIST | Errno::ROFS) => open_folder(above, name),
        Err(errno) => Err(io::Error::from(errno).into()),
    }
}

/// Whether nobody else can write to the file, and it has these bytes.
fn has_bytes(folder: &File, name: &str, bytes: &[u8]) -> bool {
    // A FIFO must not block us.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return false };
    let file = File::from(file);
    let Ok(found) = file.metadata() else { return false };
    let safe = found.is_file() && is_own(found.uid()) && found.mode() & 0o022 == 0;
    let mut there = Vec::with_capacity(bytes.len());
    // One byte more than expected is one too many.
    let limit = bytes.len() as u64 + 1;
    safe && found.len() == bytes.len() as u64 && file.take(limit).read_to_end(&mut there).is_ok() && there == bytes
}

/// Writes a new file and gives it the name.
fn replace(folder: &File, name: &str, bytes: &[u8]) -> Result<(), Refused> {
    // Past the limit the kernel would send SIGXFSZ.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < bytes.len() as u64) {
        return Err(io::Error::from(Errno::FBIG).into());
    }
    // Process numbers repeat in other namespaces, which may share the folder.
    let made = format!(".{name}-{:016x}", RandomState::new().build_hasher().finish());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, made.as_str(), flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
    let mut file = File::from(file);
    let (_, files) = rights();
    let written = file
        .write_all(bytes)
        .and_then(|()| file.set_permissions(Permissions::from_mode(files)))
        .and_then(|()| Ok(renameat(folder, made.as_str(), folder, name)?));
    if written.is_err() {
        let _gone = unlinkat(folder, made.as_str(), AtFlags::empty());
    }
    Ok(written?)
}
