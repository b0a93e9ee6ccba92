//! Memory objects whose contents can never change again, and the bytes in them.
//!
//! A [`SealedFile`] is a memory file that this process, or another one of the same user, has sealed against writing,
//! growing and shrinking. [`SealedBytes`] maps one: as nobody can change it, its bytes can be read like any constant,
//! also if another process has made them.
//!
//! ```
//! use palimpsest_sys::memory::sealed::SealedBytes;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (constant, made) = SealedBytes::of(b"read by many", None)?;
//! assert_eq!(constant.as_bytes(), b"read by many");
//! // Why it is not as good as it could be: it is smaller than a huge page.
//! assert!(made.not_huge.is_some());
//! # Ok(())
//! # }
//! ```

use std::ops::Range;
use std::time::{Duration, Instant};
use std::{io, iter};

use rustix::io::Errno;
use rustix::mm::Advice;

use super::area::Area;
use super::error::MapError;
use super::huge::{CollapseError, HUGE_PAGE, collapse_part};
use super::mapping::{Mapping, Protection, Source};
use super::sealed_file::SealedFile;
use super::shared_memory::{CreateError, SharedMemory};
use crate::numa::NodeId;
use crate::numa::policy::{self, NumaError};

/// Why constant bytes could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// There are no bytes.
    #[error("no bytes: there is nothing to keep a copy of")]
    Empty,
    /// No memory object could be made.
    #[error("no memory object for {len} bytes")]
    Create {
        /// Requested bytes.
        len: usize,
        /// The reason.
        #[source]
        source: CreateError,
    },
    /// It could not be mapped.
    #[error("a constant memory object cannot be mapped")]
    Map(#[source] MapError),
    /// Its future contents could not be read.
    #[error("what was to be copied cannot be read")]
    Fill(#[source] io::Error),
    /// It could not be made constant.
    #[error("a memory object cannot be made constant ({call})")]
    Seal {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
}

/// The wishes that were not fulfilled.
#[derive(Debug, Default)]
pub struct Made {
    /// Why its memory could not be requested from the node, and may be on another one.
    pub not_placed: Option<NumaError>,
    /// Why it does not consist, or is not known to consist, of huge pages.
    pub not_huge: Option<NotHuge>,
}

/// Why bytes are in small pages.
#[derive(Debug, thiserror::Error)]
pub enum NotHuge {
    /// They fill less than half of a huge page.
    #[error("{len} bytes do not fill half of a huge page")]
    Small {
        /// The number of bytes.
        len: usize,
    },
    /// They could not be collapsed into a huge page.
    #[error(transparent)]
    Collapse(#[from] CollapseError),
}

/// Bytes in a constant memory object.
#[derive(Debug)]
pub struct SealedBytes {
    /// # Invariants
    ///
    /// 1. It maps a file that is sealed against writing and shrinking, readable, from its start.
    area: Mapping,
    /// Length of the bytes; at most that of the mapping.
    len: usize,
}

impl SealedBytes {
    /// Copies `content` into an object of its own, with memory from `node` and in huge pages if there are any. Also
    /// returns the wishes that were not fulfilled.
    ///
    /// # Errors
    ///
    /// See [`SealError`].
    pub fn of(content: &[u8], node: Option<NodeId>) -> Result<(Self, Made), SealError> {
        let (bytes, _, made) = Self::with_file(content, node)?;
        Ok((bytes, made))
    }

    /// Does the same as [`of`](Self::of). Also returns the file, for other processes to adopt.
    ///
    /// # Errors
    ///
    /// As for [`of`](Self::of).
    pub fn with_file(content: &[u8], node: Option<NodeId>) -> Result<(Self, SealedFile, Made), SealError> {
        let size = size_for(content.len()).ok_or(SealError::Empty)?;
        let (file, mut made) = SealedFile::filled(size, 0..size, node, |bytes| {
            bytes[..content.len()].copy_from_slice(content);
            Ok(())
        })?;
        if let Some(NotHuge::Small { len }) = &mut made.not_huge {
            *len = content.len();
        }
        let bytes = Self::map(&file, content.len())?;
        Ok((bytes, file, made))
    }

    /// Maps the first `len` bytes of a sealed file; fewer if it has fewer.
    ///
    /// # Errors
    ///
    /// [`SealError::Map`]; [`SealError::Empty`] for no bytes.
    pub fn map(file: &SealedFile, len: usize) -> Result<Self, SealError> {
        // No more than needed: populating the rest would cost memory.
        let size = size_for(len).ok_or(SealError::Empty)?.min(file.len());
        let area = Mapping::new(Source::Sealed(file), size, Protection::Read, HUGE_PAGE).map_err(SealError::Map)?;
        // Populates now, so that first accesses do not wait. Kernels before 5.14 populate at each access instead.
        // SAFETY: the mapping made just now, which is constant.
        let _ = unsafe { rustix::mm::madvise(area.as_ptr().cast(), area.len(), Advice::LinuxPopulateRead) };
        Ok(Self { area, len: len.min(size) })
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: mapped readable as long as this value lives, never longer than the file, which cannot shrink, and
        // constant, as nobody can write to it (invariant 1).
        unsafe { std::slice::from_raw_parts(self.area.as_ptr(), self.len) }
    }

    /// Returns their memory, including the rest of the last page.
    pub fn area(&self) -> &Area {
        &self.area
    }
}

/// For how long to wait for a child that has a file mapped which is to be constant: each time, and in all.
const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_millis(500);

fn page_size() -> usize {
    rustix::param::page_size()
}

/// Returns the size of an object for `len` bytes: whole pages, and whole huge pages if the last would be more than half
/// full.
fn size_for(len: usize) -> Option<usize> {
    let size = len.checked_next_multiple_of(page_size()).filter(|size| *size > 0)?;
    if size % HUGE_PAGE > HUGE_PAGE / 2 { size.checked_next_multiple_of(HUGE_PAGE) } else { Some(size) }
}

impl SealedFile {
    /// Makes a memory object of `size` bytes, lets `fill` write those in `wanted`, and seals it. They get memory from
    /// `node` if it has any, and huge pages where they fill whole ones. The rest has no memory, and reads as zeros.
    ///
    /// `size` and the ends of `wanted` are multiples of the page size.
    ///
    /// # Errors
    ///
    /// See [`SealError`].
    pub fn filled(
        size: usize,
        wanted: Range<usize>,
        node: Option<NodeId>,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> Result<(Self, Made), SealError> {
        let wanted = wanted.start.min(size)..wanted.end.min(size);
        if wanted.is_empty() {
            return Err(SealError::Empty);
        }
        let failed = |source| SealError::Create { len: wanted.len(), source };
        let memory = SharedMemory::create_for_data("palimpsest-constant", size).map_err(failed)?;
        let mut made = Made::default();
        let writable = Mapping::unforked(Source::Shared(&memory), size, HUGE_PAGE).map_err(SealError::Map)?;
        if let Some(node) = node {
            // Nothing has to be asked where all memory comes from there.
            let is_elsewhere = |_: &NumaError| policy::allowed_nodes() != Ok(iter::once(node).collect());
            made.not_placed = policy::prefer(&writable, node).err().filter(is_elsewhere);
        }
        made.not_huge = make_huge(&memory, &writable, &wanted).err();
        // Lack of memory must be an error here, and not a SIGBUS below.
        memory.allocate_range(wanted.start, wanted.len()).map_err(failed)?;
        let start = writable.as_ptr().wrapping_add(wanted.start);
        // SAFETY: inside the mapping, which is writable, known only here and lives until after the call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, wanted.len()) };
        fill(bytes).map_err(SealError::Fill)?;
        drop(writable);
        let begun = Instant::now();
        let waits = || {
            std::thread::sleep(PAUSE);
            begun.elapsed() < PATIENCE
        };
        let file = Self::seal(memory, waits).map_err(|(call, errno)| SealError::Seal { call, errno })?;
        Ok((file, made))
    }
}

/// Makes the whole huge pages in `wanted`, still empty, consist of huge pages.
fn make_huge(memory: &SharedMemory, area: &Mapping, wanted: &Range<usize>) -> Result<(), NotHuge> {
    let huge = wanted.start.next_multiple_of(HUGE_PAGE)..wanted.end / HUGE_PAGE * HUGE_PAGE;
    if huge.is_empty() {
        return Err(NotHuge::Small { len: wanted.len() });
    }
    // There must be something to collapse; if there is no memory, allocating the rest reports it.
    let _ = memory.allocate_every_in(huge.clone(), HUGE_PAGE);
    Ok(collapse_part(area, huge)?)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::memory::file::reopened;
    use crate::pages::smaps::pmd_mapped_bytes;
    use crate::seccomp::tests::filtered;

    #[test]
    fn bytes_are_as_they_were_and_stay_so() {
        let content: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
        let (bytes, file, made) = SealedBytes::with_file(&content, None).unwrap();
        assert_eq!(bytes.as_bytes(), content);
        assert!(matches!(made.not_huge, Some(NotHuge::Small { len: 10_000 })), "{made:?}");
        assert!(made.not_placed.is_none());
        let reader = file.verified().unwrap();
        assert_eq!(rustix::io::pwrite(reader, b"x", 0), Err(Errno::BADF));
        let again = rustix::fs::fchmod(reader, Mode::RUSR | Mode::WUSR).and_then(|()| reopened(reader, OFlags::RDWR));
        assert_eq!(rustix::io::pwrite(again.as_ref().unwrap(), b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(again.unwrap(), 0), Err(Errno::PERM));
        // A view cannot get the right to write either.
        assert!(bytes.area.set_protection(rustix::mm::MprotectFlags::WRITE).is_err());
        drop(file);
        assert_eq!(bytes.as_bytes(), content, "a mapping outlives its descriptor");
    }

    /// As in a container, which forbids `mbind`, on a machine with one node.
    ///
    /// Fails on: a copy that counts as misplaced though it can be nowhere else.
    #[test]
    fn memory_that_can_come_from_one_node_alone_is_there() {
        let allowed: Vec<NodeId> = policy::allowed_nodes().unwrap().iter().collect();
        filtered(libc::SYS_mbind, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), || {
            let refused = |node| SealedBytes::of(b"content", Some(node)).unwrap().1.not_placed;
            let expected = (allowed.len() > 1).then_some(NumaError::Refused { call: "mbind", errno: Errno::PERM });
            assert_eq!(refused(allowed[0]), expected);
            assert!(refused(NodeId(1023)).is_some());
        });
    }

    #[test]
    fn many_bytes_are_in_huge_pages() {
        for (len, size, huge) in [
            (1, page_size(), 0),
            (HUGE_PAGE / 2, HUGE_PAGE / 2, 0),
            (HUGE_PAGE / 2 + 1, HUGE_PAGE, HUGE_PAGE),
            (2 * HUGE_PAGE + 5, 2 * HUGE_PAGE + page_size(), 2 * HUGE_PAGE),
        ] {
            let content = vec![7; len];
            let (bytes, made) = SealedBytes::of(&content, None).unwrap();
            assert!(bytes.as_bytes() == content);
            assert_eq!((bytes.area().len(), made.not_huge.is_some() || huge > 0), (size, true), "{made:?}");
            match made.not_huge {
                Some(NotHuge::Collapse(error)) => println!("skipped: {error}"),
                _ => assert_eq!(pmd_mapped_bytes(bytes.area().range()).unwrap(), huge),
            }
        }
        assert!(matches!(SealedBytes::of(&[], None), Err(SealError::Empty)));
    }
}
