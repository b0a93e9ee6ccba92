//! Files that observers append to.
//!
//! Tools fix their names, in directories that others can write to, so opening refuses what somebody else put there. A
//! write beyond the file size limit is refused too, because the kernel answers it with SIGXFSZ, which kills the
//! process.

use std::{
    ffi::OsStr,
    fs, io,
    io::IoSlice,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
    process::Resource,
    time::{ClockId, clock_gettime},
};

/// How to treat a file that somebody in this process is writing to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Existing {
    /// Append to it: its format lets several writers share it.
    Extend,
    /// Refuse it: its format allows one writer.
    Refuse,
}

/// Why a file of an observer cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenFileError {
    #[error("cannot open {}; choose a directory that this user can write to", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: Errno,
    },
    #[error("cannot prepare {}", path.display())]
    Prepare {
        path: PathBuf,
        #[source]
        source: Errno,
    },
    #[error("{} is a {file_type:?} and not a regular file; remove it", path.display())]
    NotRegular { path: PathBuf, file_type: FileType },
    #[error("{} belongs to user {owner} and not to user {user}; remove it or choose another directory", path.display())]
    ForeignOwner { path: PathBuf, owner: u32, user: u32 },
    #[error("{} has {links} hard links; remove it", path.display())]
    Linked { path: PathBuf, links: u64 },
    #[error(
        "{} is already written by another code generator in this process; choose another directory",
        path.display()
    )]
    InUse { path: PathBuf },
}

/// A record could not be appended.
#[derive(Debug, thiserror::Error)]
pub(super) enum AppendError {
    #[error("cannot append {len} bytes")]
    Write {
        len: u64,
        #[source]
        source: Errno,
    },
    #[error("only {written} of {len} bytes could be appended; free space on the file system")]
    Short { len: u64, written: usize },
    #[error("{len} more bytes would pass the file size limit of {limit} bytes; raise RLIMIT_FSIZE (ulimit -f)")]
    OverLimit { len: u64, limit: u64 },
}

/// A file opened by [`OutputFile::open`].
#[derive(Debug)]
pub(super) struct OutputFile {
    fd: OwnedFd,
    /// Bytes in the file, as far as this writer knows. A thread that appends adds to it first, and subtracts again if
    /// that fails.
    len: AtomicU64,
}

impl OutputFile {
    /// Opens `path` for reading and appending, creating it with mode 0600. A file left by an earlier process is
    /// emptied; with [`Existing::Refuse`] one left by an earlier program of this process, too. What somebody in this
    /// process has open is never emptied.
    ///
    /// # Errors
    /// The file cannot be opened, is not a plain file of this user, or is in use and `existing` refuses that.
    pub(super) fn open(path: &Path, existing: Existing) -> Result<Self, OpenFileError> {
        let mode = Mode::RUSR | Mode::WUSR;
        // NONBLOCK: a device or pipe planted under this name must not block the open before it is refused.
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY
            | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, mode)
            .map_err(|source| OpenFileError::Open { path: path.to_owned(), source })?;
        let prepare = |source| OpenFileError::Prepare { path: path.to_owned(), source };
        let stat = rustix::fs::fstat(&fd).map_err(prepare)?;
        refuse_foreign(path, &stat)?;
        rustix::fs::fchmod(&fd, mode).map_err(prepare)?;
        let mut len = u64::try_from(stat.st_size).unwrap_or(0);
        let may_be_stale = || existing == Existing::Refuse || is_older_than_this_process(&stat);
        if len > 0 && may_be_stale() && is_closed(&fd, &stat) {
            rustix::fs::ftruncate(&fd, 0).map_err(prepare)?;
            len = 0;
        }
        if len > 0 && existing == Existing::Refuse {
            return Err(OpenFileError::InUse { path: path.to_owned() });
        }
        Ok(OutputFile { fd, len: AtomicU64::new(len) })
    }

    /// Appends `parts` as one record: records of several threads do not mix, because the kernel holds the inode's lock
    /// over an appending write.
    ///
    /// # Errors
    /// The write would exceed the limit, fails, or stores only a part of the record.
    pub(super) fn append(&self, parts: &[&[u8]]) -> Result<(), AppendError> {
        // Asked each time: beyond the limit, which the program may lower, a write ends the process.
        self.append_within(rustix::process::getrlimit(Resource::Fsize).current, parts)
    }

    fn append_within(&self, limit: Option<u64>, parts: &[&[u8]]) -> Result<(), AppendError> {
        let len = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        // Relaxed: the count publishes nothing; concurrent writers add up.
        let before = self.len.fetch_add(len, Relaxed);
        if let Some(limit) = limit {
            // Others append to the map of a process, too: V8, a JVM.
            let there = rustix::fs::fstat(&self.fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
            if before.max(there).saturating_add(len) > limit {
                self.len.fetch_sub(len, Relaxed);
                return Err(AppendError::OverLimit { len, limit });
            }
        }
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let written = loop {
            match rustix::io::writev(&self.fd, &slices) {
                Err(Errno::INTR) => {}
                Err(source) => {
                    self.len.fetch_sub(len, Relaxed);
                    return Err(AppendError::Write { len, source });
                }
                Ok(written) => break written,
            }
        };
        self.len.fetch_sub(len - written as u64, Relaxed);
        if written as u64 == len { Ok(()) } else { Err(AppendError::Short { len, written }) }
    }
}

