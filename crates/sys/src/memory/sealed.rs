//! Memory objects whose contents can never change again, and bytes in them.
//!
//! A [`SealedFile`] is a memory file that is sealed against writing, growing and shrinking, by this process or by
//! another one of the same user. [`SealedBytes`] maps one: as nobody can change it, its bytes can be read like any
//! constant, also where another process has made them.
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

use std::ptr;

use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::process::Pid;

use super::file::{FileId, out_of_the_way, reopened};
use super::huge::{CollapseError, HUGE_PAGE, collapse_head};
use super::mapping::{Area, MapError, Mapping, Protection, Source};
use super::shared_memory::{CreateError, SharedMemory};
use crate::numa::NodeId;
use crate::numa::policy::{self, NumaError};

/// How `/proc` shows these memory files.
pub const NAME: &str = "/memfd:palimpsest-constant (deleted)";

/// What makes a file constant.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Why there are no constant bytes.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Nothing to keep.
    #[error("no bytes: there is nothing to keep a copy of")]
    Empty,
    /// No memory object could be made.
    #[error("no memory object for {len} bytes")]
    Create {
        /// Bytes that were wanted.
        len: usize,
        /// Why.
        #[source]
        source: CreateError,
    },
    /// It could not be mapped.
    #[error("a constant memory object cannot be mapped")]
    Map(#[source] MapError),
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

/// Why another process's memory object is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdoptError {
    /// It is not there: the process has ended, or has closed it.
    #[error("process {process} has no descriptor {descriptor} any more")]
    Gone {
        /// The process.
        process: Pid,
        /// Its descriptor.
        descriptor: RawFd,
    },
    /// The kernel does not give it out.
    #[error("descriptor {descriptor} of process {process} cannot be opened")]
    Refused {
        /// The process.
        process: Pid,
        /// Its descriptor.
        descriptor: RawFd,
        /// The kernel's answer: EACCES for a process that may not be looked into (`ptrace(2)`).
        #[source]
        errno: Errno,
    },
    /// It is another file, or one that somebody could still change.
    #[error("descriptor {descriptor} of process {process} is {what}")]
    Foreign {
        /// The process.
        process: Pid,
        /// Its descriptor.
        descriptor: RawFd,
        /// What it is.
        what: &'static str,
    },
}

/// A memory file that nobody can change.
///
/// The program may close its descriptor behind our back; so it is looked whether number and file still belong together
/// before each use.
#[derive(Debug)]
pub struct SealedFile {
    descriptor: RawFd,
    id: FileId,
    len: usize,
}

impl SealedFile {
    /// Seals a memory object that nobody has mapped for writing.
    fn seal(memory: SharedMemory) -> Result<Self, SealError> {
        let failed = |call| move |errno| SealError::Seal { call, errno };
        let len = memory.len();
        let file = memory.into_file();
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        // Other processes of this user open it for reading alone.
        rustix::fs::fchmod(&file, Mode::RUSR).map_err(failed("fchmod"))?;
        // Before Linux 6.7 a file that is sealed against writing is mapped from descriptors alone that cannot write.
        // Without procfs there is none.
        let reader = reopened(file.as_fd(), OFlags::RDONLY).unwrap_or(file);
        Self::of(reader, len).map_err(failed("fstat"))
    }

    fn of(file: OwnedFd, len: usize) -> Result<Self, Errno> {
        let file = out_of_the_way(file);
        let id = FileId::of(&rustix::fs::fstat(&file)?);
        Ok(Self { descriptor: file.into_raw_fd(), id, len })
    }

