//! Words that several processes share.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::atomic::AtomicU64;

use crate::memory::error::MapError;
use crate::memory::mapping::{Mapping, Protection, Source};
use crate::memory::shared_memory::{CreateError, SharedMemory};

/// A memory object of fixed length, mapped as atomic words. A process that gets its descriptor may map it too, and
/// write anything.
#[derive(Debug)]
pub struct SharedWords {
    object: SharedMemory,
    /// # Invariants
    ///
    /// 1. Maps all of `object` for reading and writing, and only `deref` makes references into it.
    mapping: Mapping,
}

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
        Ok(Self { object, mapping })
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
        self.object.as_fd()
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
