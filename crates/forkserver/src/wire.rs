//! The two pipes between a server and its fuzzer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::error::ServeError;
use crate::protocol::{self, Words};

/// The server's ends. Children close them.
#[derive(Debug)]
pub(crate) struct Wire {
    control: OwnedFd,
    status: OwnedFd,
}

impl Wire {
    /// Creates a wire over two pipes.
    pub(crate) fn new(control: OwnedFd, status: OwnedFd) -> Self {
        Self { control, status }
    }

    /// Takes over the descriptors at which AFL++ leaves its pipes; `None` if they are not open, as without a fuzzer.
    ///
    /// # Safety
    ///
    /// 1. If descriptors 198 and 199 are pipes, they belong to the fuzzer, and nobody else in this process uses them.
    pub(crate) unsafe fn inherited() -> Option<Self> {
        for number in [protocol::CONTROL, protocol::STATUS] {
            // SAFETY: the descriptor is only queried, and EBADF is a valid answer.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            let stat = rustix::fs::fstat(fd).ok()?;
            if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Fifo {
                return None;
            }
        }
        // SAFETY: (1) it is open and ours alone.
        let control = unsafe { OwnedFd::from_raw_fd(protocol::CONTROL) };
        // SAFETY: (1) as above.
        let status = unsafe { OwnedFd::from_raw_fd(protocol::STATUS) };
        Some(Self { control, status })
    }

    /// Waits for a request; `None` when the fuzzer has closed its end.
    pub(crate) fn request(&mut self) -> Result<Option<u32>, ServeError> {
        receive(self.control.as_fd()).map_err(|source| ServeError::Pipe { action: "hear a request", source })
    }
}

impl Words for Wire {
    type Error = ServeError;

    fn receive(&mut self) -> Result<u32, ServeError> {
        self.request()?.ok_or_else(|| ServeError::Pipe {
            action: "hear an answer",
            source: io::Error::from(io::ErrorKind::UnexpectedEof),
        })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ServeError> {
        send(self.status.as_fd(), bytes).map_err(|source| ServeError::Pipe { action: "answer", source })
    }

    fn unexpected(&self, word: u32) -> ServeError {
        ServeError::Answer { word }
    }
}

/// Waits for a word; `None` at the end of the pipe. A word is written by one call, so it is never split.
pub(crate) fn receive(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut word = [0; 4];
    loop {
        return match rustix::io::read(fd, &mut word) {
            Ok(4) => Ok(Some(u32::from_ne_bytes(word))),
            Ok(_) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Sends all of `bytes`.
pub(crate) fn send(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
