//! System V shared memory that another process has made (`shmget(2)`).

use std::io;
use std::ptr::NonNull;

/// The access that this process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedAccess {
    /// Only loads.
    Read,
    /// Loads and stores.
    Write,
}

/// Such memory, attached until the process ends or executes another program.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    /// Its first byte.
    pub start: NonNull<u8>,
    /// Its length in bytes.
    pub len: usize,
}

impl SharedBytes {
    /// Attaches the memory with the id `id`, at an address that the kernel chooses.
    ///
    /// # Errors
    ///
    /// The kernel's: no such memory exists, or this user may not have that access.
    pub fn attach(id: i32, access: SharedAccess) -> io::Result<Self> {
        let len = length(id)?;
        let flags = match access {
            SharedAccess::Read => libc::SHM_RDONLY,
            SharedAccess::Write => 0,
        };
        // SAFETY: no address is given, so the kernel picks a free range and replaces no mapping.
        let start = unsafe { libc::shmat(id, std::ptr::null(), flags) };
        // shmat(2) returns -1 for an error.
        if start.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Self { start, len })
    }
}

fn length(id: i32) -> io::Result<usize> {
    // SAFETY: the structure is plain data of integers, for which all zeros is a value.
    let mut state: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: IPC_STAT writes one `shmid_ds` to the address given, which is that of a live one.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut state) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(state.shm_segsz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_attachment_writes_the_other_reads() {
        // SAFETY: makes a segment and no mapping.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 5000, 0o600) };
        if id == -1 {
            return println!("skipped: no System V shared memory: {}", io::Error::last_os_error());
        }
        let (writer, reader) =
            (SharedBytes::attach(id, SharedAccess::Write), SharedBytes::attach(id, SharedAccess::Read));
        // SAFETY: marks the segment to be removed with its last attachment.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        let (writer, reader) = (writer.expect("it exists"), reader.expect("it exists"));
        assert_eq!((writer.len, reader.len), (5000, 5000));
        // SAFETY: the segment is longer, and nobody else writes to it.
        let last = unsafe { writer.start.add(4999) };
        // SAFETY: as above.
        let seen = unsafe { reader.start.add(4999) };
        // SAFETY: as before.
        unsafe { last.write_volatile(7) };
        // SAFETY: as before.
        assert_eq!(unsafe { seen.read_volatile() }, 7);
        assert!(SharedBytes::attach(-1, SharedAccess::Read).is_err());
    }
}
