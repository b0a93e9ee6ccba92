//! Snapshots of a process, restored in the process itself: for fuzzing loops, and for servers that start each request
//! from the same state.
//!
//! Taking a snapshot copies memory to a sealed memory file and maps that file privately in its place. From then on the
//! kernel gives the process a private copy of each page that it writes, and the page tables tell which pages those are.
//! Restoring copies the saved bytes over them, or drops them, so that the file shows again.
//!
//! | type or function | what it does |
//! |---|---|
//! | [`Snapshot`] | takes and restores; the stack goes on |
//! | [`take_and_enter`] | the same with the stack: each round starts at the same place, with the same frames |
//! | [`enter`], [`abandon`] | calls that can be left from anywhere inside |
//! | [`SnapshotOptions`] | what is in the snapshot, and which checks the caller answers for |
//!
//! The handle and all tables lie outside what is restored. Restoring neither allocates nor frees.

mod arch;
mod contents;
mod descriptors;
mod entry;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod heirs;
mod layout;
mod options;
mod panics;
mod signals;
mod state;
mod take;
mod thread;

use std::ffi::c_void;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub use entry::{Ended, SignalMask, abandon, enter};
pub use error::{Left, RestoreError, TakeError};
pub use options::{Descriptors, Layout, Scope, SnapshotOptions, Sweep, Threads};
pub use state::NotTaken;

use palimpsest_sys::memory::own::Own;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::threads::own::Blocked;
use state::{Known, Part, Reach, State};
use take::Stack;

use crate::engine::registry;

/// What no snapshot restores, one thing per line.
const LIMITS: &str = "\
contents of files, pipes and sockets, and what other processes did
shared memory, and mappings of it that were removed
threads: none are made or ended
timers, signal handlers, alternate signal stacks, pending signals, and limits of the process
flags of descriptors and of open files (`F_SETFD`, `F_SETFL`), unless the descriptor was closed or replaced
locks of files, working directory, user, name spaces, and other state of the kernel
memory that was locked, can be executed, or is watched by a userfaultfd (see `Snapshot::not_taken`)
private mappings of files that cannot be written, such as program text, when they are unmapped or written by force
the stack, unless taken by `take_and_enter`; below the entry point it is never wiped
advice, locks and names given to mappings since";

/// Whether there is a snapshot of the whole process, of which there can be one. Relaxed: publishes nothing else.
static WHOLE: AtomicBool = AtomicBool::new(false);

/// Holds [`WHOLE`].
#[derive(Debug)]
struct Claim;

impl Claim {
    fn new(options: &SnapshotOptions) -> Result<Option<Self>, TakeError> {
        match options.scope {
            Scope::Ranges(_) => Ok(None),
            Scope::Whole if WHOLE.swap(true, Relaxed) => Err(TakeError::Another),
            Scope::Whole => Ok(Some(Self)),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        WHOLE.store(false, Relaxed);
    }
}

/// A state of memory that can be restored any number of times.
///
/// Dropping it leaves the process in its present state, with its memory mapped from the snapshot's file.
#[must_use]
pub struct Snapshot {
    state: Own<State>,
    _claim: Option<Claim>,
}

/// What a restore did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Pages restored: the sum of the next two.
    pub pages: usize,
    /// Pages that were copied, and stay resident.
    pub by_memcpy: usize,
    /// Pages that were dropped.
    pub by_drop: usize,
    /// Whether the page tables were searched.
    pub swept: bool,
    /// Bytes of mappings made since, which are gone now.
    pub unmapped: usize,
    /// Bytes of mappings removed or replaced since, which are back.
    pub remade: usize,
    /// Bytes of mappings that have their rights back.
    pub protected: usize,
    /// Descriptors opened since and closed now.
    pub closed: usize,
    /// Descriptors closed or replaced since and open again.
    pub reopened: usize,
    /// Descriptors closed or replaced since that cannot be restored: pipes, sockets, and other things without
    /// duplicates.
    pub lost: usize,
}

impl Snapshot {
    /// Takes a snapshot of what `options` say. The running stack goes on: values in its frames survive restores.
    ///
    /// # Safety
    ///
    /// 1. Nobody but the calling thread uses the memory during the call: no other thread, no other process (by ptrace
    ///    or `process_vm_writev`), no device and no asynchronous I/O (io_uring with registered buffers, `O_DIRECT`).
    /// 2. From now on nobody expects zeros after `MADV_DONTNEED`, `MADV_FREE` or `mremap` on that memory: dropped pages
    ///    show the bytes of the snapshot. Allocators that do (jemalloc, mimalloc with purging, glibc's thread arenas
    ///    when they shrink) need the preload object or must not run.
    /// 3. The program closes no descriptor that it did not open.
    ///
    /// # Errors
    ///
    /// See [`TakeError`].
    pub unsafe fn take(options: &SnapshotOptions) -> Result<Self, TakeError> {
        let claim = Claim::new(options)?;
        // SAFETY: (1) to (3).
        let state = unsafe { take::take(options, Stack::GoesOn) }?;
        Ok(Self { state, _claim: claim })
    }

