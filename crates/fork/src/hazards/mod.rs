//! What makes freezing a process wrong, looked for before anything is changed.

mod allocators;
pub(crate) mod borrowed;
mod io_uring;
mod limits;
mod listing;
pub(crate) mod wiped;

pub(crate) use limits::{FileSize, Headroom, headroom};

use palimpsest_sys::extent::locks_future_memory;
use palimpsest_sys::seccomp::{self, Probe, Verdict};
use palimpsest_sys::world::{self, World};

use crate::error::FreezeError;
use crate::options::{Answer, Options, OtherThreads};

/// Refuses a process that cannot be frozen without harm. Changes nothing; uses the heap.
pub(crate) fn check(options: &Options) -> Result<(), FreezeError> {
    if let Some(owner) = borrowed::owner() {
        return Err(FreezeError::BorrowedMemory { owner });
    }
    let count = world::count().map_err(|errno| listing::no_proc(c"/proc/self/task", errno.into()))?;
    if count > 1 && options.other_threads == OtherThreads::Refuse {
        return Err(FreezeError::Threads { count });
    }
    if count > 1 {
        // Before anything that takes time.
        World::prepare()?.rehearse()?;
    }
    match seccomp::probe(Probe::MemfdCreate) {
        Verdict::Allowed => {}
        verdict => return Err(FreezeError::NoMemfd { verdict }),
    }
    if !options.answers_for(Answer::RawAllocator)
        && let Some(what) = allocators::raw()?
    {
        return Err(FreezeError::RawAllocator { what });
    }
    if !options.answers_for(Answer::IoUring)
        && let Some(ring) = io_uring::busy_ring()?
    {
        return Err(FreezeError::IoUring { descriptor: ring.descriptor, buffers: ring.buffers, pending: ring.pending });
    }
    if !options.answers_for(Answer::LockedMemory) && locks_future_memory() {
        return Err(FreezeError::FutureLocked);
    }
    limits::file_size_suffices()
}
