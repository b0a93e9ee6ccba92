//! A memory file for the program that is executed next: constant bytes, by a descriptor that it inherits.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::SealFlags;
use rustix::io::{Errno, FdFlags, retry_on_intr, write};

use super::file::{Content, add_seals};
use super::shared_memory::{CreateError, Pages, check_file_size_limit, create_file};

/// Makes a sealed memory file of `bytes`, which may be mapped executable and appears as `memfd:name`. Its descriptor
/// stays open in programs that this process executes; they should close it.
///
/// # Errors
///
/// See [`CreateError`]; nothing is left behind.
pub fn hand_over(name: &str, bytes: &[u8]) -> Result<OwnedFd, CreateError> {
    check_file_size_limit(bytes.len())?;
    let (file, _) = create_file(name, Pages::Base, Content::Code)?;
    let mut left = bytes;
    while !left.is_empty() {
        match retry_on_intr(|| write(&file, left)) {
            Ok(0) => return Err(no_memory(bytes.len(), Errno::NOSPC)),
            Ok(written) => left = left.get(written..).unwrap_or_default(),
            Err(errno) => return Err(no_memory(bytes.len(), errno)),
        }
    }
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    add_seals(&file, seals).map_err(refused)?;
    // The last step, so that an earlier failure leaves nothing to inherit.
    rustix::io::fcntl_setfd(&file, FdFlags::empty()).map_err(refused)?;
    Ok(file)
}

fn no_memory(len: usize, errno: Errno) -> CreateError {
    CreateError::Allocate { len, source: errno.into() }
}

fn refused(errno: Errno) -> CreateError {
    CreateError::Refused(io::Error::from(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_heir_reads_the_bytes_and_nobody_changes_them() {
        let file = hand_over("test", b"some bytes").unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&file), Ok(FdFlags::empty()));
        let mut read = [0; 16];
        let len = rustix::io::pread(&file, &mut read, 0).unwrap();
        assert_eq!(&read[..len], b"some bytes");
        assert_eq!(rustix::io::pwrite(&file, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::empty()), Err(Errno::PERM));
    }
}
