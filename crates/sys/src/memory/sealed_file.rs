//! Constant memory files, made here or adopted from another process of this user.

use std::ptr;

use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SealFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;

use super::calls;
use super::file::{FileId, add_seals, out_of_the_way, reopened};
use super::shared_memory::SharedMemory;
use super::span::Span;
use crate::pages::lines::{VmasError, mapping_at};
use crate::pages::maps::Device;

/// The name of these memory files in `/proc`.
pub const NAME: &str = "/memfd:palimpsest-constant (deleted)";

/// The seals that make a file constant.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Why another process's memory object cannot be adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdoptError {
    /// It does not exist: the process has ended, or has closed it.
    #[error("process {process} has no descriptor {descriptor} any more")]
    Gone {
        /// The process.
        process: Pid,
        /// Its descriptor.
        descriptor: RawFd,
    },
    /// The kernel does not hand it out.
    #[error("descriptor {descriptor} of process {process} cannot be opened")]
    Refused {
        /// The process.
        process: Pid,
        /// Its descriptor.
        descriptor: RawFd,
        /// The kernel's error: EACCES for a process that this one may not inspect (`ptrace(2)`).
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
        /// What it is instead.
        what: &'static str,
    },
    /// This process cannot tell memory objects from other files.
    #[error("whether descriptor {descriptor} of process {process} is a memory object cannot be found out")]
    Untold {
        /// The process.
        process: Pid,
        /// Its descriptor.
        descriptor: RawFd,
        /// The kernel's error.
        #[source]
        errno: Errno,
    },
}

/// A constant memory file.
///
/// The program may close its descriptor unexpectedly; so each use first checks that number and file still belong
/// together.
#[derive(Debug)]
pub struct SealedFile {
    descriptor: RawFd,
    id: FileId,
    len: usize,
}

impl SealedFile {
    /// Seals a memory object that nobody has mapped for writing, but perhaps a child that another thread has forked
    /// before the mapping was kept from children: `waits` gives that time to execute another program, or to end, and
    /// returns whether to try again. Fails with the name of the refused call.
    pub(super) fn seal(memory: SharedMemory, mut waits: impl FnMut() -> bool) -> Result<Self, (&'static str, Errno)> {
        let failed = |call| move |errno| (call, errno);
        let len = memory.len();
        let file = memory.into_file();
        let mut sealed = add_seals(&file, SEALS);
        while sealed == Err(Errno::BUSY) && waits() {
            sealed = add_seals(&file, SEALS);
        }
        sealed.map_err(failed("fcntl(F_ADD_SEALS)"))?;
        // Other processes of this user open it only for reading.
        rustix::fs::fchmod(&file, Mode::RUSR).map_err(failed("fchmod"))?;
        // Before Linux 6.7, a file that is sealed against writing can only be mapped through a descriptor without the
        // right to write. Without procfs there is no such descriptor.
        let reader = reopened(file.as_fd(), OFlags::RDONLY).unwrap_or(file);
        Self::of(reader, len).map_err(failed("fstat"))
    }

    fn of(file: OwnedFd, len: usize) -> Result<Self, Errno> {
        let file = out_of_the_way(file);
        let id = FileId::of(&rustix::fs::fstat(&file)?);
        Ok(Self { descriptor: file.into_raw_fd(), id, len })
    }

    /// Opens the object at another process's descriptor, if it has the inode `inode`, belongs to this process's user,
    /// and can never change. Promises nothing about its contents.
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
        // Only held, not opened: opening a device, a pipe or a file of FUSE has effects, or waits for somebody.
        let held = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(refused)?;
        // Names can be forged, and the descriptor may change meanwhile: so this asks about the held file, which must be
        // on the file system of memory files. Cached answers will do, so that no server of a file system is asked.
        let flags = AtFlags::EMPTY_PATH.union(AtFlags::STATX_DONT_SYNC);
        let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID | StatxFlags::INO;
        let found = rustix::fs::statx(&held, "", flags, wanted).map_err(refused)?;
        let device = Device { major: found.stx_dev_major, minor: found.stx_dev_minor };
        if device_of_memory().map_err(|errno| AdoptError::Untold { process, descriptor, errno })? != device {
            return Err(foreign("no memory object"));
        }
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
            return Err(foreign("no regular file"));
        }
        if found.stx_uid != rustix::process::geteuid().as_raw() {
            return Err(foreign("another user's"));
        }
        if found.stx_ino != inode {
            return Err(foreign("another object"));
        }
        let file = reopened(held.as_fd(), OFlags::RDONLY).map_err(refused)?;
        let stat = rustix::fs::fstat(&file).map_err(refused)?;
        // Files outside memory have no seals, those of tmpfs not these (`mm/memfd.c`).
        if !rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(foreign("not sealed: it could still change"));
        }
        let len =
            usize::try_from(stat.st_size).ok().filter(|len| *len > 0 && len.is_multiple_of(rustix::param::page_size()));
        Self::of(file, len.ok_or(foreign("of no whole number of pages"))?).map_err(refused)
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the descriptor's number in this process.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Returns the file's identity.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Returns the descriptor, if it still belongs to this file.
    pub(crate) fn verified(&self) -> Result<BorrowedFd<'_>, Errno> {
        // SAFETY: not -1. The number may belong to another file by now, or to none; the next line checks that before
        // anything else uses it.
        let file = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        if FileId::of(&rustix::fs::fstat(file)?) == self.id { Ok(file) } else { Err(Errno::BADF) }
    }
}