    /// Opens the object that another process has at its descriptor, if it is the one with the inode `inode`, belongs to
    /// this process's user, and can never change. Says nothing of what is in it.
    ///
    /// # Errors
    ///
    /// See [`AdoptError`].
    pub fn adopt(process: Pid, descriptor: RawFd, inode: u64) -> Result<Self, AdoptError> {
        let foreign = |what| AdoptError::Foreign { process, descriptor, what };
        let refused = |errno| match errno {
            Errno::NOENT | Errno::SRCH => AdoptError::Gone { process, descriptor },
            errno => AdoptError::Refused { process, descriptor, errno },
        };
        let path = format!("/proc/{}/fd/{descriptor}", process.as_raw_nonzero());
        // Before anything is opened: to open a device or a pipe has effects.
        let target = rustix::fs::readlinkat(CWD, &path, Vec::new()).map_err(refused)?;
        if target.to_bytes() != NAME.as_bytes() {
            return Err(foreign("no memory object of ours"));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(refused)?;
        let stat = rustix::fs::fstat(&file).map_err(refused)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(foreign("no regular file"));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(foreign("another user's"));
        }
        if stat.st_ino != inode {
            return Err(foreign("another object"));
        }
        // Files outside memory have no seals, those of tmpfs none of these (`mm/memfd.c`).
        if !rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(foreign("not sealed: it could still change"));
        }
        let len = usize::try_from(stat.st_size).ok().filter(|len| *len > 0 && len.is_multiple_of(page_size()));
        Self::of(file, len.ok_or(foreign("of no whole number of pages"))?).map_err(refused)
    }

    /// The number of its descriptor in this process.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Which file this is.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The descriptor, if it still is this file's.
    pub(super) fn verified(&self) -> Result<BorrowedFd<'_>, Errno> {
        // SAFETY: not -1. The number may belong to another file by now, or to none; the next line finds out, and
        // nothing else uses it before.
        let file = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        if FileId::of(&rustix::fs::fstat(file)?) == self.id { Ok(file) } else { Err(Errno::BADF) }
    }
}

impl Drop for SealedFile {
    fn drop(&mut self) {
        if self.verified().is_ok() {
            // SAFETY: verified to be this file's, which only this value holds; not used afterwards.
            unsafe { rustix::io::close(self.descriptor) };
        }
    }
}

/// What became of wishes that were no conditions.
#[derive(Debug, Default)]
pub struct Made {
    /// Why its memory was not asked of the node.
    pub not_placed: Option<NumaError>,
    /// Why it is not, or not known to be, of huge pages.
    pub not_huge: Option<NotHuge>,
}

/// Why bytes are in small pages.
#[derive(Debug, thiserror::Error)]
pub enum NotHuge {
    /// They do not fill half of one.
    #[error("{len} bytes do not fill half of a huge page")]
    Small {
        /// How many.
        len: usize,
    },
    /// The kernel has none to give.
    #[error(transparent)]
    Collapse(#[from] CollapseError),
}

/// Bytes in a memory object that nobody can change.
#[derive(Debug)]
pub struct SealedBytes {
    /// # Invariants
    ///
    /// 1. It shows a file that is sealed against writing and shrinking, for reading, from its start.
    area: Mapping,
    /// Bytes that count; no more than the mapping has.
    len: usize,
}

impl SealedBytes {
    /// Copies `content` into an object of its own, with memory from `node` if that has any, in huge pages if there are
    /// any. Tells what became of these wishes.
    ///
    /// # Errors
    ///
    /// See [`SealError`].
    pub fn of(content: &[u8], node: Option<NodeId>) -> Result<(Self, Made), SealError> {
        let (bytes, _, made) = Self::with_file(content, node)?;
        Ok((bytes, made))
    }

    /// As [`of`](Self::of), with the file, for other processes to adopt.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn with_file(content: &[u8], node: Option<NodeId>) -> Result<(Self, SealedFile, Made), SealError> {
        let size = size_for(content.len()).ok_or(SealError::Empty)?;
        let failed = |source| SealError::Create { len: content.len(), source };
        let memory = SharedMemory::create_for_data("palimpsest-constant", size).map_err(failed)?;
        let mut made = Made::default();
        let writable = Mapping::unforked(Source::Shared(&memory), size, HUGE_PAGE).map_err(SealError::Map)?;
        if let Some(node) = node {
            made.not_placed = policy::prefer(&writable, node).err();
        }
        made.not_huge = make_huge(&memory, &writable, content.len()).err();
        // Lack of memory is an error here, and not a SIGBUS below.
        memory.allocate(size).map_err(failed)?;
        // SAFETY: the mapping is writable, at least as long, and known to nobody else.
        unsafe { ptr::copy_nonoverlapping(content.as_ptr(), writable.as_ptr(), content.len()) };
        drop(writable);
        let file = SealedFile::seal(memory)?;
        let bytes = Self::map(&file, content.len())?;
        Ok((bytes, file, made))
    }

