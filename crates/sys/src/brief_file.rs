//! Files that are open for a moment, and that no forked child keeps.
//!
//! What is opened in `/proc/self` leads to this process for ever, whatever rights a child gives up that has inherited
//! it: `mem` to its memory, `maps` and `pagemap` to where that is and what is in use. A child that another thread forks
//! in that moment closes these files before its own code runs ([`in_children`](crate::in_children)). It misses one only
//! if the fork comes right after the kernel has opened it, or while it is being closed.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::threads::own::own_process;

/// The open descriptors, each plus one, and above that the process that has opened it; zero for none. A thread that
/// opens one writes to one entry; forked children read all. A child of the raw system call keeps its parent's entries.
///
/// Relaxed, everywhere: a child sees the stores of the thread that forked it, and is alone.
static OPEN: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// An open file that forked children close.
#[derive(Debug)]
pub struct BriefFile {
    file: ManuallyDrop<OwnedFd>,
    /// Where children find the descriptor to close, and what is there; `None` if too many are open, or its owner closes
    /// it in children.
    slot: Option<(&'static AtomicU64, u64)>,
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
        let take = |slot: &&AtomicU64| slot.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Ok(Self { file: ManuallyDrop::new(file), slot: OPEN.iter().find(take).map(|slot| (slot, word)) })
    }

    /// Reads the beginning of a short file into `buffer`. Asks neither for its length nor for anything else that a
    /// seccomp filter need not allow, as the standard library does. Does not use the heap.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read_short<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let file = Self::open(path, OFlags::RDONLY)?;
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *buffer))?;
        Ok(&buffer[..len])
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
        let give = |(slot, word): (&AtomicU64, u64)| {
            slot.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        // A child of `vfork` that forks may have taken it out of the memory that it shares with its parent.
        let is_own = |(_, word): (&AtomicU64, u64)| word >> 32 == u64::from(own_process().unsigned_abs());
        if self.slot.is_none_or(|slot| give(slot) || is_own(slot)) {
            // SAFETY: dropped here only, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// A file that is open for a moment in a process that may be a child of `vfork`. Noted nowhere, unlike a [`BriefFile`],
/// and closed by the kernel's own call: a child that is ended in between leaves its parent no trace, and no thread is
/// cancelled there. Children of `fork` keep it.
#[derive(Debug)]
pub struct UnnotedFile(ManuallyDrop<OwnedFd>);

impl UnnotedFile {
    /// Opens a file; closed by `exec`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(path: &std::ffi::CStr, flags: OFlags) -> Result<Self, Errno> {
        // Not `open`, which a filter may lack: the dynamic linker opens libraries by `openat`.
        let file = rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self(ManuallyDrop::new(file)))
    }
}

impl AsFd for UnnotedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for UnnotedFile {
    fn drop(&mut self) {
        // SAFETY: open, its own, and not used any more.
        unsafe { rustix::io::close(self.0.as_raw_fd()) };
    }
}

/// Returns the entry of a descriptor of this process's.
fn word(descriptor: RawFd) -> u64 {
    u64::from(own_process().unsigned_abs()) << 32 | u64::from(descriptor.unsigned_abs() + 1)
}

/// Forgets files that this process has only inherited, if at all: their numbers may be other files of its own. To be
/// called before each fork. Asks for the process id, if a file is open; async-signal-safe.
#[inline]
pub(crate) fn forget_foreign() {
    if OPEN.iter().any(|slot| slot.load(Ordering::Relaxed) != 0) {
        forget();
    }
}

#[cold]
fn forget() {
    let own = own_process().unsigned_abs();
    for slot in &OPEN {
        let word = slot.load(Ordering::Relaxed);
        if word >> 32 != u64::from(own) {
            // If it is another one by now, this process has just opened it.
            let _ = slot.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Closes the files of the parent's threads, in a child that was forked just now. Async-signal-safe.
#[inline]
pub(crate) fn close_in_child() {
    for slot in &OPEN {
        // Not written without need, since the page would be copied.
        if slot.load(Ordering::Relaxed) != 0 {
            close(slot);
        }
    }
}

#[cold]
fn close(slot: &AtomicU64) {
    // The lower half is at most one more than the largest descriptor.
    let descriptor = (slot.swap(0, Ordering::Relaxed) as u32).cast_signed() - 1;
    // SAFETY: a descriptor of a `BriefFile`, which takes it for closed from now on.
    unsafe { libc::close(descriptor) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a file that a child keeps, or closes twice; one that is lost to its owner, or that a forker forgets.
    #[test]
    fn children_close_it_and_its_owner_keeps_it() {
        let file = BriefFile::open(c"/proc/thread-self/maps", OFlags::RDONLY).expect("/proc is mounted");
        let lasting = BriefFile::lasting(file.as_fd().try_clone_to_owned().expect("a descriptor"));
        let is_open = |file: &BriefFile| rustix::io::fcntl_getfd(file).is_ok();
        forget_foreign();
        // SAFETY: the child makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            close_in_child();
            let mut is_right = !is_open(&file) && is_open(&lasting);
            // The number may be another file's by now.
            // SAFETY: a descriptor of this child's, which nobody else uses.
            is_right &= unsafe { libc::dup2(lasting.as_raw_fd(), file.as_raw_fd()) } == file.as_raw_fd();
            let number = file.as_raw_fd();
            drop(file);
            // SAFETY: asks about a number.
            is_right &= unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
            // Its own, of which a child of `vfork` has forgotten the entry.
            let own = BriefFile::open(c"/proc/self/maps", OFlags::RDONLY);
            let slot = own.as_ref().ok().and_then(|own| own.slot);
            slot.inspect(|(slot, _)| slot.store(0, Ordering::Relaxed));
            let number = own.as_ref().map_or(-1, |own| own.as_raw_fd());
            is_right &= slot.is_some();
            drop(own);
            // SAFETY: as above.
            is_right &= unsafe { libc::fcntl(number, libc::F_GETFD) } < 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(is_open(&file) && is_open(&lasting));
        let (slot, word) = file.slot.expect("there is room");
        assert_eq!(slot.load(Ordering::Relaxed), word);
    }
}
