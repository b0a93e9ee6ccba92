//! The program is about to wait: a freeze in slices goes on meanwhile.
//!
//! Only calls that no signal handler ever restarts are defined here (`signal(7)`): they tell the program of each
//! signal, and they take a signal mask for the one call. So a wait consists of calls that do not wait, with a slice
//! between any two, and of one that waits for the rest of the time, made through the C library: it ends there when the
//! thread is cancelled. Signals are blocked except in the latter: a handler runs in it, before it or after it, as
//! without this object, and the program hears of it by `EINTR`.
//!
//! A wait for which no slice is due, or too short for one, goes to the real function and costs a few loads; one that is
//! answered at once costs nothing more. The main thread takes the slices, on a stack of the library's own; others wait
//! as before.
//!
//! Once a filter was [seen](confined), which may allow what the program calls and nothing else, waits are left alone.
//! One that is under way then goes on by the program's own call.

mod epoll;
mod poll;
mod select;
mod sleep;

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

pub use epoll::{epoll_pwait, epoll_wait};
use libc::sigset_t;
use palimpsest_fork::guard;
pub use poll::{poll, ppoll};
pub use select::{pselect, select};
pub use sleep::{clock_nanosleep, nanosleep};

use crate::cancelling::{end_if_cancelled, uncancelled};
use crate::limit::{Limit, Step};
use crate::started::{self, Started};
use crate::waits::{Set, Signals, can_be_split, is_main_thread};
use crate::{confined, errno, freezing, library, real_waits};

/// Looks up the real functions.
pub(crate) fn resolve() {
    real_waits::resolve();
    library::find();
}

/// Whether to use this wait for a freeze in this process, under way or about to begin. If not, costs a few loads, and
/// one system call of the main thread while a deputy is at work (`wait4`) or a freeze is put off (`getpid`).
///
/// Only if its `parts`, and the clock by which they are measured, are the C library's: another object's may know more
/// than the kernel does.
fn wanted(time: Option<Duration>, parts: [usize; 2]) -> Option<&'static Started> {
    let are_known =
        || library::has((libc::clock_gettime as *const c_void).addr()) && parts.into_iter().all(library::has);
    let is_due = |started: &Started| next_slice(started, Limit::after(time)).is_some() && are_known() && can_be_split();
    let is_wanted = |started: &&'static Started| {
        if !is_main_thread() || !freezing::may_take_slices() {
            return false;
        }
        confined::working(|| !confined::is_owners() && is_due(started))
    };
    started::get().filter(is_wanted)
}

/// Returns when the next slice is due, if `limit` leaves time for one.
fn next_slice(started: &Started, limit: Limit) -> Option<Duration> {
    let rest = freezing::next_slice()?;
    limit.is_beyond(rest.saturating_add(started.settings.slice)).then_some(rest)
}

/// A wait of the program's, made in parts. The first two methods answer like the kernel: 0 if nothing has happened.
trait Wait {
    /// Looks without waiting, by the kernel's own call; with these signals blocked, if any are named, instead of the
    /// thread's.
    fn look(&mut self, mask: Option<Set>) -> isize;

    /// Waits so long at most, with these signals blocked. May answer 0 early once a filter was seen.
    fn wait(&mut self, step: Step, mask: Set) -> isize;

    /// Makes the program's own call, for what is left of its time.
    fn call(&mut self, left: Step) -> c_int;

    /// Hands an answer of the first two to the program, and returns it; `None` if a filter might forbid that: then
    /// nothing has happened yet.
    fn give(&mut self, answer: isize) -> Option<isize> {
        Some(answer)
    }
}

/// Waits until `limit`, with a mask of signals or the thread's own, and takes slices meanwhile. Answers like the
/// kernel.
fn split(started: &Started, limit: Limit, mask: Option<Set>, wait: &mut impl Wait) -> isize {
    // SAFETY: 1. from here to the program, no frame has anything to drop.
    unsafe { end_if_cancelled() };
    confined::working(|| {
        let answer = in_parts(started, limit, mask, wait).and_then(|answer| wait.give(answer));
        answer.unwrap_or_else(|| waits(|| wait.call(limit.left())))
    })
}

