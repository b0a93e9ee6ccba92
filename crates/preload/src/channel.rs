//! Writing to the user without harm to the program: never into a file that it has put in the place of ours, and never at
//! the price of a signal.

use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;

use rustix::fs::fstat;
use rustix::io::{Errno, retry_on_intr, write};

/// A descriptor as it was when the program started. Programs close descriptors, and what they open next gets the same
/// number: a line of ours in their data file would be damage.
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
    /// It does not (`EBADF`), or it cannot be written; a pipe without a reader causes no signal.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Errno> {
        if identity(self.number) != Some((self.device, self.inode)) {
            return Err(Errno::BADF);
        }
        // SAFETY: it was open a moment ago. If another thread closes it meanwhile, the kernel answers with an error.
        write_without_signals(unsafe { BorrowedFd::borrow_raw(self.number) }, bytes)
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

/// Appends `bytes` to the file `path`, which is made if it does not exist.
///
/// # Errors
///
/// It cannot be opened or written.
pub(crate) fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A FIFO without a reader would hold the program for ever, and a terminal could become its controlling one.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)?;
    Ok(write_without_signals(file.as_fd(), bytes)?)
}

/// Writes everything. SIGPIPE and SIGXFSZ, which a write can bring upon its thread, are taken back.
fn write_without_signals(descriptor: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    let held = Held::now();
    while !bytes.is_empty() {
        let written = retry_on_intr(|| write(descriptor, bytes))?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    drop(held);
    Ok(())
}

/// The two signals blocked for this thread; dropping drops those that came meanwhile and sets the mask back.
struct Held {
    both: libc::sigset_t,
    before: libc::sigset_t,
    pending: libc::sigset_t,
}

impl Held {
    fn now() -> Self {
        let (mut both, mut before, mut pending) = (empty(), empty(), empty());
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            // SAFETY: the set is initialised.
            unsafe { libc::sigaddset(&raw mut both, signal) };
        }
        // SAFETY: both sets are initialised and outlive the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const both, &raw mut before) };
        // SAFETY: the set is initialised and outlives the call.
        unsafe { libc::sigpending(&raw mut pending) };
        Self { both, before, pending }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            // SAFETY: the set is initialised.
            let was_pending = unsafe { libc::sigismember(&raw const self.pending, signal) } == 1;
            if was_pending {
                // It was the program's own, and stays pending. A second one of ours would have been merged with it.
                // SAFETY: the set is initialised.
                unsafe { libc::sigdelset(&raw mut self.both, signal) };
            }
        }
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            // SAFETY: the set and the time are initialised and outlive the call; no description is asked for.
            let taken = unsafe { libc::sigtimedwait(&raw const self.both, ptr::null_mut(), &raw const at_once) };
            if taken < 0 {
                break;
            }
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
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

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
        let before = empty_mask();
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        // Rust's start-up ignores SIGPIPE; here it must be deadly, or this test could not fail.
        // SAFETY: the default action is no function.
        let old = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let outcome = Noted::now(writer.as_raw_fd()).expect("it is open").write(b"x");
        // SAFETY: it was the action before.
        unsafe { libc::signal(libc::SIGPIPE, old) };
        assert_eq!(outcome, Err(Errno::PIPE));
        assert_eq!(empty_mask(), before);
    }

    fn empty_mask() -> bool {
        let mut mask = empty();
        // SAFETY: the set is initialised and outlives the call; nothing is changed.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask) };
        // SAFETY: the set is initialised.
        unsafe { libc::sigismember(&raw const mask, libc::SIGPIPE) == 1 }
    }

    #[test]
    fn files_are_appended_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report");
        append(&path, b"one\n").expect("it can be written");
        append(&path, b"two\n").expect("it can be written");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"one\ntwo\n");
        assert!(append(Path::new("/nonexistent/file"), b"x").is_err());
    }
}