    /// Restores everything.
    ///
    /// # Safety
    ///
    /// 1. As for [`take`](Self::take).
    /// 2. No reference to the memory is live, except to bytes that are the same now as then; values in live frames that
    ///    refer to memory (boxes, vectors, guards) existed when the snapshot was taken, or are never used or dropped.
    /// 3. The claims of [`Sweep`], [`Layout`] and [`Threads`] that were chosen are true.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`]. Memory may then be restored in part. After [`RestoreError::ForeignStack`] nothing was
    /// done.
    pub unsafe fn restore(&mut self) -> Result<Restored, RestoreError> {
        // SAFETY: (1) to (3).
        unsafe { restore(&mut self.state) }
    }

    /// Calls `target` and restores everything, however the call ended: by return, by panic (which goes on afterwards)
    /// or by [`abandon`].
    ///
    /// What `target` needs for its next round must not be restored, or every round would be the same: keep the inputs,
    /// and the position in them, in the caller's frame.
    ///
    /// # Safety
    ///
    /// As for [`restore`](Self::restore).
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore), also after a panic.
    ///
    /// # Panics
    ///
    /// `target` did. The panic then carries a `String` with the first 1024 bytes of the message: what it carried before
    /// may lie in memory that is restored, and is not dropped. (It leaks if the snapshot is of ranges.)
    pub unsafe fn run<R: Copy + 'static>(
        &mut self,
        mask: SignalMask,
        target: impl FnOnce() -> R,
    ) -> Result<(Ended<R>, Restored), RestoreError> {
        let ended = match entry::enter_catching(mask, target) {
            Ended::Returned(Ok(value)) => Ok(Ended::Returned(value)),
            Ended::Abandoned(value) => Ok(Ended::Abandoned(value)),
            Ended::Returned(Err(carried)) => {
                let message = panics::Message::of(&*carried);
                std::mem::forget(carried);
                Err(message)
            }
        };
        // SAFETY: the caller's contract.
        let restored = unsafe { restore(&mut self.state) }?;
        match ended {
            Ok(ended) => Ok((ended, restored)),
            Err(message) => message.go_on(),
        }
    }

    /// Declares that the pages of `range` are written in every round, so that restores without a sweep
    /// ([`Sweep::Never`], [`Sweep::Every`]) restore them too. Skips what is not in the snapshot, or could not be read
    /// and written when it was taken: only a sweep restores that.
    ///
    /// # Errors
    ///
    /// [`RestoreError::Full`].
    pub fn declare(&mut self, range: Range<usize>) -> Result<(), RestoreError> {
        let State { parts, declared, page, .. } = &mut *self.state;
        let range = Span::of_pointers(range);
        let overlapping =
            |part: &&Part| !range.is_empty() && part.start < range.end && range.start < part.end && part.is_writable();
        for part in parts.iter().filter(overlapping) {
            let start = part.start.max(range.start & !(*page - 1));
            // No further than the part's end, which is a multiple of a page.
            let end = part.end.min(range.end).next_multiple_of(*page);
            declared.push(Known { start, len: end - start, saved: part.saved(start) })?;
        }
        Ok(())
    }

    /// Returns writable memory that is not in the snapshot, and why. What is written there stays.
    pub fn not_taken(&self) -> &[NotTaken] {
        &self.state.left
    }

    /// Returns the bytes of address space in the snapshot, and how many of them had contents.
    pub fn bytes(&self) -> (usize, usize) {
        let bytes = |saved: bool| {
            let chosen = self.state.parts.iter().filter(|part| !saved || part.saved(part.start).is_some());
            chosen.map(|part| part.end - part.start).sum()
        };
        (bytes(false), bytes(true))
    }

    /// Returns what no snapshot restores, one thing per line.
    pub const fn limits() -> &'static str {
        LIMITS
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, saved) = self.bytes();
        f.debug_struct("Snapshot").field("bytes", &bytes).field("saved", &saved).finish_non_exhaustive()
    }
}

/// # Safety
///
/// As [`Snapshot::restore`].
unsafe fn restore(state: &mut Own<State>) -> Result<Restored, RestoreError> {
    let blocked = match &state.reach {
        Reach::Ranges => None,
        Reach::Whole(whole) => {
            let stack_pointer = arch::stack_pointer();
            if !whole.stack.contains(stack_pointer) {
                return Err(RestoreError::ForeignStack { stack_pointer });
            }
            let blocked = Blocked::all();
            registry::wait_for_deputy().map_err(|process| RestoreError::Deputy { process })?;
            Some(blocked)
        }
    };
    let inside = entry::Kept::now();
    let files = state.descriptors.as_ref().map(|table| table.restore(state.own_files()));
    let files = files.transpose()?.unwrap_or_default();
    let mappings = layout::restore(state)?;
    let memory = contents::restore(state);
    inside.put_back();
    let memory = memory?;
    drop(blocked);
    Ok(Restored {
        pages: memory.by_memcpy + memory.by_drop,
        by_memcpy: memory.by_memcpy,
        by_drop: memory.by_drop,
        swept: memory.swept,
        unmapped: mappings.unmapped,
        remade: mappings.remade,
        protected: mappings.protected,
        closed: files.closed,
        reopened: files.reopened,
        lost: files.lost,
    })
}