impl AsFd for OutputFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn refuse_foreign(path: &Path, stat: &Stat) -> Result<(), OpenFileError> {
    let path = path.to_owned();
    let file_type = FileType::from_raw_mode(stat.st_mode);
    if file_type != FileType::RegularFile {
        return Err(OpenFileError::NotRegular { path, file_type });
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(OpenFileError::ForeignOwner { path, owner: stat.st_uid, user });
    }
    // The width of the link count differs between architectures.
    #[expect(clippy::useless_conversion, reason = "the link count has 32 bits on AArch64")]
    let links = u64::from(stat.st_nlink);
    if links > 1 {
        return Err(OpenFileError::Linked { path, links });
    }
    Ok(())
}

/// Returns whether the file was last written before this process started, that is, by an earlier process with the same
/// id. If unknown, the file counts as younger.
fn is_older_than_this_process(stat: &Stat) -> bool {
    /// Process start times are given in clock ticks, file times in ticks of a coarser clock.
    const GRANULARITY: Duration = Duration::from_secs(1);

    let Ok(seconds) = u64::try_from(stat.st_mtime) else {
        return true;
    };
    // A time that no clock reaches is none of before.
    let modified = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds).saturating_add(GRANULARITY));
    modified.is_some_and(|modified| process_start().is_ok_and(|start| modified < start))
}

/// Returns whether nobody else in this process has the file open: who keeps it open now writes it. `exec` closes it and
/// keeps the process's id and start time, and a clock may be set, so that times alone do not tell. If unknown, somebody
/// has.
///
/// It proves nothing of files that several generators extend, of which some open them for each entry.
fn is_closed(fd: &OwnedFd, stat: &Stat) -> bool {
    let is_of_another = |descriptor: &Path| {
        let is_own = descriptor.file_name().and_then(OsStr::to_str) == Some(&fd.as_raw_fd().to_string());
        // Only files have paths: nothing else is asked what it is. One that is closed meanwhile does not count.
        let has_path = || fs::read_link(descriptor).is_ok_and(|target| target.is_absolute());
        let is_it =
            || fs::metadata(descriptor).is_ok_and(|found| (found.dev(), found.ino()) == (stat.st_dev, stat.st_ino));
        !is_own && has_path() && is_it()
    };
    let Ok(descriptors) = fs::read_dir("/proc/thread-self/fd") else { return false };
    let Ok(descriptors) = descriptors.collect::<io::Result<Vec<_>>>() else { return false };
    !descriptors.iter().any(|descriptor| is_of_another(&descriptor.path()))
}

