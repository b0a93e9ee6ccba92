//! The thread that calls the callbacks of timers.

use alloc::sync::Arc;
use core::cmp::Reverse;
use core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use palimpsest_sys::threads::quiet;

use super::{Armed, CALLS_IN, Callback, Ended, Locked, Running, Shared, State, TimerClock};

/// The longest sleep while a timer waits for another clock than the one that the thread sleeps by: that clock may be
/// set, or go on while the machine is suspended.
const MOST_FOR_OTHERS: u64 = 1_000_000_000;

/// Starts the thread. The caller holds the state's lock.
pub(super) fn start<C: Callback>(shared: &Arc<Shared<C>>) -> io::Result<()> {
    let shared = Arc::clone(shared);
    // Nobody joins it: it ends by itself.
    quiet::spawn("bpf-timers", move || run(&shared)).map(drop)
}

/// Notes, when dropped, that the thread has ended, also by a panic of a [`TimeSource`](super::TimeSource). So nobody
/// waits for it, and the next timer that is armed starts another one.
struct Gone<'a, C>(&'a Shared<C>);

impl<C> Drop for Gone<'_, C> {
    fn drop(&mut self) {
        if !self.0.here.is_same_process() {
            // The callback has forked, and this is the child, which touches nothing of this.
            return;
        }
        let mut state = self.0.lock();
        state.has_thread = false;
        drop(state);
        self.0.done.notify_all();
    }
}

fn run<C: Callback>(shared: &Shared<C>) {
    CALLS_IN.set(std::process::id());
    // Made before the lock is taken, so that it is dropped after the lock.
    let _gone = Gone(shared);
    let mut state = shared.lock();
    while !shared.is_ended() {
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
        if state.dropped {
            let unused = state.take_unused();
            drop(state);
            drop(unused);
            state = shared.lock();
            continue;
        }
        // Everything that was due has been called.
        state.made = state.wanted;
        shared.done.notify_all();
        let rest = rest(shared, &state);
        if shared.is_ended() {
            // By who was asked for the time.
            return;
        }
        state = match rest {
            None => state.wait(&shared.changed),
            Some(rest) => state.wait_for(&shared.changed, rest),
        };
    }
}

/// The earliest timer of each clock.
fn earliest<C>(state: &State<C>) -> impl Iterator<Item = Armed> + '_ {
    TimerClock::ALL.into_iter().filter_map(|clock| state.parts.iter().filter_map(|part| part.earliest(clock)).min())
}

/// The timer that is most overdue, if one is due; of several, the one that was armed first.
fn due<C>(shared: &Shared<C>, state: &State<C>) -> Option<Armed> {
    let late = earliest(state).filter_map(|armed| {
        let late = shared.time.now(armed.clock).checked_sub(armed.deadline)?;
        Some((late, Reverse(armed.serial), armed))
    });
    late.max().map(|(.., armed)| armed)
}

/// How long until something may be due; `None` if nothing is armed.
fn rest<C>(shared: &Shared<C>, state: &State<C>) -> Option<Duration> {
    let rest = earliest(state).map(|Armed { clock, deadline, .. }| {
        let rest = deadline.saturating_sub(shared.time.now(clock));
        if clock == TimerClock::Monotonic { rest } else { rest.min(MOST_FOR_OTHERS) }
    });
    rest.min().map(Duration::from_nanos)
}

/// Calls a timer's callback, without the lock.
fn call<C: Callback>(shared: &Shared<C>, mut state: Locked<'_, C>, armed: Armed) {
    let Armed { serial, address, .. } = armed;
    state.disarm(address);
    let callback = state.timer(address).and_then(|timer| timer.callback.clone());
    state.running = Some(Running { serial, address });
    drop(state);
    // If the host is dropped here, what its closures hold is dropped, too, which may panic; other timers go on.
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
