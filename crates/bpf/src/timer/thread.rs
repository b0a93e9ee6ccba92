//! The thread that calls what timers are for.

use alloc::sync::Arc;
use core::cmp::Reverse;
use core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::thread::ThreadId;

use palimpsest_sys::threads::quiet;

use super::{Armed, Ended, Running, Shared, State, TimerClock};

/// How long is slept at most for the sake of a clock that does not go as the thread's own: it may be set, or go on
/// while the machine is suspended.
const MOST_FOR_OTHERS: u64 = 1_000_000_000;

/// Starts it; the state's lock is held.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<ThreadId> {
    let shared = Arc::clone(shared);
    let thread = quiet::spawn("bpf-timers", move || run(&shared))?;
    // It ends by itself, and nobody waits for it.
    Ok(thread.thread().id())
}

/// Tells the state that there is no thread any more: also when a [`TimeSource`](super::TimeSource) has panicked, so
/// that nobody waits for it, and the next timer that is armed starts another one.
struct Gone<'a>(&'a Shared);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if !self.0.here.is_same_process() {
            // The callback has forked, and this is the child, where nothing of this is touched.
            return;
        }
        let mut state = self.0.lock();
        state.thread = None;
        drop(state);
        self.0.done.notify_all();
    }
}

fn run(shared: &Shared) {
    // Before the lock, so that it is dropped after it.
    let _gone = Gone(shared);
    let mut state = shared.lock();
    while !state.is_ended {
        if let Some(armed) = due(shared, &state) {
            call(shared, state, armed);
            if !shared.here.is_same_process() {
                return;
            }
            state = shared.lock();
            state.running = None;
            shared.done.notify_all();
            continue;
        }
        // All that is due was called.
        state.made = state.wanted;
        shared.done.notify_all();
        state = match rest(shared, &state) {
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(rest) => {
                let waited = shared.changed.wait_timeout(state, rest);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// The earliest timer of each clock.
fn earliest(state: &State) -> impl Iterator<Item = Armed> + '_ {
    TimerClock::ALL.into_iter().filter_map(|clock| state.armed.range(Armed::until(clock, u64::MAX)).next().copied())
}

/// A timer whose time has come: the one that has waited longest, of several the one that was armed first.
fn due(shared: &Shared, state: &State) -> Option<Armed> {
    let late = earliest(state).filter_map(|armed| {
        let late = shared.time.now(armed.clock).checked_sub(armed.deadline)?;
        Some((late, Reverse(armed.serial), armed))
    });
    late.max().map(|(.., armed)| armed)
}

/// How long nothing is due.
fn rest(shared: &Shared, state: &State) -> Option<Duration> {
    let rest = earliest(state).map(|Armed { clock, deadline, .. }| {
        let rest = deadline.saturating_sub(shared.time.now(clock));
        if clock == TimerClock::Monotonic { rest } else { rest.min(MOST_FOR_OTHERS) }
    });
    rest.min().map(Duration::from_nanos)
}

/// Calls what a timer is for, without the lock.
fn call(shared: &Shared, mut state: MutexGuard<'_, State>, armed: Armed) {
    let Armed { serial, address, .. } = armed;
    state.disarm(address);
    let callback = state.timers.get(&address).and_then(|timer| timer.callback.clone());
    state.running = Some(Running { serial, address, thread: std::thread::current().id() });
    drop(state);
    // What a host's closures drop in it may panic; the timers of others go on.
    let ended = catch_unwind(AssertUnwindSafe(move || callback.map_or(Ended::Returned, |callback| callback.call())));
    if let Ok(Ended::Returned) = ended {
        return;
    }
    if let Err(raised) = ended {
        // Dropping it could panic again.
        std::mem::forget(raised);
    }
    // Relaxed: a statistic.
    shared.failures.fetch_add(1, Ordering::Relaxed);
}
