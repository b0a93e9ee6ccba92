//! A mapping of its own for one program: written first, executable afterwards, never both.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::PlaceError;

/// One private mapping whose first bytes are a program.
///
/// # Invariants
///
/// `start` is the beginning of a mapping of `len` bytes that belongs to this value alone.
#[derive(Debug)]
pub(crate) struct CodeArea {
    start: NonNull<u8>,
    len: usize,
}

impl CodeArea {
    /// Maps `reserved` bytes (at least the length of `code`; both rounded up to pages), copies `code` to the beginning
    /// and makes the pages of the code executable. The rest of the mapping stays writable and untouched.
    pub(crate) fn place(code: &[u8], reserved: usize) -> Result<Self, PlaceError> {
        let page = rustix::param::page_size();
        let executable = code.len().next_multiple_of(page);
        let len = reserved.next_multiple_of(page).max(executable);
        // SAFETY: no address is asked for, so the kernel chooses one where nothing is mapped.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let failed = |errno: rustix::io::Errno| PlaceError::Map { len, source: errno.into() };
        let start = NonNull::new(mapped.map_err(failed)?.cast::<u8>())
            .ok_or_else(|| PlaceError::Map { len, source: io::ErrorKind::AddrNotAvailable.into() })?;
        let area = Self { start, len };
        // SAFETY: the new mapping is writable, at least as long as `code`, and no reference into it exists yet.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), start.as_ptr(), code.len()) };
        // SAFETY: the range lies in `area`'s own mapping, and nothing refers to its bytes.
        let protected =
            unsafe { mprotect(start.as_ptr().cast(), executable, MprotectFlags::READ | MprotectFlags::EXEC) };
        protected.map_err(|errno| PlaceError::Protect { len: executable, source: errno.into() })?;
        super::make_visible(start, code.len());
        Ok(area)
    }

    /// First byte of the program.
    pub(crate) fn entry(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for CodeArea {
    fn drop(&mut self) {
        // SAFETY: by the invariant the mapping is ours; whoever called its code borrowed this value to do so.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()), "a whole mapping can be unmapped");
    }
}
