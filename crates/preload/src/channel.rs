//! Writes to the user without harming the program: never to a file that the program has put in place of ours, and never
//! at the price of a signal.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use palimpsest_sys::Causes;
use palimpsest_sys::brief_file::BriefFile;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, retry_on_intr, write};

use crate::arch::system_call;
use crate::settings::{CLOSED, Descriptor, ReportTo};

/// A descriptor as it was when the program started. Programs close descriptors, and what they open next gets the same
/// number: a line of ours would damage their data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Noted {
    number: RawFd,
    device: u64,
    inode: u64,
}

impl Noted {
    /// Notes what `number` stands for; `None` if it is closed.
    pub(crate) fn now(number: RawFd) -> Option<Self> {
        let (device, inode) = identity(number)?;
        Some(Self { number, device, inode })
    }

    /// Writes `bytes` if the descriptor still stands for the same file.
    ///
    /// # Errors
    ///
    /// It does not (`EBADF`), or it cannot be written. A pipe without a reader causes no signal.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Errno> {
        write_without_signals(self.checked()?, bytes)
    }

    /// The same for a caller that blocks all signals, or has a use for none: makes no other calls than `fstat` and
    /// `write`.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub(crate) fn write_with_signals_blocked(self, bytes: &[u8]) -> Result<(), Errno> {
        write_all(self.checked()?, bytes)
    }

    /// Returns the descriptor if it still stands for the same file.
    fn checked<'fd>(self) -> Result<BorrowedFd<'fd>, Errno> {
        if identity(self.number) != Some((self.device, self.inode)) {
            return Err(Errno::BADF);
        }
        // SAFETY: it was open a moment ago. If another thread closes it meanwhile, the kernel answers with an error.
        Ok(unsafe { BorrowedFd::borrow_raw(self.number) })
    }

    /// Whether a line would be taken at once. Makes a system call that does not wait, and leaves `errno` alone.
    pub(crate) fn has_room(self) -> bool {
        let mut asked = libc::pollfd { fd: self.number, events: libc::POLLOUT, revents: 0 };
        let time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (place, time) = ((&raw mut asked).expose_provenance(), (&raw const time).expose_provenance());
        // SAFETY: what is asked for and the time outlive the call.
        unsafe { system_call(libc::SYS_ppoll, [place, 1, time, 0, 0, 0]) != 0 }
    }
}

