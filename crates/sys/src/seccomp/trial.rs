//! Which of the calls of a freeze would end the program.
//!
//! Who makes a child of a large program copies its page tables, and each page that the program writes meanwhile is a
//! fault. So all calls are tried in one child, which tells in a shared page how far it has come; one more goes on
//! behind each call that has ended the last. None is made at all if somebody who was started under the same filters has
//! told the outcome ([`tell`]): `palimpsest run`, whose page tables are small.
//!
//! Freezes, surveys and repairs run with all signals blocked, and so do the children: a blocked SIGSYS ends whoever
//! causes it, even if the program has a handler that would answer the call (`SECCOMP_RET_TRAP`). What is called with
//! SIGSYS open counts as deadly then, too.
//!
//! A child with this process's memory (`CLONE_VM`) would copy none. But a handler of SIGSYS would run in the program's
//! memory, and before Linux 5.16 a core dump of whoever was killed ends all who share the memory (`zap_threads` in
//! `fs/coredump.c`).

use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::latest::{Key, Latest};
use super::{Calls, FreezeCall, Part, Probe, Untried, Verdict, attempt, be_quiet};
use crate::threads::child;
use crate::threads::task::own_filters;

/// All that were found deadly, for whatever thread. Relaxed: whoever finds one, or is told, makes none before that; a
/// thread that learns from another that the rest is harmless has what orders this, too.
static DEADLY: AtomicU64 = AtomicU64::new(0);

/// What was found by [`deadly_calls`]. Beside the verdicts, see there.
#[cfg_attr(not(miri), unsafe(link_section = "palimpsest_late"))]
static FOUND: Latest<(), Calls> = Latest::new();

/// What [`tell`] was told: under how many filters, or 0, and what these end the program for.
static TOLD: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));

impl FreezeCall {
    /// Whether a filter was [found](deadly_calls) to end whoever makes the call. Makes no system call.
    pub fn is_deadly(self) -> bool {
        found_deadly().contains(self)
    }
}

/// Returns all that were found so far, for whatever thread. Makes no system call.
pub fn found_deadly() -> Calls {
    Calls::from_bits(DEADLY.load(Ordering::Relaxed))
}

fn note(deadly: Calls) {
    // A page that is not written stays one with a child.
    if deadly.bits() & !DEADLY.load(Ordering::Relaxed) != 0 {
        DEADLY.fetch_or(deadly.bits(), Ordering::Relaxed);
    }
}

/// Notes for which calls the filters under which this process was started end it: who was started under as many has
/// found that, or this process before it got another one.
pub fn tell(filters: u64, deadly: Calls) {
    note(deadly);
    TOLD.1.store(deadly.bits(), Ordering::Relaxed);
    // Release, partner: the Acquire load in `told`. Forbids that the number is seen without the calls.
    TOLD.0.store(filters, Ordering::Release);
}

/// Whether [`tell`] was told of the call: then this process has never made it.
pub(crate) fn was_deadly_at_the_start(call: FreezeCall) -> bool {
    // Acquire, partner: the Release store in `tell`. Forbids that the number is seen without the calls.
    TOLD.0.load(Ordering::Acquire) != 0 && Calls::from_bits(TOLD.1.load(Ordering::Relaxed)).contains(call)
}

fn told(filters: u64) -> Option<Calls> {
    // Acquire, partner: the Release store in `tell`.
    let is_told = TOLD.0.load(Ordering::Acquire) == filters;
    is_told.then(|| Calls::from_bits(TOLD.1.load(Ordering::Relaxed)))
}

/// Returns the calls for which a filter of the calling thread ends it. With filters of which that is not known, tries
/// them all in children. Remembers the outcome as [`probe`](super::probe) does.
///
/// # Errors
///
/// They could not be tried, and must all be considered deadly.
pub fn deadly_calls() -> Result<Calls, Untried> {
    let filters = own_filters();
    if filters == Some(0) {
        return Ok(Calls::NONE);
    }
    if let Some(told) = filters.and_then(told) {
        return Ok(told);
    }
    let key = filters.and_then(|filters| Key::of_this_thread(filters, ()));
    if let Some(found) = key.and_then(|key| FOUND.of(key)) {
        return Ok(found);
    }
    let (deadly, _) = in_children()?;
    note(deadly);
    if let Some(key) = key {
        FOUND.remember(key, deadly);
    }
    Ok(deadly)
}

