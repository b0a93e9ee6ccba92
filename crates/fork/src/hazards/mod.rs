//! Hazards: what makes freezing a process wrong. All are looked for before anything changes.

mod aio;
mod allocators;
pub(crate) mod borrowed;
mod descriptors;
pub(crate) mod found;
mod limits;
mod rings;
pub(crate) mod wiped;

pub(crate) use descriptors::Watcher;
pub use found::{RawAllocator, RingHold};
pub(crate) use limits::{FileSize, Headroom, HugePages, headroom};

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::memory::extent::locks_future_memory;
use palimpsest_sys::pages::query::{self, SharedFile};
use palimpsest_sys::seccomp::{self, FreezeCall};
use palimpsest_sys::threads::hold::{self, World};
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags};

use self::descriptors::Kind;
use crate::clock::Moment;
use crate::error::FreezeError;
use crate::options::{Answer, Options, OtherThreads};

/// Refuses a process that cannot be frozen without harm. Changes nothing, and does not use the heap: at the limit of
/// mappings the heap could not grow, and failing to allocate would end the process.
pub(crate) fn check(options: &Options) -> Result<(), FreezeError> {
    if threads(options)? > 1 {
        // Before anything else that takes time.
        World::prepare()?.rehearse()?;
    }
    if !options.answers_for(Answer::RawAllocator)
        && let Some(what) = allocators::find()?
    {
        return Err(FreezeError::RawAllocator { what });
    }
    requests(options)?;
    limits::file_size_suffices()
}

/// What a slice learns of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub(crate) watcher: Watcher,
    /// CPU nanoseconds that the check took: it looks at every descriptor.
    pub(crate) taken: u64,
}

/// Refuses what may have come since [`check`] passed the process. For a slice, which has little time.
pub(crate) fn check_again(options: &Options) -> Result<Checked, FreezeError> {
    let started = Moment::now();
    let watcher = look_again(options)?;
    Ok(Checked { watcher, taken: started.elapsed() })
}

/// Counts the threads of the process. Refuses another process's memory, threads that must not be held, and filters.
fn threads(options: &Options) -> Result<usize, FreezeError> {
    if let Some(owner) = borrowed::owner() {
        return Err(FreezeError::BorrowedMemory { owner });
    }
    let count = hold::count().map_err(|source| FreezeError::NoProc { path: "/proc/self/task", source })?;
    if count > 1 && options.other_threads == OtherThreads::Refuse {
        return Err(FreezeError::Threads { count });
    }
    filters()?;
    Ok(count)
}

fn look_again(options: &Options) -> Result<Watcher, FreezeError> {
    threads(options)?;
    let watcher = descriptors(options)?;
    if options.answers_for(Answer::IoUring) && options.answers_for(Answer::LinuxAio) {
        return locked(options).map(|()| watcher);
    }
    // Listing all mappings would take longer than what a slice copies.
    let path = "/proc/self/maps";
    let maps = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|source| FreezeError::NoProc { path, source })?;
    let mut refused = Ok(());
    let told = query::each_shared_file(maps.as_fd(), &mut |SharedFile { start, inode, name }| {
        refused = if options.answers_for(Answer::IoUring) { Ok(()) } else { rings::refuse_mapping(inode, name) };
        if refused.is_ok() && !options.answers_for(Answer::LinuxAio) {
            refused = aio::refuse_mapping(start, name);
        }
        if refused.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match told {
        Ok(()) => refused.and_then(|()| locked(options))?,
        // A kernel before 6.11.
        Err(_) => requests(options)?,
    }
    Ok(watcher)
}

/// Refuses open rings unless the caller answers for them, and looks for userfaultfds.
fn descriptors(options: &Options) -> Result<Watcher, FreezeError> {
    let (mut watcher, mut refused) = (Watcher::None, Ok(()));
    let answers = options.answers_for(Answer::IoUring);
    descriptors::each(&mut |descriptor, kind| {
        match kind {
            Kind::Faults => watcher = Watcher::Open,
            Kind::Ring if !answers => refused = rings::refuse_one(descriptor),
            Kind::Ring => {}
        }
        if refused.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    refused?;
    if !answers {
        rings::refuse_registered()?;
    }
    Ok(watcher)
}

/// Refuses filters that forbid what a freeze does.
fn filters() -> Result<(), FreezeError> {
    match seccomp::probe_freeze() {
        Ok(()) => Ok(()),
        Err((FreezeCall::MemfdCreate, verdict)) => Err(FreezeError::NoMemfd { verdict }),
        Err((call, verdict)) => Err(FreezeError::Filtered { call, verdict }),
    }
}

/// Refuses memory that the kernel may write to whenever it likes, and memory that would be locked.
fn requests(options: &Options) -> Result<(), FreezeError> {
    if !options.answers_for(Answer::IoUring) {
        rings::refuse()?;
    }
    if !options.answers_for(Answer::LinuxAio) {
        aio::refuse()?;
    }
    locked(options)
}

/// Whether the kernel may lock new memory of this process: somebody has answered for that.
static MAY_LOCK: AtomicBool = AtomicBool::new(false);

/// Whether new memory may be locked though what it replaces is not (`mlockall(MCL_FUTURE)`).
pub(crate) fn may_lock_new_memory() -> bool {
    // Relaxed: set before anything is frozen.
    MAY_LOCK.load(Ordering::Relaxed)
}

/// Refuses a process whose future mappings are locked.
fn locked(options: &Options) -> Result<(), FreezeError> {
    if options.answers_for(Answer::LockedMemory) {
        MAY_LOCK.store(true, Ordering::Relaxed);
    } else if locks_future_memory() {
        return Err(FreezeError::FutureLocked);
    }
    Ok(())
}
