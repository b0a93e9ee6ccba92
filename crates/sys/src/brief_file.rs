//! Files that are open for a moment, and that no forked child keeps.
//!
//! What is opened in `/proc/self` leads to this process for ever, whatever rights a child gives up that has inherited
//! it: `mem` to its memory, `maps` and `pagemap` to where that is and what is in use. A child that another thread forks
//! in that moment closes these files before its own code runs. It misses one only if the fork comes right after the
//! kernel has opened it, or while it is being closed.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// The open descriptors, each plus one; zero for none. A thread that opens one writes to one entry; forked children
/// read all.
///
/// Relaxed, everywhere: a child sees the stores of the thread that forked it, and is alone.
static OPEN: [AtomicI32; 32] = [const { AtomicI32::new(0) }; 32];

/// An open file that forked children close.
#[derive(Debug)]
pub struct BriefFile {
    file: ManuallyDrop<OwnedFd>,
    /// Where children find the descriptor to close; `None` if too many are open, or its owner closes it in children.
    slot: Option<&'static AtomicI32>,
}

impl BriefFile {
    /// Opens a file; closed by `exec`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(path: &std::ffi::CStr, flags: OFlags) -> Result<Self, Errno> {
        let file = rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())?;
        let word = word(file.as_raw_fd());
        let take = |slot: &&AtomicI32| slot.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Ok(Self { file: ManuallyDrop::new(file), slot: OPEN.iter().find(take) })
    }

    /// Wraps a file that its owner closes in children.
    pub(crate) fn lasting(file: OwnedFd) -> Self {
        Self { file: ManuallyDrop::new(file), slot: None }
    }
}

impl AsFd for BriefFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for BriefFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for BriefFile {
    fn drop(&mut self) {
        // Before the file is closed: otherwise a child would close the next file of that number. A child in the middle
        // of its parent's work has closed it already, and may have another one of that number.
        let word = word(self.as_raw_fd());
        let give = |slot: &AtomicI32| slot.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.slot.is_none_or(give) {
            // SAFETY: dropped here only, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

const fn word(descriptor: RawFd) -> i32 {
    descriptor + 1
}

/// Closes the files of the parent's threads, in a child that was forked just now. Async-signal-safe.
#[inline]
pub fn close_in_child() {
    for slot in &OPEN {
        // Not written without need, since the page would be copied.
        if slot.load(Ordering::Relaxed) != 0 {
            close(slot);
        }
    }
}

#[cold]
fn close(slot: &AtomicI32) {
    let descriptor = slot.swap(0, Ordering::Relaxed) - 1;
    // SAFETY: a descriptor of a `BriefFile`, which takes it for closed from now on.
    unsafe { libc::close(descriptor) };
}

/// Has children that the C library forks close these files. Takes a lock of the C library, the first time.
pub fn close_in_children() {
    extern "C" fn in_child() {
        close_in_child();
    }
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // With a second registration nothing is closed twice.
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is async-signal-safe, and is removed from the list when its object is unloaded. If lack
        // of memory prevents registration, children of such a moment have the files.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a file that a child keeps, or closes twice; one that is lost to its owner.
    #[test]
    fn children_close_it_and_its_owner_keeps_it() {
        close_in_children();
        let file = BriefFile::open(c"/proc/thread-self/maps", OFlags::RDONLY).expect("/proc is mounted");
        let lasting = BriefFile::lasting(file.as_fd().try_clone_to_owned().expect("a descriptor"));
        let is_open = |file: &BriefFile| rustix::io::fcntl_getfd(file).is_ok();
        // SAFETY: the child makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut is_right = !is_open(&file) && is_open(&lasting);
            // The number may be another file's by now.
            // SAFETY: a descriptor of this child's, which nobody else uses.
            is_right &= unsafe { libc::dup2(lasting.as_raw_fd(), file.as_raw_fd()) } == file.as_raw_fd();
            let number = file.as_raw_fd();
            drop(file);
            // SAFETY: asks about a number.
            is_right &= unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(is_open(&file) && is_open(&lasting));
        let slot = file.slot.expect("there is room");
        assert_eq!(slot.load(Ordering::Relaxed), word(file.as_raw_fd()));
    }
}
