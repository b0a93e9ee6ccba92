//! Writes to memory that this process has mapped without the right to write: `/proc/self/mem`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

/// The file through which a process writes to its own private mappings regardless of their rights (`FOLL_FORCE` in
/// `fs/proc/base.c`). The kernel makes a private copy of the page first, if it is shared.
///
/// It always leads to the memory of the process that opened it, also in a forked child, and whatever rights that child
/// gives up. So it is kept only for a moment. A child that the C library forks in that moment closes it before its own
/// code runs.
///
/// Since Linux 6.12 `proc_mem.force_override=` on the kernel's command line may forbid it.
#[derive(Debug)]
pub struct ProcMem {
    file: File,
    /// Where children find the descriptor to close; `None` if too many are open.
    slot: Option<&'static AtomicI32>,
}

/// The open descriptors, each plus one; zero for none. A thread that opens one writes to one entry; forked children
/// read all.
static OPEN: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

/// Why `/proc/self/mem` cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum ProcMemError {
    /// It cannot be opened.
    #[error("cannot open /proc/self/mem for writing; is /proc mounted?")]
    Open(#[source] io::Error),
    /// A write was refused.
    #[error("cannot write {len} bytes at {address:#x} through /proc/self/mem; does proc_mem.force_override forbid it?")]
    Write {
        /// First address.
        address: usize,
        /// Number of bytes.
        len: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl ProcMemError {
    /// Returns whether only descriptors or memory were lacking, which there may be another time.
    pub fn is_lack(&self) -> bool {
        let (Self::Open(source) | Self::Write { source, .. }) = self;
        matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
    }
}

impl ProcMem {
    /// Opens the calling process's memory.
    ///
    /// # Errors
    ///
    /// [`ProcMemError::Open`].
    pub fn open() -> Result<Self, ProcMemError> {
        close_in_children();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open("/proc/self/mem")
            .map_err(ProcMemError::Open)?;
        let word = file.as_raw_fd() + 1;
        // Relaxed, both: a child sees the stores of the thread that forked it; another thread's file may stay open in
        // it, as if the fork had happened between `open` and this.
        let take = |slot: &&AtomicI32| slot.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Ok(Self { slot: OPEN.iter().find(take), file })
    }

    /// Stores `bytes` at `address`.
    ///
    /// # Safety
    ///
    /// 1. The range is mapped, and no reference to it is live.
    /// 2. Threads that may execute or read it concurrently work with every intermediate state, byte by byte.
    ///
    /// # Errors
    ///
    /// [`ProcMemError::Write`]; a part of the bytes may have been stored.
    pub unsafe fn write(&self, address: usize, bytes: &[u8]) -> Result<(), ProcMemError> {
        // SAFETY: 1., 2. by the caller.
        unsafe { self.store(address, bytes) }.map_err(|errno| ProcMemError::Write {
            address,
            len: bytes.len(),
            source: errno.into(),
        })
    }

    /// Does what [`write`](Self::write) does, without the heap.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write).
    pub(crate) unsafe fn store(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        let mut stored = 0;
        while stored < bytes.len() {
            match rustix::io::pwrite(&self.file, &bytes[stored..], (address + stored) as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(len) => stored += len,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl Drop for ProcMem {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // Relaxed: see `open`. Stored before the file is closed: otherwise a child would close the next file of
            // that number.
            slot.store(0, Ordering::Relaxed);
        }
    }
}

/// Makes forked children close open files. Registers that once.
fn close_in_children() {
    extern "C" fn in_child() {
        for slot in &OPEN {
            // Relaxed: the child has one thread.
            let word = slot.swap(0, Ordering::Relaxed);
            if word > 0 {
                // SAFETY: a descriptor of `ProcMem`, whose owner is a thread of the parent: nobody uses it here, since
                // no thread forks inside `store`.
                unsafe { libc::close(word - 1) };
            }
        }
    }
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: with a second registration nothing is closed twice.
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is async-signal-safe, and is removed from the list when its object is unloaded. If lack
        // of memory prevents registration, children of that one moment have the file.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Protection, Source};

    #[test]
    fn read_only_memory_is_written() {
        let page = rustix::param::page_size();
        let mapping = Mapping::new(Source::Anonymous, page, Protection::ReadExecute, page).unwrap();
        let memory = ProcMem::open().unwrap();
        // SAFETY: 1. the page is this test's own and unreferenced; 2. nobody else knows it.
        unsafe { memory.write(mapping.address(), &[1, 2]) }.unwrap();
        // SAFETY: the byte is mapped readable.
        assert_eq!(unsafe { mapping.as_ptr().read() }, 1);
    }

    #[test]
    fn an_unmapped_address_is_named() {
        let memory = ProcMem::open().unwrap();
        // SAFETY: 1. page zero is never mapped, so nothing is stored; 2. as 1.
        let error = unsafe { memory.write(0x10, &[1]) }.unwrap_err();
        assert!(error.to_string().contains("0x10"), "{error}");
    }
}