fn identity(number: RawFd) -> Option<(u64, u64)> {
    if number < 0 {
        return None;
    }
    // SAFETY: the number is not -1; the call only asks the kernel about it, which answers EBADF if it is closed.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(number) }).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Returns the descriptor for a report, if it goes to one that is open, and that nobody has put something else behind
/// since `palimpsest run` began.
pub(crate) fn noted(place: &ReportTo, standard_error: Option<Noted>) -> Option<Noted> {
    match place {
        ReportTo::Descriptor(Descriptor { number, file }) => {
            Noted::now(*number).filter(|noted| file.is_none_or(|file| file == (noted.device, noted.inode)))
        }
        ReportTo::StandardError => standard_error,
        ReportTo::Nowhere | ReportTo::File(_) => None,
    }
}

/// Returns the number of a descriptor that somebody has named for the report, and that was never open; `found` is what
/// [`noted`] has returned. Programs that close those that they do not know, or put others in their place, do no wrong.
pub(crate) fn never_open(place: &ReportTo, found: Option<Noted>) -> Option<RawFd> {
    match (place, found) {
        (ReportTo::Descriptor(Descriptor { number, file: None | Some(CLOSED) }), None) => Some(*number),
        _ => None,
    }
}

/// Writes a report where the user wants it; `descriptor` is what [`noted`] has returned. If a file cannot be written,
/// says so on standard error.
pub(crate) fn report(
    place: &ReportTo,
    descriptor: Option<Noted>,
    standard_error: Option<Noted>,
    text: impl FnOnce() -> String,
) {
    match place {
        ReportTo::Nowhere => {}
        // A reader that is gone wants no report.
        ReportTo::StandardError | ReportTo::Descriptor(_) => {
            let _ = descriptor.map(|descriptor| descriptor.write(text().as_bytes()));
        }
        ReportTo::File(path) => {
            if let Err(error) = append(path, text().as_bytes()) {
                let path = path.display();
                let line = format!("palimpsest: PALIMPSEST_REPORT={path}: not written: {}\n", Causes(&error));
                let _ = standard_error.map(|descriptor| descriptor.write(line.as_bytes()));
            }
        }
    }
}

/// A longer name of a file takes the heap.
const LONGEST: usize = 255;

/// Writes a report as [`report`] does, but uses no heap, and says nothing where that fails: for a child, which has all
/// signals blocked.
pub(crate) fn report_in_child(place: &ReportTo, descriptor: Option<Noted>, text: &[u8]) {
    match place {
        ReportTo::File(path) if path.as_os_str().len() <= LONGEST => {
            let _ = append_with_signals_blocked(path, text);
        }
        ReportTo::StandardError | ReportTo::Descriptor(_) => {
            let _ = descriptor.map(|descriptor| descriptor.write_with_signals_blocked(text));
        }
        ReportTo::Nowhere | ReportTo::File(_) => {}
    }
}

/// Why a report is not written to a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// The file cannot be opened, made or written.
    #[error("cannot {action}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The path is a link, whose maker would choose where the report goes.
    #[error("it is a symbolic link; name the file itself, or say fd:NUMBER")]
    Link,
    /// Somebody else could read the addresses in the report, or has put his file in place of ours.
    #[error("it belongs to user {owner} and not to this program's user {own}; name a file of your own")]
    NotOwn {
        /// The owner's number.
        owner: u32,
        /// The effective user of this process.
        own: u32,
    },
    /// It may be anybody's under another of its names.
    #[error("it has {links} names (hard links); name a file of your own")]
    ManyNames {
        /// How many.
        links: libc::nlink_t,
    },
    /// A folder, a socket or a disk.
    #[error("it is no file, pipe or terminal to which lines can be appended")]
    Kind,
}

/// Appends `bytes` to the file `path`. If it does not exist, makes it for this user only.
///
/// In a folder where others may write, such as `/tmp`, somebody else may have put something under this name. So links
/// are not followed, and the file must belong to this user and have no other name.
///
/// # Errors
///
/// See [`AppendError`]; nothing is written.
pub(crate) fn append(path: &Path, bytes: &[u8]) -> Result<(), AppendError> {
    let file = open_report(path)?;
    write_without_signals(file.as_fd(), bytes).map_err(|source| AppendError::File { action: "write it", source })
}

/// The same for a caller that blocks all signals, or has a use for none.
///
/// # Errors
///
/// As for [`append`].
fn append_with_signals_blocked(path: &Path, bytes: &[u8]) -> Result<(), AppendError> {
    let file = open_report(path)?;
    write_all(file.as_fd(), bytes).map_err(|source| AppendError::File { action: "write it", source })
}

/// How often a file may vanish or appear between two looks.
const TRIES: usize = 16;

fn open_report(path: &Path) -> Result<OwnedFd, AppendError> {
    // A FIFO without a reader would block the program for ever, and a terminal could become its controlling one.
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut source = Errno::AGAIN;
    for _ in 0..TRIES {
        match open(path, flags, Mode::empty()) {
            Ok(file) => return checked(file),
            Err(Errno::LOOP) => return Err(AppendError::Link),
            Err(Errno::NOENT) => {}
            Err(source) => return Err(AppendError::File { action: "open it", source }),
        }
        // `EXCL` opens no existing file or link, so that the file is new and ours.
        match open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Ok(file) => return Ok(file),
            Err(Errno::EXIST) => source = Errno::EXIST,
            Err(source) => return Err(AppendError::File { action: "make it", source }),
        }
    }
    Err(AppendError::File { action: "open it", source })
}

