//! Writing to memory that this process has mapped without the right to write: `/proc/self/mem`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// The file through which a process writes to its own private mappings whatever their rights (`FOLL_FORCE` in
/// `fs/proc/base.c`). The kernel makes a private copy of the page first, if it is shared.
///
/// Since Linux 6.12 `proc_mem.force_override=` on the kernel's command line may forbid it.
#[derive(Debug)]
pub struct ProcMem(File);

/// Why `/proc/self/mem` is of no use here.
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
        /// Bytes that were to be written.
        len: usize,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl ProcMem {
    /// Opens the calling process's memory. The file goes on to mean this process's memory in a forked child.
    ///
    /// # Errors
    ///
    /// [`ProcMemError::Open`].
    pub fn open() -> Result<Self, ProcMemError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open("/proc/self/mem")
            .map_err(ProcMemError::Open)?;
        Ok(Self(file))
    }

    /// Stores `bytes` at `address`.
    ///
    /// # Safety
    ///
    /// 1. The range is mapped, and no reference to it is live.
    /// 2. Whoever may execute or read it concurrently can bear every intermediate state, byte by byte.
    ///
    /// # Errors
    ///
    /// [`ProcMemError::Write`]; a part of the bytes may have been stored.
    pub unsafe fn write(&self, address: usize, bytes: &[u8]) -> Result<(), ProcMemError> {
        self.0.write_all_at(bytes, address as u64).map_err(|source| ProcMemError::Write {
            address,
            len: bytes.len(),
            source,
        })
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
