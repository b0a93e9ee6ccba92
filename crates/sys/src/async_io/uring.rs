//! Rings of io_uring: what one can learn about a ring that somebody else has made.
//!
//! Sources: `io_uring/fdinfo.c`, `io_uring/register.c`, `io_uring/kbuf.c`, `io_uring/zcrx.c`,
//! `include/uapi/linux/io_uring.h`. Some calls here are meant to fail; the kernel's order of checks in them was tried
//! on Linux 6.18.

use std::io::Write;
use std::ptr;

use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, readlinkat_raw};
use rustix::io::Errno;

use crate::last_errno;
use crate::pages::lines::each_line;
use crate::seccomp::{FreezeCall, was_deadly_at_the_start};

/// The name of a ring, as a descriptor's link and in the list of mappings.
pub const RING_NAME: &[u8] = b"anon_inode:[io_uring]";

/// Operations of `io_uring_register`.
const PROBE: u32 = 8;
const PBUF_RING: u32 = 22;
const PBUF_STATUS: u32 = 26;
const ZCRX_IFQ: u32 = 32;
const MEM_REGION: u32 = 34;
/// The first argument is an index in the thread's table of rings, not a descriptor (Linux 6.3).
const USE_REGISTERED_RING: u32 = 1 << 31;
/// Entries of that table (`IO_RINGFD_REG_MAX` in `include/linux/io_uring_types.h`).
const PLACES: i32 = 16;

/// An unreadable address: the kernel answers EFAULT after all checks that need no argument.
const NOWHERE: usize = usize::MAX & !7;

/// A descriptor of this process that was a ring when checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingDescriptor(i32);

/// The progress of a ring's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Registered buffers, or entries for them.
    pub buffers: u64,
    /// Requests that the kernel has taken.
    pub taken: u64,
    /// Requests that the program has queued, taken or not.
    pub queued: u64,
    /// Completions that the kernel has posted.
    pub posted: u64,
}

