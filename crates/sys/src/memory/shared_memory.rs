//! Memory objects that can be mapped more than once: memfds.

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::Resource;

use crate::memory::file::{self, Content, ExecRung};
use crate::memory::huge::HUGE_PAGE;
use crate::seccomp::{self, Probe, Verdict};
use crate::threads::own::Blocked;

/// The kind of pages of a [`SharedMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Pages of the base size, which `collapse` may turn into huge ones.
    Base,
    /// Pages of 2 MiB out of the pool that `vm.nr_hugepages` sets aside.
    Hugetlb,
}

/// Why a [`SharedMemory`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The length is zero, or not a whole number of pages.
    #[error("a shared memory of {len} bytes: the length must be a positive multiple of {page} bytes")]
    Length {
        /// The length asked for, in bytes.
        len: usize,
        /// The page size, in bytes.
        page: usize,
    },
    /// The file-size limit is smaller than the object; growing past it would kill the process with SIGXFSZ.
    #[error(
        "a shared memory of {len} bytes exceeds RLIMIT_FSIZE, which is {limit} bytes; raise it (`ulimit -f unlimited`)"
    )]
    FileSizeLimit {
        /// The length asked for, in bytes.
        len: usize,
        /// The soft limit, in bytes.
        limit: u64,
    },
    /// A seccomp filter answers `memfd_create` with a signal; this process did not make the call.
    #[error(
        "a seccomp filter kills memfd_create with signal {signal}; allow the system call, or use a private backing"
    )]
    Filtered {
        /// The signal that ended the probe.
        signal: i32,
    },
    /// The process has as many open files as it is allowed to.
    #[error(
        "no file descriptor is left for a memfd: RLIMIT_NOFILE is {limit}; raise it (`ulimit -n`) or close some files"
    )]
    Descriptors {
        /// The soft limit.
        limit: u64,
    },
    /// The kernel refused the object.
    #[error("memfd_create is refused; allow the system call, or use a private backing")]
    Refused(#[source] io::Error),
    /// A seccomp filter is installed, and how it answers `memfd_create` cannot be found out.
    #[error("memfd_create could be deadly under this seccomp filter; use a private backing")]
    Untried(#[source] seccomp::Untried),
    /// There is no memory for the object.
    #[error("no memory for {len} bytes of shared memory; lower the demand or raise the memory limit")]
    Allocate {
        /// The length asked for, in bytes.
        len: usize,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// An unnamed memory object (memfd): closed on exec, of fixed length, and mappable several times with different rights.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    len: usize,
    exec: ExecRung,
}

impl SharedMemory {
    /// Makes an object of `len` bytes that appears as `memfd:name` in `/proc/self/maps`.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]; nothing is left behind.
    pub fn create(name: &str, len: usize, pages: Pages) -> Result<Self, CreateError> {
        Self::create_for(name, len, pages, Content::Code)
    }

    /// Does the same as [`create`](Self::create), with base pages, for contents that are never executed.
    pub(crate) fn create_for_data(name: &str, len: usize) -> Result<Self, CreateError> {
        Self::create_for(name, len, Pages::Base, Content::Data)
    }

    fn create_for(name: &str, len: usize, pages: Pages, content: Content) -> Result<Self, CreateError> {
        let page = match pages {
            Pages::Base => rustix::param::page_size(),
            Pages::Hugetlb => HUGE_PAGE,
        };
        if len == 0 || !len.is_multiple_of(page) {
            return Err(CreateError::Length { len, page });
        }
        check_file_size_limit(len)?;
        let (fd, exec) = create_file(name, pages, content)?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|errno| CreateError::Allocate { len, source: errno.into() })?;
        // Shrinking would turn later accesses into SIGBUS, and growing is never needed. Old kernels may refuse seals on
        // hugetlb objects; then only this guard is lost.
        let _ = rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW);
        Ok(Self { fd, len, exec })
    }

    /// Returns the descriptor.
    pub(crate) fn into_file(self) -> OwnedFd {
        self.fd
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: an empty object cannot be made.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the flag with which the kernel agreed to an object that may be mapped executable.
    pub fn exec(&self) -> ExecRung {
        self.exec
    }

    /// Forbids every write except through the existing writable mappings: a later mapping can never be made writable,
    /// not even by a forked child, and an inherited descriptor cannot be used to write (`F_SEAL_FUTURE_WRITE`, since
    /// Linux 5.1; `mm/memfd.c`).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn seal_new_writers(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE)?)
    }

    /// Allocates the first page of every `stride` bytes, so that there is something to collapse.
    ///
    /// # Errors
    ///
    /// [`CreateError::Allocate`] with the kernel's answer.
    pub fn allocate_every(&self, stride: usize) -> Result<(), CreateError> {
        self.allocate_every_in(0..self.len, stride)
    }

    /// Does the same as [`allocate_every`](Self::allocate_every) for the bytes in `range`.
    pub(crate) fn allocate_every_in(&self, range: Range<usize>, stride: usize) -> Result<(), CreateError> {
        range.step_by(stride).try_for_each(|offset| self.allocate_range(offset, rustix::param::page_size()))
    }

    /// Allocates the pages of the first `len` bytes now, so that lack of memory is an error here and not a SIGBUS
    /// later.
    ///
    /// # Errors
    ///
    /// [`CreateError::Allocate`] with the kernel's answer.
    pub fn allocate(&self, len: usize) -> Result<(), CreateError> {
        self.allocate_range(0, len)
    }

    pub(crate) fn allocate_range(&self, offset: usize, len: usize) -> Result<(), CreateError> {
        let allocate =
            |at: u64, part| rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), offset as u64 + at, part);
        in_parts(len as u64, allocate).map_err(|errno| CreateError::Allocate { len, source: errno.into() })
    }
}