/// Returns the file, if nobody else can have put it there.
fn checked(file: OwnedFd) -> Result<OwnedFd, AppendError> {
    // Not by the standard library, which makes a call that a filter may kill for (`statx`).
    let found = fstat(&file).map_err(|source| AppendError::File { action: "look at it", source })?;
    let own = own_user();
    match (FileType::from_raw_mode(found.st_mode), found.st_uid, found.st_nlink) {
        // Others cannot make devices.
        (FileType::CharacterDevice, ..) => Ok(file),
        (FileType::RegularFile | FileType::Fifo, owner, _) if owner != own => Err(AppendError::NotOwn { owner, own }),
        (FileType::RegularFile | FileType::Fifo, _, links @ 2..) => Err(AppendError::ManyNames { links }),
        (FileType::RegularFile | FileType::Fifo, ..) => Ok(file),
        _ => Err(AppendError::Kind),
    }
}

/// Returns the effective user id, as `/proc` tells: nobody has tried `geteuid` under a filter. Without `/proc`, where
/// all that there is to write is a refusal, the kernel is asked.
fn own_user() -> u32 {
    let mut status = [0; 4096];
    let told = BriefFile::read_short(c"/proc/thread-self/status", &mut status).ok().and_then(user);
    told.unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

fn user(status: &[u8]) -> Option<u32> {
    const BEFORE: &[u8] = b"Uid:\t";
    let ids = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(BEFORE))?;
    // The real one comes first.
    str::from_utf8(ids.split(|&byte| byte == b'\t').nth(1)?).ok()?.parse().ok()
}

/// Writes everything, and takes back the signals that a write can bring upon its thread.
fn write_without_signals(descriptor: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let held = Held::now();
    write_all(descriptor, bytes)?;
    drop(held);
    Ok(())
}