impl RingDescriptor {
    /// Returns the ring behind `descriptor`; `None` if that is something else, or closed.
    ///
    /// # Errors
    ///
    /// The kernel's, if `/proc` cannot be read.
    pub fn of(descriptor: i32) -> Result<Option<Self>, Errno> {
        // One byte more than a ring's link, since the call cuts longer links: those are different ones.
        let mut target = [0_u8; RING_NAME.len() + 1];
        let mut path = [0_u8; 48];
        match readlinkat_raw(CWD, proc_path(&mut path, "fd", descriptor)?, &mut target[..]) {
            Ok(len) => Ok((target.get(..len) == Some(RING_NAME)).then_some(Self(descriptor))),
            // The descriptor may be closed by now.
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the descriptor's number.
    pub fn number(self) -> i32 {
        self.0
    }

    /// Returns the progress of its queues; `None` if the kernel does not tell: before Linux 5.17, and while somebody
    /// else uses the ring.
    ///
    /// # Errors
    ///
    /// The kernel's, if `/proc` cannot be read.
    pub fn progress(self) -> Result<Option<Progress>, Errno> {
        let mut path = [0_u8; 48];
        let path = proc_path(&mut path, "fdinfo", self.0)?;
        let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut told = Told::default();
        // Longer than any line there.
        let mut buffer = [0; 4096];
        each_line(file.as_fd(), &mut buffer, "fdinfo", &mut |line, _| {
            told.take(line);
            Ok(())
        })
        .map_err(|_| Errno::IO)?;
        Ok(told.all())
    }

    /// Returns the inode of the ring, which mappings show.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub fn inode(self) -> Result<u64, Errno> {
        // SAFETY: the number is that of an open descriptor, or the kernel says that it is not.
        let descriptor = unsafe { rustix::fd::BorrowedFd::borrow_raw(self.0) };
        Ok(rustix::fs::fstat(descriptor)?.st_ino)
    }

    /// Returns whether the queues are in the kernel's memory: tries to map a page of them for a moment. Queues of a
    /// ring made with `IORING_SETUP_NO_MMAP` are in the program's memory, and cannot be mapped.
    pub fn is_in_kernel_memory(self) -> bool {
        let page = rustix::param::page_size();
        // SAFETY: the number is that of an open descriptor, or the kernel says that it is not.
        let descriptor = unsafe { rustix::fd::BorrowedFd::borrow_raw(self.0) };
        let flags = rustix::mm::MapFlags::SHARED;
        // The ring is at offset 0 (`IORING_OFF_SQ_RING`). SAFETY: a new mapping replaces nothing, and nobody reads its
        // contents.
        let mapped =
            unsafe { rustix::mm::mmap(ptr::null_mut(), page, rustix::mm::ProtFlags::READ, flags, descriptor, 0) };
        let Ok(mapped) = mapped else { return false };
        // SAFETY: made above.
        let unmapped = unsafe { rustix::mm::munmap(mapped, page) };
        debug_assert_eq!(unmapped, Ok(()));
        true
    }

    /// Returns the first group of buffers that has a ring of its own (`IORING_REGISTER_PBUF_RING`). Asks about all
    /// 65536 groups.
    ///
    /// # Errors
    ///
    /// The error of the kernel or of a filter: the question exists since Linux 6.8, such rings since 5.19; `EEXIST` if
    /// only another thread may ask.
    pub fn buffer_ring(self) -> Result<Option<u16>, Errno> {
        if self.register(PBUF_RING, NOWHERE) == Err(Errno::INVAL) {
            return Ok(None);
        }
        match self.register(PBUF_STATUS, NOWHERE) {
            Err(Errno::FAULT) => {}
            other => return Err(other.err().unwrap_or(Errno::IO)),
        }
        for group in 0..=u16::MAX {
            // `struct io_uring_buf_status`: the group, its head, and eight words of zeroes.
            let mut status = [0_u32; 10];
            status[0] = u32::from(group);
            match self.register(PBUF_STATUS, (&raw mut status).expose_provenance()) {
                Ok(()) => return Ok(Some(group)),
                // No ring, or buffers that were provided one by one: the kernel keeps only their addresses, not the
                // memory.
                Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Returns whether it holds memory of the program other than its queues (`IORING_REGISTER_MEM_REGION`), or may hold
    /// some into which a network card writes (`IORING_REGISTER_ZCRX_IFQ`).
    ///
    /// # Errors
    ///
    /// As [`buffer_ring`](Self::buffer_ring).
    pub fn has_region(self) -> Result<bool, Errno> {
        match self.register(MEM_REGION, NOWHERE) {
            Ok(()) | Err(Errno::BUSY) => return Ok(true),
            // Kernels before 6.13 do not know it.
            Err(Errno::FAULT | Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
        match self.register(ZCRX_IFQ, NOWHERE) {
            // Such a ring has none, this kernel does not support it (before 6.15), or this user may not use it.
            Err(Errno::INVAL | Errno::PERM) => Ok(false),
            Ok(()) | Err(Errno::FAULT | Errno::BUSY) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    fn register(self, operation: u32, argument: usize) -> Result<(), Errno> {
        register(self.0, operation, argument)
    }
}

/// Returns whether the calling thread has a ring in its own table (`IORING_REGISTER_RING_FDS`), which needs no
/// descriptor. A thread can ask only for itself. If a filter of the program's own ends it for that, it may have one
/// from before; not if it was started under that filter.
pub fn is_any_registered() -> bool {
    if FreezeCall::RingRegister.is_deadly() {
        return !was_deadly_at_the_start(FreezeCall::RingRegister);
    }
    (0..PLACES).any(|place| {
        let answer = register(place, PROBE | USE_REGISTERED_RING, NOWHERE);
        // No ring at this index; no table, or a kernel before 6.3, some of which first take the index for a descriptor,
        // and answer EOPNOTSUPP if that is no ring; no io_uring, or none for this process.
        !matches!(
            answer,
            Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS)
        )
    })
}

/// Calls `io_uring_register` with one argument, of a kind that the kernel does not keep.
fn register(ring: i32, operation: u32, argument: usize) -> Result<(), Errno> {
    if FreezeCall::RingRegister.is_deadly() {
        return Err(Errno::PERM);
    }
    // SAFETY: callers pass an address where nothing is mapped, or a structure of their own that the kernel reads and
    // fills before it returns.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, operation, argument, 1_usize) };
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Returns the path `/proc/thread-self/FOLDER/NUMBER`.
fn proc_path<'a>(buffer: &'a mut [u8; 48], folder: &str, number: i32) -> Result<&'a std::ffi::CStr, Errno> {
    // The final zero is there already.
    write!(&mut buffer[..47], "/proc/thread-self/{folder}/{number}").map_err(|_| Errno::NAMETOOLONG)?;
    std::ffi::CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::NAMETOOLONG)
}

/// The lines of interest, as far as read.
#[derive(Default)]
pub(crate) struct Told {
    buffers: Option<u64>,
    taken: Option<u64>,
    queued: Option<u64>,
    posted: Option<u64>,
}

impl Told {
    pub(crate) fn take(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let place = match &line[..colon] {
            b"UserBufs" => &mut self.buffers,
            b"CachedSqHead" => &mut self.taken,
            b"SqTail" => &mut self.queued,
            b"CachedCqTail" => &mut self.posted,
            _ => return,
        };
        *place = str::from_utf8(line[colon + 1..].trim_ascii()).ok().and_then(|number| number.parse().ok());
    }

    pub(crate) fn all(&self) -> Option<Progress> {
        Some(Progress { buffers: self.buffers?, taken: self.taken?, queued: self.queued?, posted: self.posted? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::seccomp::tests::filtered;

    fn told(text: &str) -> Option<Progress> {
        let mut told = Told::default();
        text.lines().for_each(|line| told.take(line.as_bytes()));
        told.all()
    }

    #[test]
    fn the_kernels_text_is_understood_or_is_no_answer() {
        let text = "pos:\t0\nSqMask:\t0x7\nSqHead:\t5\nSqTail:\t6\nCachedSqHead:\t5\nCqMask:\t0xf\nCqHead:\t3\n\
                    CqTail:\t3\nCachedCqTail:\t3\nSQEs:\t0\nUserFiles:\t0\nUserBufs:\t1\n    0: 0x7f/4096\n";
        assert_eq!(told(text), Some(Progress { buffers: 1, taken: 5, queued: 6, posted: 3 }));
        // The answer of Linux 6.18 while the ring is in use.
        assert_eq!(told("pos:\t0\nflags:\t02000002\n"), None);
    }

    /// Fails on: a descriptor that is no ring, as kernels before 6.3 take an index for one, and is taken for a ring.
    #[test]
    fn a_kernel_that_takes_the_index_for_a_descriptor_has_registered_nothing() {
        for errno in [Errno::OPNOTSUPP, Errno::BADF, Errno::INVAL] {
            let refused = libc::SECCOMP_RET_ERRNO | errno.raw_os_error().cast_unsigned();
            filtered(libc::SYS_io_uring_register, refused, || assert!(!is_any_registered(), "{errno}"));
        }
    }

    #[test]
    fn a_new_ring_holds_nothing() {
        let ring = match io_uring::IoUring::new(4) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("skipped: no io_uring here: {error}"),
        };
        let known = RingDescriptor::of(ring.as_raw_fd()).unwrap().expect("a ring");
        assert_eq!(known.number(), ring.as_raw_fd());
        assert!(known.progress().unwrap().is_none_or(|progress| progress == Progress::default()));
        assert!(known.is_in_kernel_memory() && !is_any_registered());
        match (known.buffer_ring(), known.has_region()) {
            (Ok(group), Ok(region)) => assert_eq!((group, region), (None, false)),
            other => eprintln!("skipped: this kernel does not tell: {other:?}"),
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(RingDescriptor::of(file.as_raw_fd()), Ok(None));
        assert_eq!(RingDescriptor::of(i32::MAX), Ok(None));
    }
}