/// Bytes that are allocated at a time: a huge page.
const PART: u64 = HUGE_PAGE as u64;

/// Calls `allocate` with the offset and the length of each part.
///
/// The kernel gives up at any signal, and gives back what the call has allocated (`shmem_fallocate` in `mm/shmem.c`):
/// under a profiler's timer a long call would never get to its end. So a part that was interrupted is allocated with
/// signals blocked.
fn in_parts(len: u64, mut allocate: impl FnMut(u64, u64) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut at = 0;
    while at < len {
        let part = PART.min(len - at);
        let mut done = allocate(at, part);
        if done == Err(Errno::INTR) {
            let _blocked = Blocked::all();
            // Only a stop of the process, or a tracer, interrupts it now.
            while done == Err(Errno::INTR) {
                done = allocate(at, part);
            }
        }
        done?;
        at += part;
    }
    Ok(())
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn check_file_size_limit(len: usize) -> Result<(), CreateError> {
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(limit) if limit < len as u64 => Err(CreateError::FileSizeLimit { len, limit }),
        _ => Ok(()),
    }
}

pub(super) fn create_file(name: &str, pages: Pages, content: Content) -> Result<(OwnedFd, ExecRung), CreateError> {
    match seccomp::probe(Probe::MemfdCreate) {
        Verdict::Allowed => {}
        Verdict::Refused(errno) => return Err(refused(errno)),
        Verdict::Killed { signal } => return Err(CreateError::Filtered { signal }),
        Verdict::Unknown(untried) => return Err(CreateError::Untried(untried)),
    }
    let flags = match pages {
        Pages::Base => MemfdFlags::empty(),
        Pages::Hugetlb => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
    };
    let name = CString::new(name).map_err(|_| refused(Errno::INVAL))?;
    file::create(&name, content, flags).map_err(refused)
}

fn refused(errno: Errno) -> CreateError {
    match errno {
        Errno::MFILE => {
            CreateError::Descriptors { limit: rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) }
        }
        _ => CreateError::Refused(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a call for everything, or one that a timer interrupts again and again.
    #[test]
    fn what_a_signal_interrupts_gets_on_by_parts() {
        let usr1_is_blocked = || {
            // SAFETY: all zeros is a valid set.
            let mut mask = unsafe { std::mem::zeroed() };
            // SAFETY: only asks for this thread's mask, which is written to a local.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask) };
            // SAFETY: a mask that was filled above.
            unsafe { libc::sigismember(&raw const mask, libc::SIGUSR1) == 1 }
        };
        let mut done = Vec::new();
        let told = in_parts(2 * PART + 5, |at, len| {
            if usr1_is_blocked() {
                done.push((at, len));
                return Ok(());
            }
            Err(Errno::INTR)
        });
        assert_eq!(told, Ok(()));
        assert_eq!(done, [(0, PART), (PART, PART), (2 * PART, 5)]);
        assert!(!usr1_is_blocked());
        assert_eq!(in_parts(1, |_, _| Err(Errno::NOSPC)), Err(Errno::NOSPC));
    }

    #[test]
    fn an_object_has_its_length_and_cannot_be_resized() {
        let len = 4 * rustix::param::page_size();
        let memory = SharedMemory::create("test", len, Pages::Base).unwrap();
        memory.allocate(len).unwrap();
        assert_eq!(memory.len(), len);
        assert_eq!(rustix::fs::ftruncate(&memory, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&memory, 2 * len as u64), Err(Errno::PERM));
    }

    #[test]
    fn a_bad_length_is_named() {
        for len in [0, 1, rustix::param::page_size() + 1] {
            let error = SharedMemory::create("test", len, Pages::Base).unwrap_err();
            assert!(error.to_string().contains(&format!("of {len} bytes")), "{error}");
        }
    }

    #[test]
    fn the_flag_that_allows_execution_is_asked_for_first() {
        let memory = SharedMemory::create("test", rustix::param::page_size(), Pages::Base).unwrap();
        let granted = [ExecRung::Exec, ExecRung::NoexecSeal, ExecRung::Legacy].into_iter().find(|rung| {
            rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::from_bits_retain(rung.flags())).is_ok()
        });
        assert_eq!(Some(memory.exec()), granted);
    }
}
