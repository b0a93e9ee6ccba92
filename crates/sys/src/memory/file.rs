//! Memory files (`memfd_create(2)`): how all of them are made, and descriptors that the program may close unexpectedly.
//!
//! Programs close descriptors that they do not know, so a [`MemoryFile`] does not own its descriptor. It knows the
//! descriptor's number and the file's identity, and checks before each use that they still belong together. Nothing
//! here allocates.

use std::ffi::CStr;
use std::io::Write;
use std::ptr;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;

use super::calls::protection;
use super::span::Span;
use crate::pages::maps::{Device, Permissions};

/// The flags with which the kernel may agree to create a memfd for executable mappings, in the order in which they are
/// tried.
///
/// Kernels from 6.3 on expect one of the first two (`mm/memfd.c`); with `vm.memfd_noexec=2` they grant only the second,
/// which removes the *file's* execute bits but still allows mapping it `PROT_EXEC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum ExecRung {
    /// `MFD_EXEC`.
    Exec,
    /// `MFD_NOEXEC_SEAL`, because `MFD_EXEC` was refused.
    NoexecSeal,
    /// Neither flag: a kernel before 6.3.
    Legacy,
}

impl ExecRung {
    /// The rungs for code, best first.
    const LADDER: [Self; 3] = [Self::Exec, Self::NoexecSeal, Self::Legacy];
    /// The rungs for data: such a file can never be executed.
    const DATA: [Self; 2] = [Self::NoexecSeal, Self::Legacy];

    /// Returns the bits for `memfd_create`.
    pub const fn flags(self) -> u32 {
        match self {
            Self::Exec => libc::MFD_EXEC,
            Self::NoexecSeal => libc::MFD_NOEXEC_SEAL,
            Self::Legacy => 0,
        }
    }
}

/// The future contents of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Instructions.
    Code,
    /// Bytes that are never executed.
    Data,
}

/// Makes an empty memory file, closed on exec, that can be sealed. All our memory files are made here.
pub(crate) fn create(name: &CStr, content: Content, flags: MemfdFlags) -> Result<(OwnedFd, ExecRung), Errno> {
    let ladder = match content {
        Content::Code => &ExecRung::LADDER[..],
        Content::Data => &ExecRung::DATA[..],
    };
    let common = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags;
    let mut last = Errno::INVAL;
    for &rung in ladder {
        match rustix::fs::memfd_create(name, common | MemfdFlags::from_bits_retain(rung.flags())) {
            Ok(file) => return Ok((file, rung)),
            // EACCES: vm.memfd_noexec forbids this rung. EINVAL: a kernel that does not know the flag.
            Err(errno @ (Errno::ACCESS | Errno::INVAL)) => last = errno,
            Err(errno) => return Err(errno),
        }
    }
    Err(last)
}

/// Moves a descriptor above the numbers that most programs use, so that programs that rely on low numbers do not meet
/// it. Not far above: each fork copies the table of descriptors up to the highest (`dup_fd` in `fs/file.c`). Leaves it
/// if that is not possible.
pub(crate) fn out_of_the_way(low: OwnedFd) -> OwnedFd {
    /// The first number that needs a table of 256 entries, the smallest that the kernel allocates.
    const LEAST: u64 = 128;
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let least = LEAST.min(limit / 2);
    RawFd::try_from(least).ok().and_then(|least| rustix::io::fcntl_dupfd_cloexec(&low, least).ok()).unwrap_or(low)
}

/// The identity of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FileId {
    /// The device.
    pub device: Device,
    /// The inode; 0 for none.
    pub inode: u64,
}

impl FileId {
    /// Returns the identity of the file that `stat` describes.
    pub fn of(stat: &rustix::fs::Stat) -> Self {
        let device = Device { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev) };
        Self { device, inode: stat.st_ino }
    }
}

/// How a mapping of a file relates to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Writes go to the file.
    Shared,
    /// Writes make private copies of pages.
    Private,
}

/// The number that a new file's descriptor gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    /// The lowest free one.
    Any,
    /// One that the program does not meet.
    OutOfTheWay,
}

/// A call that the kernel refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refused {
    pub(super) call: &'static str,
    pub(super) errno: Errno,
}

/// How often sealing is tried again: the kernel waits for 75 ms each time, or less if something wakes the thread.
const SEAL_AGAIN: usize = 2;

/// Adds seals, among them one against writing. The kernel takes whatever refers to a page for a device that may write,
/// compaction and DAMON included.
pub(super) fn add_seals(file: impl AsFd, seals: SealFlags) -> Result<(), Errno> {
    add_seals_again(file, seals, SEAL_AGAIN)
}

