//! System V shared memory segments that a fuzzer has made and named in the environment.

use std::io;
use std::ptr::NonNull;

use super::error::ServeError;

/// What this process may do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Loads alone.
    Read,
    /// Loads and stores.
    Write,
}

/// A segment, attached until the process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Its first byte.
    pub(crate) start: NonNull<u8>,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// Attaches the segment that `variable` names, or gives `None` where it is not set.
pub(crate) fn attach(variable: &'static str, access: Access) -> Result<Option<Segment>, ServeError> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let failed = |source: io::Error| ServeError::Attach { variable, value: value.clone(), source };
    let id: i32 = value
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
    let len = segment_len(id).map_err(failed)?;
    let flags = match access {
        Access::Read => libc::SHM_RDONLY,
        Access::Write => 0,
    };
    // SAFETY: no address is given, so the kernel picks a free range and replaces no mapping.
    let start = unsafe { libc::shmat(id, std::ptr::null(), flags) };
    // shmat(2) answers an error with -1.
    if start.addr() == usize::MAX {
        return Err(failed(io::Error::last_os_error()));
    }
    let start = NonNull::new(start.cast()).ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
    Ok(Some(Segment { start, len }))
}

fn segment_len(id: i32) -> io::Result<usize> {
    // SAFETY: the structure is plain data of integers, for which all zeros is a value.
    let mut state: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: IPC_STAT writes one `shmid_ds` to the address given, which is that of a live one.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut state) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(state.shm_segsz)
}