/// Returns when this process was created, from /proc/self/stat (kernel: fs/proc/array.c, field 22 of proc_pid_stat(5),
/// in clock ticks since boot).
fn process_start() -> io::Result<SystemTime> {
    /// Fields are counted from 1, and the first one after the command is the third.
    const START_TIME_AFTER_COMMAND: usize = 22 - 3;

    let stat = fs::read_to_string("/proc/self/stat")?;
    // The command may contain blanks and parentheses; only numbers follow its last parenthesis.
    let ticks: u64 = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(START_TIME_AFTER_COMMAND))
        .and_then(|field| field.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    let started = Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::try_from(now).map_err(|_| io::ErrorKind::InvalidData)?;
    SystemTime::now().checked_sub(now.saturating_sub(started)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("temporary directory")
    }

    #[test]
    fn creates_with_mode_0600_and_appends() {
        let directory = directory();
        let path = directory.path().join("out");
        let file = OutputFile::open(&path, Existing::Refuse).expect("open");
        file.append(&[b"one ", b"two\n"]).expect("append");
        file.append(&[b"three\n"]).expect("append");
        assert_eq!(fs::read(&path).expect("read"), b"one two\nthree\n");
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn a_file_that_somebody_writes_is_extended_or_refused() {
        let directory = directory();
        let path = directory.path().join("out");
        let mut other = fs::File::create(&path).expect("create");
        other.write_all(b"first\n").expect("write");
        let file = OutputFile::open(&path, Existing::Extend).expect("open");
        file.append(&[b"second\n"]).expect("append");
        assert_eq!(fs::read(&path).expect("read"), b"first\nsecond\n");
        assert!(matches!(OutputFile::open(&path, Existing::Refuse), Err(OpenFileError::InUse { .. })));
        drop(other);
        assert!(matches!(OutputFile::open(&path, Existing::Refuse), Err(OpenFileError::InUse { .. })), "by us");
    }

    /// What a program leaves behind that executes itself: descriptors are closed, and the process is as old as before.
    #[test]
    fn a_young_file_that_nobody_has_open_is_emptied_unless_others_extend_it() {
        let directory = directory();
        let path = directory.path().join("out");
        for (existing, expected) in [(Existing::Refuse, "new\n"), (Existing::Extend, "there\nnew\n")] {
            fs::write(&path, "there\n").expect("write");
            let file = OutputFile::open(&path, existing).expect("open");
            file.append(&[b"new\n"]).expect("append");
            assert_eq!(fs::read_to_string(&path).expect("read"), expected);
        }
    }

    #[test]
    fn a_file_of_an_earlier_process_is_emptied() {
        let directory = directory();
        let path = directory.path().join("out");
        fs::write(&path, "stale\n").expect("write");
        let file = fs::File::options().write(true).open(&path).expect("open");
        file.set_modified(SystemTime::now() - Duration::from_secs(86_400 * 365)).expect("set time");
        // The clock was set; or a process of the same number in an outer namespace started earlier.
        let refused = OutputFile::open(&path, Existing::Refuse);
        assert!(matches!(refused, Err(OpenFileError::InUse { .. })), "{refused:?}");
        OutputFile::open(&path, Existing::Extend).expect("open");
        assert_eq!(fs::read(&path).expect("read"), b"stale\n");
        drop(file);
        OutputFile::open(&path, Existing::Extend).expect("open");
        assert_eq!(fs::read(&path).expect("read"), b"");
    }

    #[test]
    fn planted_files_are_refused() {
        let directory = directory();
        let target = directory.path().join("target");
        fs::write(&target, "precious").expect("write");

        let link = directory.path().join("symlink");
        symlink(&target, &link).expect("symlink");
        assert!(matches!(
            OutputFile::open(&link, Existing::Extend),
            Err(OpenFileError::Open { source: Errno::LOOP, .. })
        ));

        let hard = directory.path().join("hard");
        fs::hard_link(&target, &hard).expect("link");
        assert!(matches!(OutputFile::open(&hard, Existing::Extend), Err(OpenFileError::Linked { links: 2, .. })));

        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("mknod");
        assert!(matches!(
            OutputFile::open(&pipe, Existing::Extend),
            Err(OpenFileError::NotRegular { file_type: FileType::Fifo, .. })
        ));
        assert_eq!(fs::read(&target).expect("read"), b"precious");
    }

    #[test]
    fn a_foreign_file_is_refused() {
        let directory = directory();
        let path = directory.path().join("out");
        fs::write(&path, "theirs").expect("write");
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            eprintln!("skipped: a_foreign_file_is_refused: only root can give a file away");
            return;
        }
        assert!(matches!(
            OutputFile::open(&path, Existing::Extend),
            Err(OpenFileError::ForeignOwner { owner: 12_345, .. })
        ));
    }

    #[test]
    fn the_size_limit_is_an_error_and_not_a_signal() {
        let directory = directory();
        let path = directory.path().join("out");
        let file = OutputFile::open(&path, Existing::Extend).expect("open");
        file.append_within(Some(8), &[b"12345678"]).expect("append");
        let refused = file.append_within(Some(8), &[b"9"]);
        assert!(matches!(refused, Err(AppendError::OverLimit { len: 1, limit: 8 })));
        assert_eq!(fs::read(&path).expect("read"), b"12345678");
        // Also what others have appended counts.
        fs::write(&path, b"123456789012").expect("writable");
        let refused = file.append_within(Some(12), &[b"3"]);
        assert!(matches!(refused, Err(AppendError::OverLimit { len: 1, limit: 12 })));
        fs::write(&path, b"1").expect("writable");
        file.append_within(Some(12), &[b"2345"]).expect("there is room again, and what was refused does not count");
    }

    /// Fails on: a limit that is asked for when the file is opened. Beyond it a write ends the child by SIGXFSZ.
    #[test]
    fn a_limit_that_is_lowered_later_counts() {
        let directory = directory();
        let path = directory.path().join("out");
        let file = OutputFile::open(&path, Existing::Extend).expect("open");
        file.append(&[b"12345678"]).expect("append");
        // SAFETY: the child makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 8, rlim_max: 8 };
            // SAFETY: lowers a limit of this child alone; the call only reads it.
            let lowered = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } == 0;
            let is_told = matches!(file.append(&[b"9"]), Err(AppendError::OverLimit { len: 1, limit: 8 }));
            // SAFETY: ends the child without the harness's exit handlers.
            unsafe { libc::_exit(i32::from(!lowered || !is_told)) };
        }
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it ended by signal {}", libc::WTERMSIG(status));
    }

    #[test]
    fn this_process_has_started_already() {
        let start = process_start().expect("start time");
        let age = SystemTime::now().duration_since(start).expect("in the past");
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
}