    /// Maps the first `len` bytes of a sealed file; fewer if it has fewer.
    ///
    /// # Errors
    ///
    /// [`SealError::Map`]; [`SealError::Empty`] for no bytes.
    pub fn map(file: &SealedFile, len: usize) -> Result<Self, SealError> {
        // No more than is needed: to populate what lies behind would cost memory.
        let size = size_for(len).ok_or(SealError::Empty)?.min(file.len);
        let area = Mapping::new(Source::Sealed(file), size, Protection::Read, HUGE_PAGE).map_err(SealError::Map)?;
        // Nobody waits at the first access. Kernels before 5.14 do not know this, and populate at each.
        // SAFETY: the mapping made just now, which is constant.
        let _ = unsafe { rustix::mm::madvise(area.as_ptr().cast(), area.len(), Advice::LinuxPopulateRead) };
        Ok(Self { area, len: len.min(size) })
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: mapped readable as long as this value lives, never longer than the file, which cannot shrink, and
        // constant, as nobody can write to it (invariant 1).
        unsafe { std::slice::from_raw_parts(self.area.as_ptr(), self.len) }
    }

    /// Where they are, with what fills up the last page.
    pub fn area(&self) -> &Area {
        &self.area
    }
}

fn page_size() -> usize {
    rustix::param::page_size()
}

/// Bytes of the object for `len` bytes: whole pages, and whole huge pages if the last one is more than half full.
fn size_for(len: usize) -> Option<usize> {
    let size = len.checked_next_multiple_of(page_size()).filter(|size| *size > 0)?;
    if size % HUGE_PAGE > HUGE_PAGE / 2 { size.checked_next_multiple_of(HUGE_PAGE) } else { Some(size) }
}

/// Makes the whole huge pages of an object, which is empty, be such.
fn make_huge(memory: &SharedMemory, area: &Mapping, len: usize) -> Result<(), NotHuge> {
    let huge = area.len() / HUGE_PAGE * HUGE_PAGE;
    if huge == 0 {
        return Err(NotHuge::Small { len });
    }
    // There must be something to collapse; if there is no memory, allocating the rest will tell.
    let _ = memory.allocate_every(HUGE_PAGE);
    Ok(collapse_head(area, huge)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::pages::smaps::pmd_mapped_bytes;

    fn own() -> Pid {
        rustix::process::getpid()
    }

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
        // The right to write cannot be had for a view either.
        assert!(bytes.area.set_protection(rustix::mm::MprotectFlags::WRITE).is_err());
        drop(file);
        assert_eq!(bytes.as_bytes(), content, "a mapping outlives its descriptor");
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

    #[test]
    fn what_another_process_has_is_taken_only_if_it_is_what_it_is_said_to_be() {
        let (bytes, file, _) = SealedBytes::with_file(b"constant", None).unwrap();
        let (number, inode) = (file.descriptor(), file.id().inode);
        let adopted = SealedFile::adopt(own(), number, inode).unwrap();
        assert_eq!(SealedBytes::map(&adopted, 8).unwrap().as_bytes(), bytes.as_bytes());
        let what = |answer: Result<SealedFile, AdoptError>| match answer.unwrap_err() {
            AdoptError::Foreign { what, .. } => what,
            other => panic!("{other}"),
        };
        assert_eq!(what(SealedFile::adopt(own(), number, inode + 1)), "another object");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(what(SealedFile::adopt(own(), null.as_raw_fd(), inode)), "no memory object of ours");
        // One of the right name that its maker can still write to.
        let open = SharedMemory::create_for_data("palimpsest-constant", page_size()).unwrap().into_file();
        let inode_of_open = rustix::fs::fstat(&open).unwrap().st_ino;
        let answer = SealedFile::adopt(own(), open.as_raw_fd(), inode_of_open);
        assert_eq!(what(answer), "not sealed: it could still change");
        drop(file);
        let gone = SealedFile::adopt(own(), number, inode);
        assert!(gone.is_err(), "closed, or another test's by now");
    }

    #[test]
    fn a_descriptor_that_the_program_took_is_left_alone() {
        let (_, file, _) = SealedBytes::with_file(b"constant", None).unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        let number = file.descriptor();
        // SAFETY: replaces a descriptor of this test's.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(SealedBytes::map(&file, 8).is_err());
        drop(file);
        // SAFETY: only asks.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
        // SAFETY: this test's own.
        unsafe { libc::close(number) };
    }
}
