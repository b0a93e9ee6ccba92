//! Whether a seccomp filter may end the program for a system call that it does not make itself.
//!
//! What the program installs itself is seen. What was there when it was started is looked for before the object makes
//! the first call that a plain program need not make, other than at its start: at the first large mapping, or the first
//! fork. The look opens a file of `/proc`, reads it and closes it, as the dynamic linker has just done with libraries.
//!
//! | filters | calls |
//! |---|---|
//! | none | all |
//! | only those above `palimpsest run`, which has tried the calls | all but the deadly ones |
//! | only those above the object, untried | these, once they were tried in children at the first fork |
//! | more, which a sandbox has installed | none |
//!
//! If one is deadly that everything needs ([`Part::Service`]), none is made.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};

use palimpsest_fork::guard;
use palimpsest_sys::seccomp::{self, Calls, FreezeCall, Part, Untried};
use palimpsest_sys::threads::own::Blocked;

use crate::cancelling::uncancelled;
use crate::filters::{self, Filters, Trial};
use crate::started::Started;
use crate::waits::is_main_thread;

/// Raised before the program's filter is installed, if that was seen. `Relaxed`: a thread that does not see it yet is
/// not confined yet. For the main thread's waits that is [`AT_WORK`]'s to ensure.
static SEEN: AtomicBool = AtomicBool::new(false);

/// The frame in which the main thread makes calls in place of a wait of the program's; 0 for none. A filter that
/// another thread installs for all would end it in the middle of them, so that thread waits for their end:
///
/// ```text
/// main thread                           another thread
/// A raises AT_WORK                      C raises SEEN
/// B reads SEEN: makes its own calls,    D reads AT_WORK: waits until it is not raised
///   or the program's                    E installs the filter
/// ```
///
/// While the main thread waits in the kernel, by a call that the program might make, it is not raised.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// How long to wait for the main thread, at most: for some two seconds. Its longest work is a freeze in one go.
const NAP: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 500_000 };
const NAPS: u32 = 4000;

/// Whose child of `vfork` has confined itself, in this process's memory: what child and thread have in common, 0 for
/// none, or [`MANY`](Self::MANY) for children of several threads, which are never forgotten. `Relaxed`: child and
/// thread take turns; another thread that does not see it yet is not confined.
struct Borrower(AtomicUsize);

static BORROWER: Borrower = Borrower(AtomicUsize::new(0));

impl Borrower {
    const MANY: usize = usize::MAX;

    fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn note(&self, thread: usize) {
        if self.0.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_err_and(|known| known != thread)
        {
            self.0.store(Self::MANY, Ordering::Relaxed);
        }
    }

