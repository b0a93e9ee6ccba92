//! Snapshots by `userfaultfd`, the rival that needs no fork: write protection, or memory that is filled on demand.
//!
//! Numbers and structures: `include/uapi/linux/userfaultfd.h`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use super::Heap;

/// What the memory of a heap does when it is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Present pages report writes.
    Writes,
    /// Absent pages are filled with a copy.
    Absent,
}

/// `UFFD_USER_MODE_ONLY`: what the kernel grants to everyone.
const USER_MODE_ONLY: u32 = 1;
const API: u64 = 0xaa;
/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`
const FEATURE_WRITE_PROTECT: u64 = 1;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WRITE_PROTECT: u64 = 2;
/// `UFFDIO_WRITEPROTECT_MODE_WP`
const PROTECT: u64 = 1;
/// `UFFD_EVENT_PAGEFAULT`
const EVENT_PAGEFAULT: u8 = 0x12;

const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u32 = 0x8010_aa01;
const UFFDIO_COPY: u32 = 0xc028_aa03;
const UFFDIO_WRITEPROTECT: u32 = 0xc018_aa06;

/// A heap that can be watched, and the thread that answers its faults.
#[derive(Debug)]
pub(crate) struct Watcher {
    fd: OwnedFd,
    watch: Watch,
}

impl Watcher {
    /// Asks for a `userfaultfd` and starts the thread.
    pub(crate) fn new(watch: Watch) -> io::Result<Self> {
        let flags =
            rustix::mm::UserfaultfdFlags::CLOEXEC | rustix::mm::UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: a descriptor that is registered for no range changes nothing about memory.
        let fd = unsafe { rustix::mm::userfaultfd(flags) }?;
        let features = if watch == Watch::Writes { FEATURE_WRITE_PROTECT } else { 0 };
        command(&fd, UFFDIO_API, &mut [API, features, 0])?;
        let served = File::from(fd.try_clone()?);
        thread::spawn(move || serve(served, watch));
        Ok(Self { fd, watch })
    }

    /// Begins to watch all of `heap`. Returns how long that took.
    pub(crate) fn arm(&self, heap: &Heap) -> io::Result<Duration> {
        let range = heap.addresses(0..heap.pages());
        let (start, len) = (range.start as u64, range.len() as u64);
        let started = Instant::now();
        match self.watch {
            Watch::Writes => {
                command(&self.fd, UFFDIO_REGISTER, &mut [start, len, REGISTER_WRITE_PROTECT, 0])?;
                command(&self.fd, UFFDIO_WRITEPROTECT, &mut [start, len, PROTECT])?;
            }
            Watch::Absent => command(&self.fd, UFFDIO_REGISTER, &mut [start, len, REGISTER_MISSING, 0])?,
        }
        Ok(started.elapsed())
    }

    /// Stops watching.
    pub(crate) fn disarm(&self, heap: &Heap) -> io::Result<()> {
        let range = heap.addresses(0..heap.pages());
        command(&self.fd, UFFDIO_UNREGISTER, &mut [range.start as u64, range.len() as u64])
    }
}

/// Answers faults until the descriptor says that there will be no more.
fn serve(mut events: File, watch: Watch) {
    let page = rustix::param::page_size();
    let contents = vec![1_u8; 2 * page];
    let source = contents.as_ptr().addr().next_multiple_of(page) as u64;
    // `struct uffd_msg`: an event, and of a page fault the flags and the address.
    let mut message = [0_u8; 32];
    while events.read_exact(&mut message).is_ok() {
        if message[0] != EVENT_PAGEFAULT {
            continue;
        }
        let Some(Ok(address)) = message.get(16..24).map(<[u8; 8]>::try_from) else { continue };
        let address = u64::from_ne_bytes(address) & !(page as u64 - 1);
        // The fault was answered twice, or its range is no longer watched: the thread that faulted goes on by itself.
        let _ = match watch {
            Watch::Writes => command(&events, UFFDIO_WRITEPROTECT, &mut [address, page as u64, 0]),
            Watch::Absent => command(&events, UFFDIO_COPY, &mut [address, source, page as u64, 0, 0]),
        };
    }
}

/// A request of `userfaultfd`: each is a structure of 64-bit numbers.
fn command(fd: &impl AsRawFd, request: u32, fields: &mut [u64]) -> io::Result<()> {
    // SAFETY: the structures of these requests are that many numbers long. Ranges are those of heaps, which are this
    // process's own, and `UFFDIO_COPY` fills pages that nobody has seen yet.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, fields.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
