//! Extents: memory that is written once, sealed, and then mapped privately. Frozen ranges show it.
//!
//! An extent is a memfd. It is much longer than its contents, so that a mapping that `mremap` has grown reads zeros,
//! instead of getting SIGBUS or somebody else's bytes. Once sealed it can never change: pages that a private mapping
//! has not written show the file, and would show its changes.
//!
//! As a [`MemoryFile`], an [`Extent`] does not own its descriptor.

use std::ops::Range;

use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::Errno;

pub use super::file::FileId;
use super::file::{Copied, MemoryFile, Number, Refused, Sharing, copy};
use super::span::Span;
use crate::pages::maps::Permissions;

/// Length of every extent in bytes: contains all contents and growth, and fits `off_t`.
pub const LENGTH: u64 = 1 << 46;

/// The name in `/proc/self/maps` of a mapping of an extent with [`Use::Frozen`] memory.
pub const EXTENT_NAME: &str = "/memfd:palimpsest-frozen (deleted)";
/// The name of a mapping of an extent for a [`Use::Snapshot`].
pub const SNAPSHOT_NAME: &str = "/memfd:palimpsest-snapshot (deleted)";

/// The use of the memory in an extent; mappings show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Use {
    /// Shown in place of frozen memory.
    Frozen,
    /// Kept to be restored.
    Snapshot,
}

/// A memory file with contents. A plain value, like [`MemoryFile`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent(MemoryFile);