/// Returns the device of all memory files: a mount of the kernel, which nobody else can make. Memory that is shared
/// without a file is on it, too (`shm_mnt` in `mm/shmem.c`), and takes no call for which a filter may end the process.
fn device_of_memory() -> Result<Device, Errno> {
    let page = rustix::param::page_size();
    let (none, flags) = (ProtFlags::empty(), MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let at = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), page, none, flags) }?;
    let place = Span::new(at.expose_provenance(), at.expose_provenance() + page);
    let found = mapping_at(place.start);
    // SAFETY: 1. mapped just now, and never used.
    unsafe { calls::unmap(place) }?;
    let found = found.map_err(|error| if let VmasError::Read { source, .. } = error { source } else { Errno::IO })?;
    found.map(|map| map.device).ok_or(Errno::NOENT)
}

impl Drop for SealedFile {
    fn drop(&mut self) {
        if self.verified().is_ok() {
            // SAFETY: verified to belong to this file, which only this value holds; not used afterwards.
            unsafe { rustix::io::close(self.descriptor) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::memory::mapping::{Mapping, Protection, Source};
    use crate::memory::sealed::SealedBytes;
    use crate::seccomp::tests::in_filtered_child;

    fn own() -> Pid {
        rustix::process::getpid()
    }

    /// Fails on: a file that is made only to learn its device, for which a filter may end the process before `main`, or
    /// whose refusal is taken for one of the other process.
    #[test]
    fn what_another_process_has_is_taken_under_a_filter_against_making_such_files() {
        let (bytes, file, _) = SealedBytes::with_file(b"constant", None).unwrap();
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
        let parent = own();
        for action in [libc::SECCOMP_RET_KILL_PROCESS, refused] {
            let status = in_filtered_child(libc::SYS_memfd_create, action, || {
                let adopted = SealedFile::adopt(parent, file.descriptor(), file.id().inode);
                let mapped = adopted.ok().and_then(|file| SealedBytes::map(&file, 8).ok());
                mapped.is_some_and(|mapped| mapped.as_bytes() == bytes.as_bytes())
            });
            assert_eq!(status, 0, "256 if it was not taken, 31 if a file was made");
        }
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
        assert_eq!(what(SealedFile::adopt(own(), null.as_raw_fd(), inode)), "no memory object");
        // A file with the right name that its maker can still write.
        let page = rustix::param::page_size();
        let open = SharedMemory::create_for_data("palimpsest-constant", page).unwrap().into_file();
        let inode_of_open = rustix::fs::fstat(&open).unwrap().st_ino;
        let answer = SealedFile::adopt(own(), open.as_raw_fd(), inode_of_open);
        assert_eq!(what(answer), "not sealed: it could still change");
        drop(file);
        let gone = SealedFile::adopt(own(), number, inode);
        assert!(gone.is_err(), "closed, or another test's by now");
    }

    /// Fails on: a refusal since another thread has just forked.
    #[test]
    fn a_child_that_still_has_it_mapped_is_waited_for() {
        let page = rustix::param::page_size();
        let memory = SharedMemory::create_for_data("palimpsest-constant", page).unwrap();
        let writable = Mapping::new(Source::Shared(&memory), page, Protection::ReadWrite, page).unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Should the test fail. SAFETY: takes numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
            loop {
                // SAFETY: takes nothing.
                unsafe { libc::pause() };
            }
        }
        drop(writable);
        let mut pauses = 0;
        let sealed = SealedFile::seal(memory, || {
            pauses += 1;
            if pauses == 1 {
                // SAFETY: a child of this test's that was not waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
                // SAFETY: as above; the status goes nowhere.
                assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), 0) }, child);
            } else {
                // One that another test has forked meanwhile.
                std::thread::yield_now();
            }
            true
        });
        assert!(sealed.is_ok() && pauses > 0, "{sealed:?} after {pauses}");
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
