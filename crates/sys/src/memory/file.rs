//! Memory files (`memfd_create(2)`): how all of them are made, and descriptors that the program may close behind our
//! back.
//!
//! Programs close descriptors that they do not know, so a [`MemoryFile`] does not own its descriptor. It knows the
//! number and the identity of the file, and looks whether both still belong together before each use. Nothing here
//! allocates.

use std::ffi::CStr;
use std::io::Write;
use std::ptr;

use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;

use super::calls::protection;
use super::span::Span;
use crate::pages::maps::{Device, Permissions};

/// The flag with which the kernel agreed to create a memfd that may be mapped executable, in the order in which they
/// are offered.
///
/// Kernels from 6.3 want one of the first two (`mm/memfd.c`); with `vm.memfd_noexec=2` only the second is granted,
/// which takes away the *file's* execute bits and still lets it be mapped `PROT_EXEC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum ExecRung {
    /// `MFD_EXEC`.
    Exec,
    /// `MFD_NOEXEC_SEAL`, since `MFD_EXEC` was refused.
    NoexecSeal,
    /// Neither flag: a kernel before 6.3.
    Legacy,
}

impl ExecRung {
    /// The rungs for code, best first.
    pub const LADDER: [Self; 3] = [Self::Exec, Self::NoexecSeal, Self::Legacy];
    /// The rungs for data: such a file can never become a program.
    const DATA: [Self; 2] = [Self::NoexecSeal, Self::Legacy];

    /// The bits for `memfd_create`.
    pub const fn flags(self) -> u32 {
        match self {
            Self::Exec => libc::MFD_EXEC,
            Self::NoexecSeal => libc::MFD_NOEXEC_SEAL,
            Self::Legacy => 0,
        }
    }
}

/// What a memory file will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Instructions.
    Code,
    /// Nothing that is ever executed.
    Data,
}

/// Makes an empty memory file, closed on exec, that can be sealed. All memory files of ours come from here.
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

/// Moves a descriptor to numbers above those that most programs use, where those that count on low numbers do not meet
/// it. Not far above: each fork copies the table of descriptors up to the highest (`dup_fd` in `fs/file.c`). It stays
/// where that is not possible.
pub(crate) fn out_of_the_way(low: OwnedFd) -> OwnedFd {
    /// The first that need a table of 256 entries, the least that the kernel allocates.
    const LEAST: u64 = 128;
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let least = LEAST.min(limit / 2);
    RawFd::try_from(least).ok().and_then(|least| rustix::io::fcntl_dupfd_cloexec(&low, least).ok()).unwrap_or(low)
}

/// Which file something is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FileId {
    /// The device.
    pub device: Device,
    /// The inode; 0 for none.
    pub inode: u64,
}

impl FileId {
    /// The file that `stat` tells of.
    pub fn of(stat: &rustix::fs::Stat) -> Self {
        let device = Device { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev) };
        Self { device, inode: stat.st_ino }
    }
}

/// How a mapping of a file relates to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Writes go to the file.
    Shared,
    /// Writes make private copies of pages.
    Private,
}

/// What the descriptor of a new file is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    /// The lowest that is free.
    Any,
    /// Where the program does not meet it.
    OutOfTheWay,
}

/// A call that the kernel refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refused {
    pub(super) call: &'static str,
    pub(super) errno: Errno,
}

const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);

/// A memory file for data, by a descriptor that the program may close at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFile {
    descriptor: RawFd,
    id: FileId,
}

impl MemoryFile {
    /// Makes one of `len` zero bytes, which `/proc/self/maps` shows by `name`.
    ///
    /// # Errors
    ///
    /// The kernel's answer. [`Errno::FBIG`] where `RLIMIT_FSIZE` is smaller: past it the kernel would send SIGXFSZ
    /// (`fs/attr.c`, `inode_newsize_ok`).
    pub fn create(name: &CStr, len: u64) -> Result<Self, Errno> {
        Self::make(name, len, Number::OutOfTheWay).map_err(|refused| refused.errno)
    }

    /// As [`create`](Self::create), and tells which call was refused.
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

    /// Which file this is, as `/proc/self/maps` shows it.
    pub const fn id(&self) -> FileId {
        self.id
    }

    /// The descriptor's number, whatever it is by now; -1 once it is closed.
    pub(super) const fn number(&self) -> RawFd {
        self.descriptor
    }

    /// The descriptor, if it still is this file's.
    pub(super) fn verified(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.descriptor < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: not -1. The number may belong to another file by now, or to none; the next line finds out, and
        // nothing else uses it before.
        let file = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        if FileId::of(&rustix::fs::fstat(file)?) == self.id { Ok(file) } else { Err(Errno::BADF) }
    }