/// Why an extent cannot be made, written, read or mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExtentError {
    /// It could not be made.
    #[error("cannot make a memory file of {LENGTH} bytes ({call}): {errno}")]
    Create {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The program has closed the descriptor.
    #[error("descriptor {descriptor} of frozen memory was closed by the program")]
    Closed {
        /// Its number.
        descriptor: RawFd,
    },
    /// Bytes could not be written or read.
    #[error("cannot copy {len} bytes at {address:#x}: {errno}")]
    Copy {
        /// The address.
        address: usize,
        /// Bytes that were left to copy.
        len: usize,
        /// The kernel's error; EFAULT for a page that cannot be read, such as a guard.
        errno: Errno,
    },
    /// The kernel refused a mapping.
    #[error("cannot map {len} bytes at {address:#x}: {errno}")]
    Map {
        /// The address.
        address: usize,
        /// The length in bytes.
        len: usize,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl ExtentError {
    /// The kernel's refusal to map `span`.
    pub const fn unmapped(span: Span, errno: Errno) -> Self {
        Self::Map { address: span.start, len: span.end - span.start, errno }
    }
}

impl Extent {
    /// Makes an empty extent, whose descriptor does not collide with the program's.
    ///
    /// # Errors
    ///
    /// [`ExtentError::Create`], with EFBIG if `RLIMIT_FSIZE` is finite. A seccomp filter may kill the process: ask
    /// first.
    pub fn create(intended: Use) -> Result<Self, ExtentError> {
        let (name, number) = match intended {
            // Frozen memory is mapped soon, and the descriptor closed then.
            Use::Frozen => (c"palimpsest-frozen", Number::Any),
            Use::Snapshot => (c"palimpsest-snapshot", Number::OutOfTheWay),
        };
        let file = MemoryFile::make(name, LENGTH, number);
        file.map(Self).map_err(|Refused { call, errno }| ExtentError::Create { call, errno })
    }

    /// Returns the file's identity, as `/proc/self/maps` shows it.
    pub const fn id(&self) -> FileId {
        self.0.id()
    }

    fn closed(&self) -> ExtentError {
        ExtentError::Closed { descriptor: self.0.number() }
    }

    /// Returns the descriptor, if it still belongs to this file. Callers use the result only while no other thread
    /// could close it: they hold the process still.
    fn verified(&self) -> Result<BorrowedFd<'_>, ExtentError> {
        self.0.verified().map_err(|_| self.closed())
    }

    /// Writes the memory at `range` to the file at `offset`. Writes to no memory of this process except the caller's
    /// stack, and to `errno` only if it fails.
    ///
    /// # Errors
    ///
    /// [`ExtentError::Copy`], [`ExtentError::Closed`].
    pub fn store(&self, range: Range<usize>, offset: u64) -> Result<(), ExtentError> {
        // SAFETY: 1. nothing is written to memory.
        unsafe { copy(self.verified()?, Copied::ToFile, range.into(), offset) }.map_err(uncopied)
    }

    /// Reads the file from `offset` into the memory at `range`.
    ///
    /// # Safety
    ///
    /// 1. The range is writable memory of the caller, and there is no reference into it.
    ///
    /// # Errors
    ///
    /// [`ExtentError::Copy`], [`ExtentError::Closed`].
    pub unsafe fn load(&self, range: Range<usize>, offset: u64) -> Result<(), ExtentError> {
        // SAFETY: 1. is (1).
        unsafe { copy(self.verified()?, Copied::ToMemory, range.into(), offset) }.map_err(uncopied)
    }

    /// Forbids every later change.
    ///
    /// # Errors
    ///
    /// [`ExtentError::Create`] with the kernel's answer, [`ExtentError::Closed`].
    pub fn seal(&self) -> Result<(), ExtentError> {
        self.verified()?;
        self.0.seal().map_err(|errno| ExtentError::Create { call: "fcntl(F_ADD_SEALS)", errno })
    }

    /// Maps the file's bytes from `offset` privately over `range`, and replaces what is there. If the call fails, the
    /// kernel may have unmapped that already.
    ///
    /// # Safety
    ///
    /// 1. The range is whole pages, and the caller may replace what is mapped there: its bytes are in this file at
    ///    `offset`, or nobody needs them any more.
    ///
    /// # Errors
    ///
    /// [`ExtentError::Map`], [`ExtentError::Closed`].
    pub unsafe fn map_over(
        &self,
        range: Range<usize>,
        offset: u64,
        permissions: Permissions,
    ) -> Result<(), ExtentError> {
        self.verified()?;
        let span = Span::from(range);
        let refused = |errno| ExtentError::unmapped(span, errno);
        // SAFETY: 1. is (1).
        unsafe { self.0.map_over(span, offset, Sharing::Private, permissions) }.map_err(refused)
    }

    /// Closes the descriptor, if it still belongs to this file. Mappings stay.
    pub fn close(&mut self) {
        self.0.close();
    }
}

/// Returns the error for an incomplete copy.
fn uncopied((left, errno): (Span, Errno)) -> ExtentError {
    ExtentError::Copy { address: left.start, len: left.len(), errno }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::{Mapping, Protection, Source};

    #[test]
    fn contents_are_kept_beyond_the_descriptor() {
        let page = rustix::param::page_size();
        let place = Mapping::new(Source::Anonymous, 4 * page, Protection::ReadWrite, page).unwrap();
        // SAFETY: inside the mapping that this test owns.
        unsafe { place.as_ptr().wrapping_add(page).write_bytes(7, page) };
        let mut extent = Extent::create(Use::Frozen).unwrap();
        extent.store(place.address() + page..place.address() + 2 * page, page as u64).unwrap();
        extent.seal().unwrap();
        assert!(extent.store(place.range(), 0).is_err(), "sealed");
        // SAFETY: 1. the test's own mapping, whose only bytes are in the file.
        unsafe { extent.map_over(place.range(), 0, Permissions::READ_WRITE) }.unwrap();
        // SAFETY: mapped, and this test's own.
        assert_eq!(unsafe { place.as_ptr().wrapping_add(page).read_volatile() }, 7);
        // SAFETY: mapped, and this test's own; a hole of the file reads zeros.
        assert_eq!(unsafe { place.as_ptr().read_volatile() }, 0);
        extent.close();
        assert_eq!(extent.seal(), Err(ExtentError::Closed { descriptor: extent.0.number() }));
        // SAFETY: mapped, and this test's own; a mapping outlives its descriptor.
        assert_eq!(unsafe { place.as_ptr().wrapping_add(page).read_volatile() }, 7);
    }

    #[test]
    fn a_descriptor_that_became_another_file_is_not_used() {
        let extent = Extent::create(Use::Frozen).unwrap();
        let other = Extent::create(Use::Frozen).unwrap();
        // SAFETY: both are this test's own; the first is replaced in place.
        assert_eq!(unsafe { libc::dup2(other.0.number(), extent.0.number()) }, extent.0.number());
        assert_eq!(extent.seal(), Err(ExtentError::Closed { descriptor: extent.0.number() }));
        let mut extent = extent;
        let number = extent.0.number();
        extent.close();
        // SAFETY: only asks.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0, "another's descriptor is left alone");
    }

    #[test]
    fn the_file_is_the_one_that_maps_shows() {
        let page = rustix::param::page_size();
        let place = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).unwrap();
        let extent = Extent::create(Use::Frozen).unwrap();
        // SAFETY: 1. the test's own mapping, without contents.
        unsafe { extent.map_over(place.range(), 0, Permissions::READ_WRITE) }.unwrap();
        let maps = crate::pages::maps::Maps::read().unwrap();
        let shown = maps.at(place.address()).unwrap();
        assert_eq!(FileId { device: shown.device, inode: shown.inode }, extent.id());
        assert_eq!(shown.path.as_deref(), Some(std::path::Path::new(EXTENT_NAME)));
    }
}