fn write_all(descriptor: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = retry_on_intr(|| write(descriptor, bytes))?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// What a write can send: to who writes to a pipe without a reader, beyond `RLIMIT_FSIZE`, or in the background to a
/// terminal with `stty tostop`. The last would stop the whole job; while it is blocked, the terminal takes the line
/// (`__tty_check_change` in `drivers/tty/tty_jobctrl.c`).
const SENT: [libc::c_int; 3] = [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU];

/// Blocks these signals for this thread. Dropping it discards those that came meanwhile, and restores the mask.
struct Held {
    before: libc::sigset_t,
    pending: libc::sigset_t,
}

impl Held {
    fn now() -> Self {
        let (mut ours, mut before, mut pending) = (empty(), empty(), empty());
        for signal in SENT {
            // SAFETY: the set is initialised.
            unsafe { libc::sigaddset(&raw mut ours, signal) };
        }
        // SAFETY: both sets are initialised and outlive the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const ours, &raw mut before) };
        // SAFETY: the set is initialised and outlives the call.
        unsafe { libc::sigpending(&raw mut pending) };
        Self { before, pending }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut pending = empty();
        // SAFETY: the set is initialised and outlives the call.
        unsafe { libc::sigpending(&raw mut pending) };
        let has = |set: &libc::sigset_t, signal| {
            // SAFETY: the set is initialised.
            unsafe { libc::sigismember(&raw const *set, signal) == 1 }
        };
        // What was pending before is the program's own, and stays; one of ours would have been merged with it.
        let sent = SENT.into_iter().filter(|signal| has(&pending, *signal) && !has(&self.pending, *signal));
        for signal in sent {
            let mut one = empty();
            // SAFETY: the set is initialised.
            unsafe { libc::sigaddset(&raw mut one, signal) };
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // Only where there is one: a filter may end the program for a call that no trial has made. SAFETY: the set
            // and the time are initialised and outlive the call; no description is asked for.
            unsafe { libc::sigtimedwait(&raw const one, ptr::null_mut(), &raw const at_once) };
        }
        // SAFETY: the set is initialised and outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the place is as large as a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: `sigemptyset` initialises it, and fails only for a null pointer.
    unsafe { set.assume_init() }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Fails on: the real user, or one of the others, in the effective one's place.
    #[test]
    fn the_own_user_is_the_effective_one() {
        assert_eq!(user(b"Name:\tUid:\t9\nUid:\t1\t20\t3\t4\nGid:\t5\t6\t7\t8\n"), Some(20));
        assert_eq!(user(b"Name:\tx\nUid:\t1\n"), None);
        assert_eq!(own_user(), rustix::process::geteuid().as_raw());
    }

    #[test]
    fn what_stands_for_the_same_file_is_written() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let noted = Noted::now(writer.as_raw_fd()).expect("it is open");
        assert_eq!(noted.write(b"a line\n"), Ok(()));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("it can be read");
        assert_eq!(text, "a line\n");
    }

    #[test]
    fn another_file_under_the_same_number_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        let data = File::create(&path).expect("it can be made");
        let noted = Noted { inode: 0, ..Noted::now(data.as_raw_fd()).expect("it is open") };
        assert_eq!(noted.write(b"damage"), Err(Errno::BADF));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"");
        assert_eq!(Noted::now(-1), None);
        assert_eq!(Noted::now(1 << 20), None);
    }

    #[test]
    fn a_pipe_without_a_reader_sends_no_signal() {
        let before = is_masked();
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        // Rust's start-up ignores SIGPIPE; here it must be deadly, or this test could not fail. SAFETY: the default
        // action is not a function.
        let old = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let write = || Noted::now(writer.as_raw_fd()).expect("it is open").write(b"x");
        assert_eq!(write(), Err(Errno::PIPE));
        assert_eq!(is_masked(), before);
        // One of the program's own, which it has blocked, stays.
        let held = Held::now();
        // SAFETY: goes to this thread alone, and waits.
        unsafe { libc::raise(libc::SIGPIPE) };
        assert_eq!(write(), Err(Errno::PIPE));
        let mut pending = empty();
        // SAFETY: the set is initialised and outlives the call.
        unsafe { libc::sigpending(&raw mut pending) };
        assert!(has_pipe(&pending));
        drop(held);
        // SAFETY: it was the action before.
        unsafe { libc::signal(libc::SIGPIPE, old) };
        assert_eq!(is_masked(), before);
    }

    fn is_masked() -> bool {
        let mut mask = empty();
        // SAFETY: the set is initialised and outlives the call; nothing is changed.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask) };
        has_pipe(&mask)
    }

    fn has_pipe(set: &libc::sigset_t) -> bool {
        // SAFETY: the set is initialised.
        unsafe { libc::sigismember(&raw const *set, libc::SIGPIPE) == 1 }
    }

    #[test]
    fn files_are_appended_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report");
        append(&path, b"one\n").expect("it can be written");
        append(&path, b"two\n").expect("it can be written");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"one\ntwo\n");
        assert!(append(Path::new("/dev/null/file"), b"x").is_err());
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "addresses are nobody else's business");
    }

    /// Somebody else can make all of these in `/tmp`.
    #[test]
    fn what_another_user_could_have_put_there_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (precious, report) = (folder.path().join("precious"), folder.path().join("report"));
        let untouched = |path: &Path| assert_eq!(std::fs::read(path).expect("it is there"), b"precious");
        std::fs::write(&precious, b"precious").expect("it can be written");
        std::os::unix::fs::symlink(&precious, &report).expect("a link");
        assert!(matches!(append(&report, b"x"), Err(AppendError::Link)));
        untouched(&precious);
        std::fs::remove_file(&report).expect("it is there");
        std::os::unix::fs::symlink(folder.path().join("new"), &report).expect("a link to nothing");
        assert!(matches!(append(&report, b"x"), Err(AppendError::Link)));
        assert!(!folder.path().join("new").exists(), "a link to nothing makes nothing");
        std::fs::remove_file(&report).expect("it is there");
        std::fs::hard_link(&precious, &report).expect("a link");
        assert!(matches!(append(&report, b"x"), Err(AppendError::ManyNames { links: 2 })));
        untouched(&precious);
        assert!(matches!(append(folder.path(), b"x"), Err(AppendError::File { source: Errno::ISDIR, .. })));
        append(Path::new("/dev/null"), b"x").expect("a device is nobody's");
        if !rustix::process::geteuid().is_root() {
            return println!("the rest is skipped: only root can give files away");
        }
        let foreign = folder.path().join("foreign");
        std::fs::write(&foreign, b"precious").expect("it can be written");
        std::os::unix::fs::chown(&foreign, Some(65534), None).expect("root may");
        assert!(matches!(append(&foreign, b"x"), Err(AppendError::NotOwn { owner: 65534, own: 0 })));
        untouched(&foreign);
    }
}