    /// Maps the bytes from `offset` over `span`, with these rights. The kernel may have unmapped what is there before
    /// it fails; [`remap::show_file`](super::remap::show_file) cares for that.
    ///
    /// # Safety
    ///
    /// 1. The caller may replace what is mapped at `span`, which is whole pages: nobody relies on other bytes than the
    ///    file's.
    ///
    /// # Errors
    ///
    /// The kernel's answer; [`Errno::BADF`] if the program closed the file.
    pub unsafe fn map_over(&self, span: Span, offset: u64, view: View, permissions: Permissions) -> Result<(), Errno> {
        let flags = match view {
            View::Shared => MapFlags::SHARED,
            // Not charged: the file is already.
            View::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let place = ptr::with_exposed_provenance_mut(span.start);
        let rights = ProtFlags::from_bits_retain(protection(permissions).cast_unsigned());
        // SAFETY: contract 1 is the caller's.
        unsafe { rustix::mm::mmap(place, span.len(), rights, flags | MapFlags::FIXED, self.verified()?, offset) }?;
        Ok(())
    }

    /// Maps the start of the file shared over `span`, to be filled there: children do not get the mapping, and the
    /// descriptor that is left cannot write to the file.
    ///
    /// A child of the raw system call inherits that descriptor. It can read, but it can neither write to this process's
    /// memory nor open the file for writing, unless it has this process's user or may override access rights.
    ///
    /// # Safety
    ///
    /// 1. As for [`map_over`](Self::map_over).
    ///
    /// # Errors
    ///
    /// The kernel's answer. The mapping may then be there.
    pub unsafe fn fill_at(&mut self, span: Span) -> Result<(), Errno> {
        // SAFETY: contract 1 is the caller's.
        unsafe { self.map_over(span, 0, View::Shared, READ_WRITE) }?;
        let place = ptr::with_exposed_provenance_mut(span.start);
        // SAFETY: the mapping made just now, which other processes can do without.
        unsafe { rustix::mm::madvise(place, span.len(), Advice::LinuxDontFork) }?;
        self.forgo_writing()
    }

    /// Replaces the descriptor by one that cannot write.
    fn forgo_writing(&mut self) -> Result<(), Errno> {
        let file = self.verified()?;
        let Ok(reader) = reopened(file, OFlags::RDONLY) else {
            // Without procfs. Pages of the file cannot be given back by `MADV_REMOVE` then (`shmem_fallocate`).
            let future_write = SealFlags::from_bits_retain(libc::F_SEAL_FUTURE_WRITE as u32);
            return rustix::fs::fcntl_add_seals(file, future_write);
        };
        // Who is not its owner cannot open it again.
        rustix::fs::fchmod(&reader, Mode::empty())?;
        let reader = out_of_the_way(reader);
        self.close();
        self.descriptor = reader.into_raw_fd();
        Ok(())
    }

    /// Writes the memory at `span` to the file at `offset`. Touches no memory of this process but the caller's stack.
    ///
    /// # Errors
    ///
    /// The kernel's answer: [`Errno::FAULT`] for a page that cannot be read. [`Errno::BADF`] if the program closed the
    /// file.
    pub fn store(&self, span: Span, offset: u64) -> Result<(), Errno> {
        // SAFETY: 1. nothing is written to memory.
        unsafe { copy(self.verified()?, Copied::ToFile, span, offset) }.map_err(|(_, errno)| errno)
    }

    /// Makes the file constant, for every descriptor of it that anybody has.
    ///
    /// # Errors
    ///
    /// [`Errno::BUSY`] while a device may still write to its pages (`mm/memfd.c`, `memfd_wait_for_pins`) or it is
    /// mapped shared and writable; otherwise the kernel's answer.
    pub fn seal(&self) -> Result<(), Errno> {
        let file = self.verified()?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        match rustix::fs::fcntl_add_seals(file, seals) {
            // Only a descriptor that can write may add seals (`mm/memfd.c`, `memfd_add_seals`).
            Err(Errno::PERM) => {
                rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
                rustix::fs::fcntl_add_seals(reopened(file, OFlags::RDWR)?, seals)
            }
            other => other,
        }
    }

    /// Gives the descriptor back, if it is still this file's. Mappings stay.
    pub fn close(&mut self) {
        if let Ok(file) = self.verified() {
            let number = file.as_raw_fd();
            // SAFETY: verified to be this file's, which only values of this type hold; not used afterwards.
            unsafe { rustix::io::close(number) };
        }
        self.descriptor = -1;
    }
}

/// Where bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copied {
    ToFile,
    ToMemory,
}

/// Copies between the memory at `span` and the file from `offset` on; after a failure, tells what was left of the span.
/// Touches no memory of this process but that and the caller's stack, nor `errno` unless it fails.
///
/// # Safety
///
/// 1. What is copied to is writable memory of the caller, and nobody has a reference into it.
pub(super) unsafe fn copy(file: BorrowedFd<'_>, way: Copied, span: Span, offset: u64) -> Result<(), (Span, Errno)> {
    // Not through `pwrite` and `pread`, which AddressSanitizer intercepts: it would report the memory that it guards.
    let call = match way {
        Copied::ToFile => libc::SYS_pwrite64,
        Copied::ToMemory => libc::SYS_pread64,
    };
    let (mut left, mut offset) = (span, offset);
    while !left.is_empty() {
        let place = ptr::with_exposed_provenance_mut::<u8>(left.start);
        // SAFETY: the kernel answers EFAULT where there is no memory; no reference is made. What it writes to is the
        // caller's (1), and no more than what is left of it.
        let done = unsafe { libc::syscall(call, file.as_raw_fd(), place, left.len(), offset.cast_signed()) };
        match usize::try_from(done) {
            // The file ends.
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

/// Opens the file of a descriptor once more, with other rights.
pub(super) fn reopened(file: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    let mut path = [0; 32];
    // There is room for every number, and a zero behind it.
    let _ = write!(&mut path[..31], "/proc/self/fd/{}", file.as_raw_fd());
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
        // It can still be sealed, once nothing shared is left.
        assert_eq!(file.seal(), Err(Errno::BUSY));
        // SAFETY: 1. the same bytes.
        unsafe { file.map_over(place.range().into(), 0, View::Private, READ_WRITE) }.unwrap();
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
            println!("SKIPPED: a kernel before 6.3");
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
            let again = reopened(rustix::fd::AsFd::as_fd(&file), OFlags::RDONLY).unwrap();
            let id = |fd: &OwnedFd| FileId::of(&rustix::fs::fstat(fd).unwrap());
            assert_eq!(id(&again), id(&file));
            // SAFETY: only asks.
            assert_eq!(unsafe { libc::fcntl(again.as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
        }
    }
}
