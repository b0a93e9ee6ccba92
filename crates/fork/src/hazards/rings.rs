//! Rings of io_uring, through which the kernel reads and writes memory whenever it likes.
//!
//! The kernel holds on to pages of the program: registered buffers, rings of provided buffers, queues in the program's
//! own memory, regions, and the buffers of requests under way. Once such pages are replaced, it goes on using the old
//! ones, and what it writes is lost. So a ring is refused unless it is known to be harmless:
//!
//! | what it could have | harmless, as proved by |
//! |---|---|
//! | requests under way | it has never taken or been given one (`fdinfo`) |
//! | registered buffers | there are none (`fdinfo`) |
//! | queues in the program's memory (`IORING_SETUP_NO_MMAP`, Linux 6.5) | a page of them can be mapped |
//! | rings of provided buffers (`IORING_REGISTER_PBUF_RING`, Linux 5.19) | no group has one (asked since Linux 6.8) |
//! | a region, or memory for a network card (Linux 6.13, 6.15) | the kernel says that there is none |
//!
//! A ring that was used is not known to be idle: a request may have many completions or none, so that equal counts
//! prove nothing, and the kernel has no other count. A ring without a descriptor (`IORING_REGISTER_RING_FDS`) is found
//! by its mapping, or in the calling thread's table; there it counts as found, too, if a filter of the program's own
//! would end it for a look. What is not found are queues in the program's memory if only another thread's table has the
//! ring: see the contract of [`freeze`](crate::freeze).

use std::ops::ControlFlow;

use palimpsest_sys::async_io::uring::{self, Progress, RingDescriptor};
use palimpsest_sys::pages::vmas::each_mapping;
use palimpsest_sys::proc::numbers::each_number;
use palimpsest_sys::seccomp::FreezeCall;
use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

use super::descriptors::{self, Kind};
use super::found::RingHold;
use crate::error::FreezeError;

/// Refuses a process that has a ring not known to be harmless.
pub(super) fn refuse() -> Result<(), FreezeError> {
    let mut refused = Ok(());
    descriptors::each(&mut |descriptor, kind| {
        if kind == Kind::Ring {
            refused = refuse_one(descriptor);
        }
        if refused.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    refused?;
    refuse_registered()?;
    let mut refused = Ok(());
    each_mapping(&mut |mapping, name| {
        refused = refuse_mapping(mapping.inode, name);
        if refused.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    refused
}

/// Refuses this descriptor if it is of a ring not known to be harmless.
pub(super) fn refuse_one(descriptor: i32) -> Result<(), FreezeError> {
    match RingDescriptor::of(descriptor) {
        Ok(Some(ring)) => hold(ring).map_or(Ok(()), |hold| Err(refusal(Some(ring), hold))),
        Ok(None) => Ok(()),
        Err(source) => Err(FreezeError::NoProc { path: "/proc/thread-self/fd", source }),
    }
}

/// Refuses rings in the calling thread's table.
pub(super) fn refuse_registered() -> Result<(), FreezeError> {
    if uring::is_any_registered() {
        let is_asked = !FreezeCall::RingRegister.is_deadly();
        let hold = if is_asked { RingHold::NoDescriptor } else { RingHold::Untold(Errno::PERM) };
        return Err(refusal(None, hold));
    }
    Ok(())
}

fn refusal(ring: Option<RingDescriptor>, hold: RingHold) -> FreezeError {
    FreezeError::IoUring { descriptor: ring.map(RingDescriptor::number), hold }
}

/// Returns what a ring may hold on to; `None` if it is known to be harmless.
fn hold(ring: RingDescriptor) -> Option<RingHold> {
    let progress = match progress(ring) {
        Ok(progress) => progress,
        // It was closed meanwhile.
        Err(Errno::NOENT | Errno::BADF) => return None,
        Err(errno) => return Some(RingHold::Untold(errno)),
    };
    let Progress { buffers, taken, queued, posted } = progress;
    if buffers > 0 {
        return Some(RingHold::Buffers(buffers));
    }
    if taken.max(queued).max(posted) > 0 {
        return Some(RingHold::Requests { taken: taken.max(queued), posted });
    }
    if !ring.is_in_kernel_memory() {
        return Some(RingHold::Queues);
    }
    match ring.has_region() {
        Ok(true) => return Some(RingHold::Region),
        Ok(false) => {}
        Err(errno) => return Some(RingHold::Untold(errno)),
    }
    match ring.buffer_ring() {
        Ok(group) => group.map(|group| RingHold::BufferRing { group }),
        Err(errno) => Some(RingHold::Untold(errno)),
    }
}

/// Returns how far a ring has come. If the kernel does not tell, somebody may be using the ring just now.
fn progress(ring: RingDescriptor) -> Result<Progress, Errno> {
    const TRIALS: usize = 32;
    // Not `sched_yield`, which nobody has tried under a filter.
    const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1 };
    for _ in 0..TRIALS {
        if let Some(progress) = ring.progress()? {
            return Ok(progress);
        }
        // Interrupted or not, it asks again.
        let _ = nanosleep(&NAP);
    }
    Err(Errno::BUSY)
}

/// Whether a mapping with this name is of a ring.
pub(super) fn is_mapping(name: &[u8]) -> bool {
    name.starts_with(uring::RING_NAME)
}

/// Refuses a mapping of a ring that no descriptor leads to.
pub(super) fn refuse_mapping(inode: u64, name: &[u8]) -> Result<(), FreezeError> {
    if is_mapping(name) && !has_descriptor(inode)? {
        return Err(refusal(None, RingHold::NoDescriptor));
    }
    Ok(())
}

fn has_descriptor(inode: u64) -> Result<bool, FreezeError> {
    let mut has = false;
    each_number(c"/proc/thread-self/fd", &mut |descriptor| {
        has = RingDescriptor::of(descriptor)
            .is_ok_and(|ring| ring.is_some_and(|ring| ring.inode().is_ok_and(|known| known == inode)));
        if has { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .map_err(|source| FreezeError::NoProc { path: "/proc/thread-self/fd", source })?;
    Ok(has)
}