/// Does the same while no filter forbids it. `None` if the program's own call is to be made: then nothing has happened
/// yet.
fn in_parts(started: &Started, limit: Limit, mask: Option<Set>, wait: &mut impl Wait) -> Option<isize> {
    if confined::is_seen() {
        return None;
    }
    // With a mask of the program's no handler runs here, which might leave by `siglongjmp`: what the mask lets in is
    // seen below.
    let answer = wait.look(mask.map(|_| Set::ALL));
    if answer != 0 {
        return Some(answer);
    }
    if limit.is_over() || guard::is_borrowed() || next_slice(started, limit).is_none() {
        return None;
    }
    let before = errno::get();
    let signals = Signals::block();
    let answer = idle(started, limit, mask.unwrap_or(signals.before()), &signals, wait);
    // Handlers run here. One may leave by `siglongjmp`, or wait for another thread that installs a filter.
    confined::apart(|| signals.restore());
    uncancelled(|| freezing::tell_in_wait(started));
    errno::set(before);
    answer
}

/// Does the same once all signals are blocked.
fn idle(started: &Started, limit: Limit, mask: Set, signals: &Signals, wait: &mut impl Wait) -> Option<isize> {
    // A filter that was seen meanwhile may have ended it early.
    let answered = |answer| (answer != 0 || !confined::is_seen()).then_some(answer);
    loop {
        if confined::is_seen() {
            return None;
        }
        let is_any_pending = signals.drop_ignored(mask);
        let Some(rest) = next_slice(started, limit).filter(|_| !is_any_pending) else {
            if confined::is_seen() {
                return None;
            }
            // This wait may be long.
            uncancelled(|| freezing::tell_in_wait(started));
            return answered(wait.wait(limit.left(), mask));
        };
        if rest > Duration::ZERO {
            let answer = wait.wait(Step::For(rest), mask);
            if answer != 0 {
                return Some(answer);
            }
            continue;
        }
        let (mut answer, mut since, mut taken) = (0, Instant::now(), None);
        let mut is_idle = || {
            taken = Some(since.elapsed());
            since = Instant::now();
            if confined::is_seen() {
                return false;
            }
            answer = wait.look(Some(Set::ALL));
            answer == 0 && !limit.is_over() && !signals.is_any_pending(mask)
        };
        // SAFETY: 1. system calls that do not wait.
        let is_taken = uncancelled(|| unsafe { freezing::slice(started, &mut is_idle) });
        if taken.is_none() {
            // Other threads were held, or it was no freeze, or only planned.
            taken = Some(since.elapsed());
            answer = wait.look(Some(Set::ALL));
        }
        if answer != 0 || limit.is_over() {
            // Somebody was kept waiting.
            palimpsest_fork::put_off_slices(taken.unwrap_or_default());
            return Some(answer);
        }
        if !is_taken && !confined::is_seen() {
            // Refused: another time may be better.
            signals.drop_ignored(mask);
            return answered(wait.wait(limit.left(), mask));
        }
    }
}

/// Returns a set as the C library has it; the kernel knows its first 64 bits.
fn long(set: Set) -> sigset_t {
    // SAFETY: all zeros is a valid set.
    let mut long: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: longer, and aligned to words.
    unsafe { (&raw mut long).cast::<Set>().write(set) };
    long
}

/// Waits in the kernel by a C library function, and answers like the kernel. Meanwhile a filter may be installed: what
/// comes next asks for it anew.
fn waits(wait: impl FnOnce() -> c_int) -> isize {
    match confined::apart(wait) {
        answer if answer < 0 => -(errno::get() as isize),
        answer => answer as isize,
    }
}
