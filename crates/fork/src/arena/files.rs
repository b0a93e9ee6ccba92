//! The arenas' share of the process's descriptors. Nothing here allocates.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use palimpsest_sys::memory::file::MemoryFile;
use rustix::io::Errno;
use rustix::process::Resource;

/// Name in `/proc/self/maps`.
const NAME: &core::ffi::CStr = c"palimpsest-arena";

/// Open descriptors of all arenas. Relaxed everywhere: a number that orders nothing.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether there is a snapshot of the whole process. Relaxed everywhere: only threads that sleep meanwhile could see it
/// change.
static HELD: AtomicBool = AtomicBool::new(false);

/// While it lives, no [`create_to_fill`] succeeds: a snapshot of the whole process restores what arenas know of their
/// files, and so must not miss the files themselves.
#[derive(Debug)]
pub(crate) struct NoFiles(());

impl NoFiles {
    pub(super) fn new() -> Self {
        HELD.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for NoFiles {
    fn drop(&mut self) {
        HELD.store(false, Ordering::Relaxed);
    }
}

/// Makes a file as [`create`] does, which stays open while its memory is being filled. Fails with [`Errno::BUSY`] while
/// there are [no files](NoFiles).
pub(super) fn create_to_fill(len: usize) -> Result<MemoryFile, Errno> {
    if HELD.load(Ordering::Relaxed) { Err(Errno::BUSY) } else { create(len) }
}

/// Makes a file of `len` bytes. Fails with [`Errno::MFILE`] when arenas have used their share: the rest is the
/// program's.
pub(super) fn create(len: usize) -> Result<MemoryFile, Errno> {
    if OPEN.load(Ordering::Relaxed) >= share() {
        return Err(Errno::MFILE);
    }
    let file = MemoryFile::create(NAME, len as u64)?;
    OPEN.fetch_add(1, Ordering::Relaxed);
    Ok(file)
}

/// Whether a descriptor may be kept for a while: arenas use less than a quarter of their share. The rest is for memory
/// that is being filled, also in other arenas, while nobody uses this one.
pub(super) fn has_plenty() -> bool {
    OPEN.load(Ordering::Relaxed) < share() / 4
}

/// How many descriptors arenas may have open: half of the process's.
fn share() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX) / 2
}

/// Closes a file made by [`create`]. Each is closed once.
pub(super) fn close(mut file: MemoryFile) {
    OPEN.fetch_sub(1, Ordering::Relaxed);
    file.close();
}