/// Tries the calls of these parts. Whether a memory file can be made at all is tried each time.
///
/// # Errors
///
/// The first call that cannot be made, and the reason.
pub fn probe_parts(parts: &[Part]) -> Result<(), (FreezeCall, Verdict)> {
    let deadly = deadly_calls().map_err(|untried| {
        let first = FreezeCall::ALL.into_iter().find(|call| parts.contains(&call.part()));
        (first.unwrap_or(FreezeCall::MemfdCreate), Verdict::Unknown(untried))
    })?;
    if let Some(call) = deadly.first_of(parts) {
        // What a filter kills by.
        return Err((call, Verdict::Killed { signal: libc::SIGSYS }));
    }
    if parts.contains(&Part::Freezing) {
        attempt(Probe::MemfdCreate).map_err(|errno| (FreezeCall::MemfdCreate, Verdict::Refused(errno)))?;
    }
    Ok(())
}

/// Where a child is: at the call with this index in [`FreezeCall::ALL`], behind all of them, or at one of these.
struct Progress(ptr::NonNull<AtomicUsize>);

const BEING_QUIET: usize = usize::MAX;
const NOT_BEGUN: usize = usize::MAX - 1;

impl Progress {
    /// Maps a page that children share.
    fn new() -> Result<Self, Untried> {
        let (rights, len) = (ProtFlags::READ | ProtFlags::WRITE, rustix::param::page_size());
        // SAFETY: a new mapping replaces nothing.
        let page = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::SHARED) };
        let page = page.map_err(Untried::NoMemory)?;
        ptr::NonNull::new(page.cast()).map(Self).ok_or(Untried::NoMemory(rustix::io::Errno::NOMEM))
    }

    fn word(&self) -> &AtomicUsize {
        // SAFETY: zeroed memory of a page's length and alignment, which lives as long as this.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody else knows it.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), rustix::param::page_size()) };
    }
}

/// Whether a child first forbids a core dump of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dump {
    Forbidden,
    /// A filter ends whoever forbids it.
    Allowed,
}

/// Tries all calls in children. Returns the deadly ones, and how many children there were. Uses neither the heap nor a
/// lock.
pub(super) fn in_children() -> Result<(Calls, usize), Untried> {
    let progress = Progress::new()?;
    let (mut deadly, mut next, mut dump) = (Calls::NONE, 0, Dump::Forbidden);
    for children in 1.. {
        // Relaxed, here and in the child: it is made after this store, and has ended before the load.
        progress.word().store(NOT_BEGUN, Ordering::Relaxed);
        // SAFETY: 1. it makes system calls, and stores to an atomic.
        let child = unsafe { child::spawn(&[], || run(progress.word(), next, dump)) };
        let status = child.map_err(Untried::NoChild)?.wait().map_err(Untried::LostChild)?;
        let reached = progress.word().load(Ordering::Relaxed);
        match FreezeCall::ALL.get(reached) {
            // However it has ended there.
            Some(&call) => (deadly, next) = (deadly.with(call), reached + 1),
            None if reached == BEING_QUIET => dump = Dump::Allowed,
            None if reached == NOT_BEGUN => return Err(Untried::OddStatus(status)),
            None => return Ok((deadly, children)),
        }
    }
    unreachable!("each child comes further than the last")
}

/// Makes the calls from an index on, in a child. Returns its exit status.
fn run(progress: &AtomicUsize, next: usize, dump: Dump) -> i32 {
    if dump == Dump::Forbidden {
        progress.store(BEING_QUIET, Ordering::Relaxed);
        be_quiet();
    }
    for (index, call) in FreezeCall::ALL.into_iter().enumerate().skip(next) {
        progress.store(index, Ordering::Relaxed);
        call.attempt();
    }
    progress.store(FreezeCall::ALL.len(), Ordering::Relaxed);
    0
}