/// Why a loop of rounds ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// No snapshot was taken, and the body was not called.
    #[error("cannot take the snapshot that rounds start from")]
    Take(#[from] TakeError),
    /// The snapshot was not restored.
    #[error("cannot start round {round}")]
    Restore {
        /// Its number, from 0.
        round: u64,
        /// Why.
        #[source]
        source: RestoreError,
    },
}

/// All that differs between rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// Its number, from 0.
    pub number: u64,
    /// What the last round was [abandoned](abandon) with; 0 in the first.
    pub value: usize,
    /// What was restored before this round; `None` in the first.
    pub restored: Option<Restored>,
}

struct Rounds<'a, F, R> {
    anchor: usize,
    options: &'a SnapshotOptions,
    mask: SignalMask,
    body: F,
    outcome: Option<Result<std::thread::Result<R>, EnterError>>,
}

/// Takes a snapshot with the stack and the registers, and calls `body`. Whenever `body` ends a round with [`abandon`],
/// from anywhere inside, everything is restored, including the stack from here to its base, and `body` is called anew.
/// When `body` returns, so does this function, and nothing is restored.
///
/// # Safety
///
/// 1. As for [`Snapshot::take`] and [`Snapshot::restore`], with this thread's frames being restored as well.
/// 2. As for [`abandon`].
///
/// # Errors
///
/// See [`EnterError`].
pub unsafe fn take_and_enter<R>(
    options: &SnapshotOptions,
    mask: SignalMask,
    body: impl FnMut(Round) -> R,
) -> Result<R, EnterError> {
    let claim = Claim::new(options)?;
    let mut job = Rounds { anchor: 0, options, mask, body, outcome: None };
    // SAFETY: 1. a local; 2. `rounds` is made for this job, which is borrowed by nobody else.
    unsafe { arch::call(&raw mut job.anchor, start_of(&job), (&raw mut job).cast()) };
    drop(claim);
    match job.outcome {
        Some(Ok(Ok(value))) => Ok(value),
        Some(Ok(Err(panic))) => resume_unwind(panic),
        Some(Err(error)) => Err(error),
        // `rounds` returns an outcome and is never abandoned itself: `abandon` leaves the call inside it.
        None => std::process::abort(),
    }
}

/// Returns the instance of [`rounds`] for this job.
fn start_of<F: FnMut(Round) -> R, R>(_job: &Rounds<'_, F, R>) -> unsafe extern "C" fn(*mut c_void) {
    rounds::<F, R>
}

/// Plays the rounds. Its frame lies just below the part of the stack that is restored, so that the loop's own state
/// stays.
///
/// # Safety
///
/// 1. `job` is a `Rounds<F, R>` that nobody else uses, and the contract of [`take_and_enter`].
unsafe extern "C" fn rounds<F: FnMut(Round) -> R, R>(job: *mut c_void) {
    let job = job.cast::<Rounds<'_, F, R>>();
    // SAFETY: (1); the job lives in the frame of the caller.
    let anchor = unsafe { (*job).anchor };
    // SAFETY: as above; options are not changed.
    let options = unsafe { (*job).options };
    // SAFETY: (1).
    let outcome = match unsafe { take::take(options, Stack::From(anchor)) } {
        Err(error) => Err(error.into()),
        // SAFETY: (1).
        Ok(state) => unsafe { play(job, state) },
    };
    // SAFETY: (1); the body has returned.
    unsafe { (*job).outcome = Some(outcome) };
}

/// # Safety
///
/// As [`rounds`].
unsafe fn play<F: FnMut(Round) -> R, R>(
    job: *mut Rounds<'_, F, R>,
    mut state: Own<State>,
) -> Result<std::thread::Result<R>, EnterError> {
    let mut round = Round { number: 0, value: 0, restored: None };
    // SAFETY: the caller's contract.
    let mask = unsafe { (*job).mask };
    loop {
        let this = round;
        let ended = entry::enter_catching(mask, || {
            // SAFETY: the caller's contract; the body is borrowed only here, and an abandoned borrow is never used
            // again.
            let body = unsafe { &mut (*job).body };
            body(this)
        });
        match ended {
            Ended::Returned(result) => return Ok(result),
            Ended::Abandoned(value) => round.value = value,
        }
        round.number += 1;
        // SAFETY: the caller's contract.
        let restored = unsafe { restore(&mut state) };
        round.restored = Some(restored.map_err(|source| EnterError::Restore { round: round.number, source })?);
    }
}