    /// Forgets the child in the thread that has made it, unless this is the child.
    fn forget(&self, thread: usize, is_borrowed: impl FnOnce() -> bool) {
        if self.0.load(Ordering::Relaxed) == thread && !is_borrowed() {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// What is known of the filters of the start: 0 if nothing, [`HARMLESS`] or [`FEARED`].
static INHERITED: AtomicU8 = AtomicU8::new(0);

const HARMLESS: u8 = 1;
const FEARED: u8 = 2;

fn note_inherited(known: u8) {
    // Release, partner: the Acquire load in `inherited`. Forbids that a thread sees HARMLESS, but not for which calls
    // the filters end it (`seccomp::found_deadly`).
    INHERITED.store(known, Ordering::Release);
}

fn inherited() -> u8 {
    // Acquire, partner: the Release store in `note_inherited`.
    INHERITED.load(Ordering::Acquire)
}

/// Why filters of the start are feared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Feared {
    /// So many were added below `palimpsest run`.
    Added(u64),
    /// One ends the program for this call.
    Deadly(FreezeCall),
    /// Whether one does could not be tried.
    Untried(Untried),
}

/// Whether the program is confined: from then on the object makes no call in place of the program's waits, and none
/// that only makes it faster. Async-signal-safe.
pub(crate) fn is_seen() -> bool {
    is_owners() || BORROWER.is_noted()
}

/// Whether that holds for the owner of this memory. Async-signal-safe.
pub(crate) fn is_owners() -> bool {
    is_own() || inherited() == FEARED
}

/// Whether the program has confined itself: from then on no file may be opened for it. Async-signal-safe.
pub(crate) fn is_own() -> bool {
    SEEN.load(Ordering::Relaxed)
}

/// Notes that a filter is about to be installed.
pub(crate) fn note() {
    SEEN.store(true, Ordering::Relaxed);
}

/// Makes calls in place of a wait, in the main thread: those that [`is_seen`] allows from here on. A handler that has
/// interrupted others, and waits itself, leaves them raised. If it has left them by `siglongjmp`, their frame is gone.
pub(crate) fn working<T>(work: impl FnOnce() -> T) -> T {
    let here = 0_u8;
    let (outer, frame) = (AT_WORK.load(Ordering::Relaxed), (&raw const here).addr());
    let is_nested = outer > frame;
    begin_work(if is_nested { outer } else { frame });
    let done = work();
    if !is_nested {
        end_work();
    }
    done
}

/// Waits in the kernel, or lets handlers run, in the middle of them.
pub(crate) fn apart<T>(wait: impl FnOnce() -> T) -> T {
    let frame = AT_WORK.load(Ordering::Relaxed);
    end_work();
    let done = wait();
    begin_work(frame);
    done
}

fn begin_work(frame: usize) {
    AT_WORK.store(frame, Ordering::Relaxed);
    // SeqCst, partner: the fence in `await_work`. Forbids that B and D both miss what the other thread has raised.
    fence(Ordering::SeqCst);
}

fn end_work() {
    // Release, partner: the Acquire load in `await_work`. Forbids that E comes before the last of the calls.
    AT_WORK.store(0, Ordering::Release);
}

/// Whether a child that the calling thread forks now need not be told that it is [`born`]: this is the main thread, and
/// not at work.
#[inline]
pub(crate) fn is_at_rest() -> bool {
    is_main_thread() && AT_WORK.load(Ordering::Relaxed) == 0
}

/// Notes in a child of `fork` that the main thread, which may have been at work, is not there. Writes nothing without
/// need: the page is the parent's, too.
pub(crate) fn born() {
    if AT_WORK.load(Ordering::Relaxed) != 0 {
        end_work();
    }
}

/// Waits until the main thread makes no call of its own any more, once a filter was [noted](note).
pub(crate) fn await_work() {
    // SeqCst, partner: the fence in `begin_work`; see there.
    fence(Ordering::SeqCst);
    // A handler that has interrupted the main thread would wait for itself.
    let mut naps = if is_main_thread() { 0..0 } else { 0..NAPS };
    // Acquire, partner: the Release store in `end_work`.
    while AT_WORK.load(Ordering::Acquire) != 0 && naps.next().is_some() {
        // Interrupted or not, it looks again.
        let _ = rustix::thread::nanosleep(&NAP);
    }
}

/// Notes the same of a child of `vfork`, which leaves its parent unconfined.
pub(crate) fn note_borrower() {
    BORROWER.note(this_thread());
}

/// Forgets the child of `vfork` in the thread that has made it, which goes on only when the child has memory of its own
/// or has ended. Asks for the process id, if there was such a child. Async-signal-safe.
pub(crate) fn forget_borrower() {
    BORROWER.forget(this_thread(), guard::is_borrowed);
}

/// Returns a number that no other thread of this process has, but a child of `vfork` has from the thread that made it.
fn this_thread() -> usize {
    // SAFETY: takes nothing.
    unsafe { libc::pthread_self() as usize }
}

/// Whether work may be done in place of the program's waits. Only if it is not [seen](is_seen) to be confined.
pub(crate) fn leaves_waits() -> bool {
    seccomp::found_deadly().first_of(&[Part::Waits]).is_none()
}

/// What a look has found.
enum Found {
    Harmless,
    /// Filters under which the program was started, that end it for these calls.
    Tried {
        filters: u64,
        deadly: Calls,
    },
    Untried,
    Added(u64),
}

fn look(of_the_start: Option<Filters>) -> Found {
    match (filters::of_this_thread(), of_the_start) {
        (Some(0), _) => Found::Harmless,
        (Some(now), Some(Filters { count, .. })) if now > count => Found::Added(now - count),
        (Some(filters), Some(Filters { trial: Trial::Done(deadly), .. })) => Found::Tried { filters, deadly },
        // None has been taken away.
        (Some(_), Some(Filters { trial: Trial::Unneeded, .. })) => Found::Harmless,
        // Without `/proc`, too.
        _ => Found::Untried,
    }
}

/// Whether no filter ends the program for calls of this object. Looks if that is enough to know. Async-signal-safe, and
/// leaves `errno` undefined.
pub(crate) fn is_free(started: &Started) -> bool {
    if is_known_to_be_free(started) {
        return true;
    }
    let may_look = matches!(started.filters, Some(Filters { trial: Trial::Done(_), .. }));
    if is_own() || !may_look || inherited() != 0 {
        return false;
    }
    uncancelled(|| settle(look(started.filters)));
    inherited() == HARMLESS
}

/// Whether that is known without a look. Makes no system call, and writes nothing: what a process never writes to is no
/// page of its own.
#[inline]
pub(crate) fn is_known_to_be_free(started: &Started) -> bool {
    let is_unneeded = || matches!(started.filters, Some(Filters { trial: Trial::Unneeded, .. }));
    !is_own()
        && match inherited() {
            HARMLESS => true,
            0 => is_unneeded(),
            _ => false,
        }
}

/// Whether this is a child of `vfork` that no filter confines. Looks, and notes in its parent's memory, for all its
/// other children, only what holds for both: the parent of one without any filter has none, since none is ever taken
/// away. A process with memory of its own would look for one program only, which costs as much as it gains on average.
/// Async-signal-safe.
pub(crate) fn is_free_child(started: &Started) -> bool {
    let may_look = matches!(started.filters, Some(Filters { count: 0, trial: Trial::Done(_) }));
    if is_seen() || !may_look || inherited() != 0 || !guard::is_borrowed() {
        return false;
    }
    // A handler that leaves by `siglongjmp` would leave the file open.
    let _quiet = Blocked::all_but_faults();
    let is_free = filters::of_this_thread() == Some(0);
    if is_free {
        note_inherited(HARMLESS);
    }
    is_free
}

/// Notes what a look has found, unless that leaves it open.
fn settle(found: Found) {
    match found {
        Found::Harmless => note_inherited(HARMLESS),
        Found::Tried { filters, deadly } => {
            seccomp::tell(filters, deadly);
            settle_tried(deadly);
        }
        Found::Added(_) => note_inherited(FEARED),
        Found::Untried => {}
    }
}

fn settle_tried(deadly: Calls) {
    let known = if needed(deadly).is_none() { HARMLESS } else { FEARED };
    note_inherited(known);
}

/// Returns the first of these calls without which nothing can be done.
fn needed(deadly: Calls) -> Option<FreezeCall> {
    deadly.first_of(&[Part::Service])
}

/// Looks before a fork, and tries what nobody has tried. Only if the program has not confined itself.
pub(crate) fn before_fork(started: &Started) {
    if is_free(started) || is_seen() {
        return;
    }
    uncancelled(|| {
        settle(look(started.filters));
        if inherited() == 0 {
            match seccomp::deadly_calls() {
                Ok(deadly) => {
                    let now = filters::of_this_thread();
                    if let Some(Filters { count, .. }) = started.filters.filter(|start| now == Some(start.count)) {
                        seccomp::tell(count, deadly);
                    }
                    settle_tried(deadly);
                }
                Err(_) => note_inherited(FEARED),
            }
        }
    });
}

/// Returns why filters of the start are feared, if they are. Looks again, and tries again what could not be tried.
pub(crate) fn why_feared(started: &Started) -> Option<Feared> {
    match look(started.filters) {
        Found::Harmless => None,
        Found::Added(count) => Some(Feared::Added(count)),
        Found::Tried { deadly, .. } => needed(deadly).map(Feared::Deadly),
        Found::Untried => match seccomp::deadly_calls() {
            Ok(deadly) => needed(deadly).map(Feared::Deadly),
            Err(untried) => Some(Feared::Untried(untried)),
        },
    }
}

/// Forgets what the program has installed, for tests.
#[cfg(test)]
pub(crate) fn forget() {
    SEEN.store(false, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a child that is forgotten while it may still run, or never; a question that nobody need ask.
    #[test]
    fn only_the_thread_that_goes_on_after_a_child_of_vfork_forgets_it() {
        let borrower = Borrower(AtomicUsize::new(0));
        let asked = || panic!("nobody need ask");
        borrower.forget(8, asked);
        borrower.note(8);
        borrower.note(8);
        borrower.forget(16, asked);
        borrower.forget(8, || true);
        assert!(borrower.is_noted());
        borrower.forget(8, || false);
        assert!(!borrower.is_noted());
        borrower.note(8);
        borrower.note(16);
        borrower.forget(8, asked);
        borrower.forget(16, asked);
        assert!(borrower.is_noted());
    }

    /// Fails on: a filter that comes in the middle of the main thread's calls; one for which nothing has to be waited.
    #[test]
    fn whoever_confines_all_threads_waits_for_the_main_threads_calls() {
        await_work();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            working(|| {
                scope.spawn(|| {
                    await_work();
                    assert!(is_done.load(Ordering::Relaxed));
                });
                std::thread::sleep(std::time::Duration::from_millis(20));
                // As a handler, which waits itself.
                working(|| {});
                assert_ne!(AT_WORK.load(Ordering::Relaxed), 0);
                apart(|| assert_eq!(AT_WORK.load(Ordering::Relaxed), 0));
                is_done.store(true, Ordering::Relaxed);
            });
        });
        assert_eq!(AT_WORK.load(Ordering::Relaxed), 0);
        // A handler that leaves a wait by `siglongjmp`.
        #[inline(never)]
        fn left() {
            let place = [0_u8; 4096];
            begin_work(std::hint::black_box(&place).as_ptr().addr());
        }
        left();
        working(|| {});
        assert_eq!(AT_WORK.load(Ordering::Relaxed), 0);
    }

    /// The process of the tests may have filters itself.
    #[test]
    fn filters_below_run_are_added_and_those_above_it_are_tried() {
        let now = filters::of_this_thread().expect("/proc is mounted");
        let found = |count, trial| look(Some(Filters { count, trial }));
        if now == 0 {
            assert!(matches!(found(0, Trial::Due), Found::Harmless));
        } else {
            let passed = Trial::Done(Calls::NONE);
            assert!(matches!(found(now - 1, passed), Found::Added(1)));
            assert!(matches!(found(now, passed), Found::Tried { deadly: Calls::NONE, .. }));
            assert!(matches!(found(now, Trial::Due), Found::Untried) && matches!(look(None), Found::Untried));
        }
    }
}
