//! The arenas' share of the process's descriptors. Nothing here allocates.

use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_sys::memory::file::MemoryFile;
use rustix::io::Errno;
use rustix::process::Resource;

/// Name in `/proc/self/maps`.
const NAME: &core::ffi::CStr = c"palimpsest-arena";

/// Open descriptors of all arenas. Relaxed everywhere: a number that orders nothing.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Makes a file of `len` bytes. Fails with [`Errno::MFILE`] when arenas have used their share: the rest is the
/// program's.
pub(super) fn create(len: usize) -> Result<MemoryFile, Errno> {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    if OPEN.load(Ordering::Relaxed) >= limit / 2 {
        return Err(Errno::MFILE);
    }
    let file = MemoryFile::create(NAME, len as u64)?;
    OPEN.fetch_add(1, Ordering::Relaxed);
    Ok(file)
}

/// Closes a file made by [`create`]. Each is closed once.
pub(super) fn close(mut file: MemoryFile) {
    OPEN.fetch_sub(1, Ordering::Relaxed);
    file.close();
}
