//! Memory files of one chunk each. Nothing here allocates.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;

/// Name in `/proc/self/maps`.
const NAME: &core::ffi::CStr = c"palimpsest-arena";

/// Descriptors of all arenas that are not closed yet. Relaxed everywhere: a number that orders nothing.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// How many descriptors arenas may have for memory that is being filled, which cannot be frozen without: the rest is the program's.
fn most() -> usize {
    descriptor_limit() / 2
}

/// Whether a descriptor of frozen memory may stay open, which saves copies when it is frozen again. A smaller share, bounded because each fork copies the table of
/// descriptors up to the highest.
pub(super) fn may_stay_open() -> bool {
    OPEN.load(Ordering::Relaxed) <= (descriptor_limit() / 4).min(1024)
}

fn descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// A memory file by descriptor, and who it was when it was made: programs close descriptors that they did not open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    fd: RawFd,
    device: u64,
    inode: u64,
}

/// How a mapping of an extent relates to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum View {
    /// Writes go to the file. A forked child does not get the mapping.
    Shared,
    /// Writes make private copies. A forked child gets the mapping.
    Private,
}

impl Extent {
    /// Makes a file of `len` bytes. Fails with [`Errno::MFILE`] when arenas have their share of descriptors.
    pub(super) fn create(len: usize) -> Result<Self, Errno> {
        // Past this limit the kernel would send SIGXFSZ (`mm/memory.c`, `inode_newsize_ok`).
        if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len as u64) {
            return Err(Errno::FBIG);
        }
        if OPEN.load(Ordering::Relaxed) >= most() {
            return Err(Errno::MFILE);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match rustix::fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
            // A kernel before 6.3 does not know the flag.
            Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, flags),
            made => made,
        }?;
        let file = above_usual(file);
        rustix::fs::ftruncate(&file, len as u64)?;
        let stat = rustix::fs::fstat(&file)?;
        OPEN.fetch_add(1, Ordering::Relaxed);
        Ok(Self { fd: file.into_raw_fd(), device: stat.st_dev, inode: stat.st_ino })
    }

    /// The descriptor, if it still is the file's.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the number is not -1; that it may have been closed is what the next line finds out, and nothing else uses it before.
        let file = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let stat = rustix::fs::fstat(file).ok()?;
        (stat.st_dev == self.device && stat.st_ino == self.inode).then_some(file)
    }

    /// Maps `len` bytes from `offset` at `address`, in place of what is there. Fails with [`Errno::BADF`] if the program closed the file.
    ///
    /// # Safety
    ///
    /// 1. The addresses belong to the caller.
    /// 2. The bytes that readers see there may change to those of the file: nobody relies on others.
    pub(super) unsafe fn map(&self, address: usize, len: usize, offset: usize, view: View) -> Result<(), Errno> {
        let file = self.file().ok_or(Errno::BADF)?;
        let flags = match view {
            View::Shared => MapFlags::SHARED,
            // Not charged: the file is already.
            View::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let place = ptr::with_exposed_provenance_mut(address);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: contracts 1 and 2 are the caller's.
        unsafe { rustix::mm::mmap(place, len, rights, flags | MapFlags::FIXED, file, offset as u64) }?;
        if view == View::Shared {
            // SAFETY: the mapping made just now. Children without it are what the arena wants; see the module.
            unsafe { rustix::mm::madvise(place, len, Advice::LinuxDontFork) }?;
        }
        Ok(())
    }

    /// Writes `len` bytes from `address` to `offset` of the file.
    ///
    /// # Safety
    ///
    /// 1. The bytes are mapped for reading, and nobody writes to them meanwhile.
    pub(super) unsafe fn write(&self, offset: usize, address: usize, len: usize) -> Result<(), Errno> {
        let file = self.file().ok_or(Errno::BADF)?;
        // SAFETY: contract 1 is the caller's.
        let bytes = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(address), len) };
        let mut done = 0;
        while done < len {
            match rustix::io::pwrite(file, &bytes[done..], (offset + done) as u64) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Makes the file constant. Fails with [`Errno::BUSY`] while a device may still write to its pages (`mm/memfd.c`,
    /// `memfd_wait_for_pins`).
    pub(super) fn seal(&self) -> Result<(), Errno> {
        let file = self.file().ok_or(Errno::BADF)?;
        rustix::fs::fcntl_add_seals(file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)
    }

    /// Closes the descriptor; mappings stay. Each extent is closed once.
    pub(super) fn close(self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
        if self.file().is_some() {
            // SAFETY: the number is the file's, as was checked, and the arena, its only user, gives up the value.
            unsafe { rustix::io::close(self.fd) };
        }
    }
}

/// The same file under a number above those that most programs use, where those that count on low numbers do not meet it. Not far above: each fork copies the table of
/// descriptors up to the highest (`dup_fd` in `fs/file.c`). As it is if there is no such number.
fn above_usual(file: OwnedFd) -> OwnedFd {
    /// The first that need a table of 256 entries, the least that the kernel allocates.
    const LEAST: usize = 128;
    // At most `LEAST`.
    let least = LEAST.min(descriptor_limit() / 2) as RawFd;
    rustix::io::fcntl_dupfd_cloexec(&file, least).unwrap_or(file)
}