fn add_seals_again(file: impl AsFd, seals: SealFlags, again: usize) -> Result<(), Errno> {
    let once = || rustix::fs::fcntl_add_seals(&file, seals);
    (0..again).fold(once(), |sealed, _| if sealed == Err(Errno::BUSY) { once() } else { sealed })
}

/// A memory file for data, with a descriptor that the program may close at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFile {
    descriptor: RawFd,
    id: FileId,
}

impl MemoryFile {
    /// Makes a file of `len` zero bytes, which `/proc/self/maps` shows as `name`.
    ///
    /// # Errors
    ///
    /// The kernel's. [`Errno::FBIG`] if `RLIMIT_FSIZE` is smaller: beyond it the kernel would send SIGXFSZ
    /// (`fs/attr.c`, `inode_newsize_ok`).
    pub fn create(name: &CStr, len: u64) -> Result<Self, Errno> {
        Self::make(name, len, Number::OutOfTheWay).map_err(|refused| refused.errno)
    }

    /// Does the same as [`create`](Self::create), and tells which call was refused.
    pub(super) fn make(name: &CStr, len: u64, number: Number) -> Result<Self, Refused> {
        let refused = |call| move |errno| Refused { call, errno };
        if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len) {
            return Err(Refused { call: "ftruncate", errno: Errno::FBIG });
        }
        let (file, _) = create(name, Content::Data, MemfdFlags::empty()).map_err(refused("memfd_create"))?;
        rustix::fs::ftruncate(&file, len).map_err(refused("ftruncate"))?;
        let stat = rustix::fs::fstat(&file).map_err(refused("fstat"))?;
        let file = match number {
            Number::Any => file,
            Number::OutOfTheWay => out_of_the_way(file),
        };
        Ok(Self { descriptor: file.into_raw_fd(), id: FileId::of(&stat) })
    }

    /// Returns the file's identity, as `/proc/self/maps` shows it.
    pub const fn id(&self) -> FileId {
        self.id
    }

    /// Returns the descriptor's number, which may belong to another file by now; -1 once it is closed.
    pub(super) const fn number(&self) -> RawFd {
        self.descriptor
    }

    /// Returns the descriptor, if it still belongs to this file.
    pub(super) fn verified(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.descriptor < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: not -1. The number may belong to another file by now, or to none; the next line checks that before
        // anything else uses it.
        let file = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        if FileId::of(&rustix::fs::fstat(file)?) == self.id { Ok(file) } else { Err(Errno::BADF) }
    }

    /// Maps the bytes from `offset` over `span`, with these rights. If the call fails, the kernel may have unmapped
    /// what was there; [`remap::show_file`](super::remap::show_file) handles that.
    ///
    /// # Safety
    ///
    /// 1. `span` is whole pages, and the caller may replace what is mapped there: nobody relies on bytes other than the
    ///    file's.
    ///
    /// # Errors
    ///
    /// The kernel's; [`Errno::BADF`] if the program has closed the file.
    pub unsafe fn map_over(
        &self,
        span: Span,
        offset: u64,
        sharing: Sharing,
        permissions: Permissions,
    ) -> Result<(), Errno> {
        let flags = match sharing {
            Sharing::Shared => MapFlags::SHARED,
            // Not charged: the file already is.
            Sharing::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let place = ptr::with_exposed_provenance_mut(span.start);
        let rights = ProtFlags::from_bits_retain(protection(permissions).cast_unsigned());
        // SAFETY: contract 1 is the caller's.
        unsafe { rustix::mm::mmap(place, span.len(), rights, flags | MapFlags::FIXED, self.verified()?, offset) }?;
        Ok(())
    }

    /// Maps the start of the file shared over `span`, to be filled there. Children do not get the mapping, and the
    /// remaining descriptor cannot write to the file.
    ///
    /// A child made by the raw system call inherits that descriptor. It can read, but it can neither write to this
    /// process's memory nor open the file for writing, unless it runs as this process's user or may override access
    /// rights.
    ///
    /// # Safety
    ///
    /// 1. As for [`map_over`](Self::map_over).
    ///
    /// # Errors
    ///
    /// The kernel's. The mapping may exist all the same.
    pub unsafe fn fill_at(&mut self, span: Span) -> Result<(), Errno> {
        // SAFETY: contract 1 is the caller's.
        unsafe { self.map_over(span, 0, Sharing::Shared, Permissions::READ_WRITE) }?;
        let place = ptr::with_exposed_provenance_mut(span.start);
        // SAFETY: the mapping made just now, which children do not need.
        unsafe { rustix::mm::madvise(place, span.len(), Advice::LinuxDontFork) }?;
        self.forgo_writing()
    }

    /// Replaces the descriptor by one without the right to write.
    fn forgo_writing(&mut self) -> Result<(), Errno> {
        let file = self.verified()?;
        let Ok(reader) = reopened(file, OFlags::RDONLY) else {
            // There is no procfs. Then `MADV_REMOVE` cannot give back pages of the file (`shmem_fallocate`).
            let future_write = SealFlags::from_bits_retain(libc::F_SEAL_FUTURE_WRITE as u32);
            return rustix::fs::fcntl_add_seals(file, future_write);
        };
        // So only its owner can open it again.
        rustix::fs::fchmod(&reader, Mode::empty())?;
        let reader = out_of_the_way(reader);
        self.close();
        self.descriptor = reader.into_raw_fd();
        Ok(())
    }

    /// Writes the memory at `span` to the file at `offset`. Writes to no memory of this process except the caller's
    /// stack.
    ///
    /// # Errors
    ///
    /// The kernel's: [`Errno::FAULT`] for a page that cannot be read. [`Errno::BADF`] if the program has closed the
    /// file.
    pub fn store(&self, span: Span, offset: u64) -> Result<(), Errno> {
        // SAFETY: 1. nothing is written to memory.
        unsafe { copy(self.verified()?, Copied::ToFile, span, offset) }.map_err(|(_, errno)| errno)
    }

    /// Makes the file constant, by whichever descriptor can do it.
    ///
    /// # Errors
    ///
    /// [`Errno::BUSY`] while a device may still write to its pages (`mm/memfd.c`, `memfd_wait_for_pins`) or it is
    /// mapped shared and writable; otherwise the kernel's error.
    pub fn seal(&self) -> Result<(), Errno> {
        self.seal_again(SEAL_AGAIN)
    }

    /// Does the same, but asks the kernel only once: what refers to a page for a moment makes it fail, too.
    ///
    /// # Errors
    ///
    /// As for [`seal`](Self::seal).
    pub fn seal_once(&self) -> Result<(), Errno> {
        self.seal_again(0)
    }

    fn seal_again(&self, again: usize) -> Result<(), Errno> {
        let file = self.verified()?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        match add_seals_again(file, seals, again) {
            // Only a descriptor with the right to write may add seals (`mm/memfd.c`, `memfd_add_seals`).
            Err(Errno::PERM) => {
                rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
                add_seals_again(reopened(file, OFlags::RDWR)?, seals, again)
            }
            other => other,
        }
    }

    /// Whether the program has left the descriptor open.
    pub fn is_open(&self) -> bool {
        self.verified().is_ok()
    }

    /// Closes the descriptor, if it still belongs to this file. Mappings stay.
    pub fn close(&mut self) {
        if let Ok(file) = self.verified() {
            let number = file.as_raw_fd();
            // SAFETY: verified to belong to this file, which only values of this type hold; not used afterwards.
            unsafe { rustix::io::close(number) };
        }
        self.descriptor = -1;
    }
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copied {
    ToFile,
    ToMemory,
}

/// Copies between the memory at `span` and the file from `offset` on. After a failure, returns what was left of the
/// span. Writes to no memory of this process except that and the caller's stack, and to `errno` only if it fails.
///
/// # Safety
///
/// 1. Memory that is copied to is the caller's and writable, and there is no reference into it.
pub(super) unsafe fn copy(file: BorrowedFd<'_>, way: Copied, span: Span, offset: u64) -> Result<(), (Span, Errno)> {
    // Not by `pwrite` and `pread`, which AddressSanitizer intercepts: it would report the memory that it guards.
    let call = match way {
        Copied::ToFile => libc::SYS_pwrite64,
        Copied::ToMemory => libc::SYS_pread64,
    };
    let (mut left, mut offset) = (span, offset);
    while !left.is_empty() {
        let place = ptr::with_exposed_provenance_mut::<u8>(left.start);
        // SAFETY: the kernel answers EFAULT if there is no memory; no reference is made. It writes only to the caller's
        // memory (1), and no more than the rest of the span.
        let done = unsafe { libc::syscall(call, file.as_raw_fd(), place, left.len(), offset.cast_signed()) };
        match usize::try_from(done) {
            // The end of the file.
            Ok(0) => return Err((left, Errno::IO)),
            Ok(done) => {
                left.start += done;
                offset += done as u64;
            }
            Err(_) => match crate::last_errno() {
                Errno::INTR => {}
                errno => return Err((left, errno)),
            },
        }
    }
    Ok(())
}

/// Opens a descriptor's file once more, with other rights.
pub(super) fn reopened(file: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    let mut path = [0; 40];
    // The array has room for every number, and a zero behind it.
    let _ = write!(&mut path[..39], "/proc/thread-self/fd/{}", file.as_raw_fd());
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::{Mapping, Protection, Source};

    fn writes(file: BorrowedFd<'_>) -> Result<usize, Errno> {
        rustix::io::pwrite(file, b"x", 0)
    }

    #[test]
    fn a_file_that_is_being_filled_can_be_written_through_its_mapping_alone() {
        let page = rustix::param::page_size();
        let place = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).unwrap();
        let mut file = MemoryFile::create(c"test", page as u64).unwrap();
        // SAFETY: 1. the test's own mapping, without contents.
        unsafe { file.fill_at(place.range().into()) }.unwrap();
        // SAFETY: mapped writable, and this test's own.
        unsafe { place.as_ptr().write(7) };
        let descriptor = file.verified().unwrap();
        assert_eq!(writes(descriptor), Err(Errno::BADF));
        let mut byte = [0];
        assert_eq!((rustix::io::pread(descriptor, &mut byte, 0), byte), (Ok(1), [7]));
        let mode = rustix::fs::fstat(descriptor).unwrap().st_mode;
        assert_eq!(mode & 0o777, 0, "nobody but its owner can open it again");
        // SAFETY: only asks.
        assert_eq!(unsafe { libc::fcntl(file.descriptor, libc::F_GETFD) }, libc::FD_CLOEXEC);
        // It can still be sealed, once no shared mapping is left.
        assert_eq!(file.seal(), Err(Errno::BUSY));
        // SAFETY: 1. the same bytes.
        unsafe { file.map_over(place.range().into(), 0, Sharing::Private, Permissions::READ_WRITE) }.unwrap();
        // A child that another test of this program forked before the mapping was omitted has it until it ends.
        while let Err(errno) = file.seal() {
            assert_eq!(errno, Errno::BUSY);
            std::thread::yield_now();
        }
        let writer = reopened(file.verified().unwrap(), OFlags::RDWR).unwrap();
        assert_eq!(rustix::io::pwrite(&writer, b"x", 0), Err(Errno::PERM));
        file.close();
        // SAFETY: mapped, and this test's own; a mapping outlives its descriptor.
        assert_eq!(unsafe { place.as_ptr().read() }, 7);
    }

    #[test]
    fn a_descriptor_that_became_another_file_is_left_alone() {
        let mut file = MemoryFile::create(c"test", 4096).unwrap();
        let other = MemoryFile::create(c"test", 4096).unwrap();
        // SAFETY: both are this test's own; the first is replaced in place.
        assert_eq!(unsafe { libc::dup2(other.descriptor, file.descriptor) }, file.descriptor);
        assert_eq!(file.seal(), Err(Errno::BADF));
        let number = file.descriptor;
        file.close();
        // SAFETY: only asks.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0, "another's descriptor is left alone");
    }

    #[test]
    fn files_for_data_never_become_programs() {
        let (data, rung) = create(c"test", Content::Data, MemfdFlags::empty()).unwrap();
        let sealed = MemfdFlags::from_bits_retain(ExecRung::NoexecSeal.flags());
        if rustix::fs::memfd_create(c"test", sealed | MemfdFlags::CLOEXEC).is_err() {
            println!("skipped: a kernel before 6.3");
            return;
        }
        assert_eq!(rung, ExecRung::NoexecSeal);
        let seals = rustix::fs::fcntl_get_seals(&data).unwrap().bits();
        assert_ne!(seals & libc::F_SEAL_EXEC as u32, 0, "MFD_NOEXEC_SEAL");
        assert_eq!(rustix::fs::fstat(&data).unwrap().st_mode & 0o111, 0);
        assert_eq!(rustix::fs::fchmod(&data, Mode::RWXU), Err(Errno::PERM));
    }

    #[test]
    fn numbers_of_any_length_are_reopened() {
        let (file, _) = create(c"test", Content::Data, MemfdFlags::empty()).unwrap();
        for least in [10, 100, 200] {
            let file = rustix::io::fcntl_dupfd_cloexec(&file, least).unwrap();
            let again = reopened(file.as_fd(), OFlags::RDONLY).unwrap();
            let id = |fd: &OwnedFd| FileId::of(&rustix::fs::fstat(fd).unwrap());
            assert_eq!(id(&again), id(&file));
            // SAFETY: only asks.
            assert_eq!(unsafe { libc::fcntl(again.as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
        }
    }
}
