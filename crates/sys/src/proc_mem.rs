//! Writes to memory that this process has mapped without the right to write: `/proc/self/mem`.

use std::io;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::brief_file::BriefFile;
use crate::in_children;

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
    file: BriefFile,
}

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
        in_children::register();
        // By the thread: the other name leads to the first one, which has no memory once it has ended.
        let file = BriefFile::open(c"/proc/thread-self/mem", OFlags::RDWR);
        Ok(Self { file: file.map_err(|errno| ProcMemError::Open(errno.into()))? })
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
