//! Removes what earlier versions have left in the cache folder.
//!
//! `LD_PRELOAD` names a file for as long as any program lives that has inherited it, and the dynamic linker complains
//! on standard error if it is gone. So a file is removed only if no visible process has it mapped or in its
//! environment, and if no program was started with it for [`REST`]: other processes cannot be seen from within a
//! container, hide their memory, or are about to be started. This runs when a new file is made, which is once for each
//! version.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, openat, unlinkat, utimensat,
};

use super::place::{is_own, open_as_it_is};

/// How long nobody must have been started with a file.
pub(super) const REST: Duration = Duration::from_secs(90 * 24 * 3600);

/// More than a process with the usual most mappings has in a file of `/proc`.
const MOST_TEXT: u64 = 256 << 20;

/// Notes that a program is started with the file.
pub(super) fn note_use(folder: &File, name: &str) {
    let time = |special| Timespec { tv_sec: 0, tv_nsec: special };
    let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    // On a read-only file system nothing is removed either.
    let _unchanged = utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Removes `FOLDER/ID/NAME` for every ID except `kept`, and the folders. What cannot be removed, or was not left by
/// this program, stays.
pub(super) fn remove(opened: &File, folder: &Path, kept: &str, name: &str) {
    let Ok(entries) = Dir::read_from(opened) else { return };
    for entry in entries.flatten() {
        let Ok(id) = entry.file_name().to_str() else { continue };
        // `.` and `..` are not ours.
        if id == kept || id.starts_with('.') {
            continue;
        }
        let Ok(within) = open_as_it_is(opened, id) else { continue };
        if is_resting(&within, name) && !is_used(&folder.join(id).join(name)) && is_resting(&within, name) {
            let _stays = unlinkat(&within, name, AtFlags::empty());
            // Not if anything else is in it.
            let _stays = unlinkat(opened, id, AtFlags::REMOVEDIR);
        }
    }
}

/// Whether this is a file of ours with which nobody was started lately.
fn is_resting(within: &File, name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(within, name, flags, Mode::empty()) else { return false };
    let Ok(found) = File::from(file).metadata() else { return false };
    // A clock that was set back is no reason.
    let age = found.modified().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
    found.is_file() && found.nlink() == 1 && is_own(found.uid()) && age.is_some_and(|age| age > REST)
}

/// Whether a visible process has the file mapped or in its environment.
fn is_used(path: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let numbered = |entry: &fs::DirEntry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit);
    processes.flatten().filter(numbered).any(|process| is_used_by(&process.path(), path.as_os_str().as_bytes()))
}

fn is_used_by(process: &Path, path: &[u8]) -> bool {
    let has = |text: Vec<u8>| text.windows(path.len()).any(|part| part == path);
    // A process that hides its memory, or has ended, does not tell.
    ["maps", "environ"].iter().any(|file| read(&process.join(file)).is_ok_and(has))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MOST_TEXT).read_to_end(&mut text)?;
    Ok(text)
}
