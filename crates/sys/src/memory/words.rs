//! Words that several processes share.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::fs::SealFlags;

use crate::memory::error::MapError;
use crate::memory::mapping::{Mapping, Protection, Source};
use crate::memory::shared_memory::{CreateError, SharedMemory};

/// A memory object of fixed length, mapped as atomic words. A process that gets its descriptor may map it too, and
/// write anything.
#[derive(Debug)]
pub struct SharedWords {
    file: OwnedFd,
    /// # Invariants
    ///
    /// 1. Maps all of `file`, which cannot shrink, for reading and writing, and only `deref` makes references into it.
    mapping: Mapping,
}

/// The file system of memory objects with pages of the base size (`TMPFS_MAGIC`, `include/uapi/linux/magic.h`). Those
/// of huge pages are on another one, and may lack a page at any access.
const TMPFS: u64 = 0x0102_1994;

/// Why there are no shared words.
#[derive(Debug, thiserror::Error)]
pub enum SharedWordsError {
    /// There is no memory object.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Why a descriptor does not become shared words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptWordsError {
    /// It is of something else, or of what could become shorter while it is used.
    #[error("the descriptor is of {what}; only memory objects of fixed length are mapped")]
    Foreign {
        /// What it is of.
        what: &'static str,
    },
    /// The kernel does not tell what it is.
    #[error("the kernel does not tell what the descriptor is of")]
    Unknown(#[source] io::Error),
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl SharedWords {
    /// Makes zeroed words, `len` bytes long (a multiple of the page size); the object appears as `memfd:name`.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError`].
    pub fn new(name: &str, len: usize) -> Result<Self, SharedWordsError> {
        let object = SharedMemory::create_for_data(name, len)?;
        // Now, so that lack of memory is an error here and not a signal later.
        object.allocate(len)?;
        let mapping = Mapping::new(Source::Shared(&object), len, Protection::ReadWrite, size_of::<AtomicU64>())?;
        Ok(Self { file: object.into_file(), mapping })
    }

    /// Maps the words of another process, which need not be trusted: what could end this one by SIGBUS is refused (a
    /// file, or an object whose length is not fixed). The other one may still write anything, at any time.
    ///
    /// # Errors
    ///
    /// [`AdoptWordsError`].
    pub fn adopt(file: OwnedFd) -> Result<Self, AdoptWordsError> {
        let foreign = |what| Err(AdoptWordsError::Foreign { what });
        let unknown = |errno: rustix::io::Errno| AdoptWordsError::Unknown(errno.into());
        // Only memory objects have seals, and named files of this system none but one against more (`mm/memfd.c`).
        let Ok(seals) = rustix::fs::fcntl_get_seals(&file) else { return foreign("no memory object") };
        if rustix::fs::fstatfs(&file).map_err(unknown)?.f_type as u64 != TMPFS {
            return foreign("no memory object with pages of the base size");
        }
        // Seals are never taken away, so the length stays what it is below.
        if !seals.contains(SealFlags::SHRINK) {
            return foreign("an object that could shrink");
        }
        let stat = rustix::fs::fstat(&file).map_err(unknown)?;
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        if len == 0 || !len.is_multiple_of(rustix::param::page_size()) {
            return foreign("no whole number of pages");
        }
        let mapping = Mapping::new(Source::Foreign(file.as_fd()), len, Protection::ReadWrite, size_of::<AtomicU64>())?;
        Ok(Self { file, mapping })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        #[expect(clippy::cast_ptr_alignment, reason = "mappings begin with a page")]
        let start = self.mapping.as_ptr().cast::<AtomicU64>();
        // SAFETY: all of it is mapped for reading and writing (invariant 1) for as long as `self` lives, aligned to a
        // page; any bytes are valid words, and atomic words may change under shared references, also by other
        // processes.
        unsafe { slice::from_raw_parts(start, self.mapping.len() / size_of::<AtomicU64>()) }
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn what_is_stored_is_seen_through_the_descriptor() {
        let words = SharedWords::new("words", 4 * rustix::param::page_size()).expect("memory");
        words[3].store(0x1122_3344_5566_7788, Ordering::Relaxed);
        let file = File::from(words.as_fd().try_clone_to_owned().expect("a descriptor"));
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 24).expect("it is there");
        assert_eq!(u64::from_ne_bytes(bytes), 0x1122_3344_5566_7788);
        assert!(file.set_len(0).is_err(), "its length is fixed");
    }

    #[test]
    fn both_processes_see_each_others_words() {
        let words = SharedWords::new("words", 2 * rustix::param::page_size()).expect("memory");
        let other = words.as_fd().try_clone_to_owned().expect("a descriptor");
        let other = SharedWords::adopt(other).expect("an object of fixed length");
        assert_eq!(other.len(), words.len());
        words[9].store(5, Ordering::Relaxed);
        other[10].store(6, Ordering::Relaxed);
        assert_eq!((other[9].load(Ordering::Relaxed), words[10].load(Ordering::Relaxed)), (5, 6));
    }

    /// Fails on: an object that is taken without its seal.
    #[test]
    fn what_could_shrink_is_not_mapped() {
        let page = rustix::param::page_size() as u64;
        let refused = |file: OwnedFd| SharedWords::adopt(file).expect_err("it is not what it must be").to_string();
        let object =
            || rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("an object");
        let file = object();
        rustix::fs::ftruncate(&file, page).expect("room");
        assert!(refused(file).contains("could shrink"));
        let file = object();
        rustix::fs::ftruncate(&file, page + 8).expect("room");
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("it can be sealed");
        assert!(refused(file).contains("whole number of pages"));
        assert!(refused(File::open("/dev/zero").expect("it is there").into()).contains("no memory object"));
        assert!(refused(File::open("/proc/self/exe").expect("it is there").into()).contains("the descriptor is of"));
    }

    /// Fails on: words in an object as for code, which whoever gets the descriptor can execute.
    #[test]
    fn nobody_executes_words() {
        let noexec = MemfdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
        if rustix::fs::memfd_create(c"test", noexec | MemfdFlags::CLOEXEC).is_err() {
            return println!("skipped: this kernel has no memory files that cannot be executed");
        }
        let words = SharedWords::new("words", rustix::param::page_size()).expect("memory");
        let mode = rustix::fs::fstat(words.as_fd()).expect("it is open").st_mode;
        assert_eq!(mode & 0o111, 0, "{mode:o}");
    }
}
