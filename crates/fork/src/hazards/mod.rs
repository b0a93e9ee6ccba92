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

use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::in_children;
use palimpsest_sys::memory::calls::locks_future_memory;
use palimpsest_sys::pages::query::{self, SharedFile};
use palimpsest_sys::seccomp::{self, FreezeCall, Part};
use palimpsest_sys::threads::hold::{self, Stopped, World};
use rustix::fd::AsFd;
use rustix::fs::OFlags;

use self::descriptors::Kind;
use crate::clock::CpuMoment;
use crate::error::FreezeError;
use crate::options::{Answer, Errands, Options, OtherThreads};

/// What is to be done to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Show copies in its place: what other threads write meanwhile would be lost.
    Freeze,
    /// Put it into huge pages where it is: the kernel keeps other threads off meanwhile.
    Gather,
}

/// Refuses a process that cannot be frozen without harm. Changes nothing, and does not use the heap: at the limit of
/// mappings the heap could not grow, and failing to allocate would end the process.
pub(crate) fn check(options: &Options) -> Result<(), FreezeError> {
    check_for(options, Work::Freeze)
}

/// Like [`check`], for other work.
pub(crate) fn check_for(options: &Options, work: Work) -> Result<(), FreezeError> {
    if threads(options, work)? > 1 && options.other_threads == OtherThreads::Stop {
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

/// Refuses what may have come since [`check_for`] passed the process. For a slice, which has little time.
pub(crate) fn check_again(options: &Options, work: Work) -> Result<Checked, FreezeError> {
    let started = CpuMoment::now();
    let watcher = look_again(options, work)?;
    Ok(Checked { watcher, taken: started.elapsed() })
}

/// Counts the threads of the process. Refuses another process's memory, threads that would have to be held and must not
/// be, and filters.
fn threads(options: &Options, work: Work) -> Result<usize, FreezeError> {
    if let Some(owner) = borrowed::owner() {
        return Err(FreezeError::BorrowedMemory { owner });
    }
    // Another thread may fork while files are open: counting threads opens the first one.
    in_children::register();
    let count = match work {
        Work::Freeze => return may_freeze(options),
        Work::Gather => count()?,
    };
    filters(&[Part::Service])?;
    Ok(count)
}

fn count() -> Result<usize, FreezeError> {
    hold::count().map_err(|source| FreezeError::NoProc { path: "/proc/self/task", source })
}

/// Refuses threads that a freeze would have to hold and must not, and filters that end whoever freezes. Returns how
/// many threads there are.
pub(crate) fn may_freeze(options: &Options) -> Result<usize, FreezeError> {
    let count = count()?;
    match options.other_threads {
        OtherThreads::Refuse if count > 1 => return Err(FreezeError::Threads { count }),
        OtherThreads::Stop if count > 1 => filters(&[Part::Service, Part::Freezing, Part::Holding])?,
        OtherThreads::Refuse | OtherThreads::Stop => filters(&[Part::Service, Part::Freezing])?,
    }
    Ok(count)
}

/// Whether no page is missed that is elsewhere for a moment, while no thread of the process runs: no device and no
/// request of the program's uses memory, and the kernel will find room for the page to come back.
pub(crate) fn may_move_pages(options: &Options) -> bool {
    let mut mode = [0];
    let is_strict = !matches!(BriefFile::read_short(c"/proc/sys/vm/overcommit_memory", &mut mode), Ok(b"0" | b"1"));
    !is_strict && !options.answers_for_anything() && descriptors::has_device() == Ok(false)
}

fn look_again(options: &Options, work: Work) -> Result<Watcher, FreezeError> {
    threads(options, work)?;
    let watcher = descriptors(options)?;
    match shared_files(options)? {
        Some(_) => locked(options)?,
        None => requests(options)?,
    }
    Ok(watcher)
}

/// Refuses what another thread may have begun between the look at the process and the moment in which all others were
/// held. Looks at all requests again: a call for each descriptor, and two lists of mappings. Does not use the heap,
/// which a held thread may be inside.
pub(crate) fn check_held(options: &Options, stopped: Option<&Stopped<'_>>) -> Result<(), FreezeError> {
    if stopped.is_some_and(Stopped::is_anyone_held) { requests(options) } else { Ok(()) }
}

/// Like [`check_held`], for a slice, which has little time: six calls, one for each shared mapping of a file, and one
/// for each descriptor only if a ring is mapped. Left to the next slice is what leaves no mapping: a userfaultfd, and a
/// ring with its queues in the program's memory; and before Linux 6.11 everything but locked memory.
pub(crate) fn check_held_in_slice(options: &Options, stopped: Option<&Stopped<'_>>) -> Result<(), FreezeError> {
    if !stopped.is_some_and(Stopped::is_anyone_held) {
        return Ok(());
    }
    if shared_files(options)? == Some(Rings::Mapped) && descriptors(options)? == Watcher::Open {
        // The next slice finds it, too.
        return Err(FreezeError::Busy);
    }
    locked(options)
}

/// Whether a ring of io_uring is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rings {
    Mapped,
    None,
}

/// Refuses contexts of Linux AIO, and rings without a descriptor, among shared mappings of files; listing all mappings
/// would take longer than what a slice copies. Returns `None` on a kernel before 6.11, which does not tell.
fn shared_files(options: &Options) -> Result<Option<Rings>, FreezeError> {
    let (rings, contexts) = (!options.answers_for(Answer::IoUring), !options.answers_for(Answer::LinuxAio));
    let mut found = Rings::None;
    if !rings && !contexts {
        return Ok(Some(found));
    }
    let maps = BriefFile::open(c"/proc/thread-self/maps", OFlags::RDONLY)
        .map_err(|source| FreezeError::NoProc { path: "/proc/thread-self/maps", source })?;
    let mut refused = Ok(());
    let told = query::each_shared_file(maps.as_fd(), &mut |SharedFile { start, inode, name }| {
        if rings && rings::is_mapping(name) {
            found = Rings::Mapped;
            refused = rings::refuse_mapping(inode, name);
        }
        if refused.is_ok() && contexts {
            refused = aio::refuse_mapping(start, name);
        }
        if refused.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    refused?;
    Ok(told.is_ok().then_some(found))
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

/// Returns what is not done because a filter would end the program for it, unless that is told as a refusal.
pub(crate) fn left_out(options: &Options) -> Option<String> {
    let of_deputies = |part: &Part| matches!(part, Part::Deputies | Part::Promptness);
    let is_made = |part: &Part| !of_deputies(part) || options.errands == Errands::Deputy;
    let parts = [Part::Freezing, Part::Deputies, Part::Promptness, Part::Policies, Part::Rings, Part::Contexts];
    let parts: Vec<Part> = parts.into_iter().filter(is_made).collect();
    seccomp::found_deadly().losses(&parts)
}

/// Refuses filters that forbid what these parts of a freeze need.
fn filters(parts: &[Part]) -> Result<(), FreezeError> {
    match seccomp::probe_parts(parts) {
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

#[cfg(test)]
mod tests {
    use palimpsest_sys::seccomp::Calls;

    use super::*;

    /// Fails on: deputies that begin late for a filter of which nobody is told; a word about deputies to whoever has
    /// none.
    #[test]
    fn what_deputies_lack_is_told_to_whoever_sends_some() {
        // Under as many filters as there never are. It is only known from now on, for all tests of this program.
        seccomp::tell(u64::MAX, Calls::NONE.with(FreezeCall::Yield));
        let told = |errands| left_out(&Options::new().errands(errands));
        assert!(told(Errands::Deputy).is_some_and(|lost| lost.contains("sched_yield: deputies begin late")));
        assert!(!told(Errands::Own).is_some_and(|lost| lost.contains("deputies")));
    }
}
