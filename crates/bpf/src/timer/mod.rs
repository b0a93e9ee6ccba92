//! Timers in the values of maps: Linux's `struct bpf_timer`, driven by a thread of the process.
//!
//! A timer is known by the address of its 16 bytes in a value. Its state is kept here; the bytes themselves mean
//! nothing. All maps of a host share one `Timers`. The first timer that is armed starts its thread, which ends when the
//! last of the maps is dropped.
//!
//! # States of a timer
//!
//! | state | what ends it |
//! |---|---|
//! | none | `init`: idle |
//! | idle: not armed, with or without a callback | `start`, which needs a callback: armed |
//! | armed: has a deadline in `State::armed` | `cancel`: idle, without a callback; the thread: running |
//! | running: the thread calls it, `State::running` names it | the callback's return: idle, or armed if it did that |
//!
//! When an element is removed or gets another value, `forget` leads from any state to none. One lock guards all of
//! this. It is not held while a callback runs, and whoever holds it waits for nothing but the two conditions. A thread
//! may take this lock while it holds that of a hash map's bucket, never the other way round.
//!
//! # Forks
//!
//! A child of `fork` has no such thread, and may have inherited the lock held by a thread that it does not have. So a
//! child never waits for the lock: its timers refuse everything, and never run. What a thread was changing is never
//! freed there.
//!
//! # Signals, and the time
//!
//! A handler that has interrupted a thread inside the lock of some timers is refused everything, and so is a
//! [`TimeSource`], which is asked inside it. Both may drop other timers: nobody who has the lock of those waits for the
//! lock of these, since whoever is inside one is refused the other. The timers' thread takes no signals.

mod thread;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::cell::Cell;
use core::fmt;
use core::ops::{Deref, DerefMut, Range, RangeInclusive};
use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

use palimpsest_sys::ForkDetector;
use palimpsest_sys::clock::Clock;

/// The clocks that timers know. The numbers are those of Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TimerClock {
    /// Time of day, which may be set.
    Real = 0,
    /// Time since the machine started, without the time for which it was suspended.
    Monotonic = 1,
    /// Time since the machine started.
    Boot = 7,
}

impl TimerClock {
    const ALL: [Self; 3] = [Self::Real, Self::Monotonic, Self::Boot];

    /// The clock that has this number in Linux.
    pub(crate) fn new(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|clock| *clock as u64 == number)
    }
}

/// What timers tell time by. It is asked while no timer can be changed: programs that it runs get -35 (`EDEADLK`) of
/// helpers for timers, and changes of maps with timers [`Deadlock`](crate::map::OpError::Deadlock).
pub trait TimeSource: fmt::Debug + Send + Sync + 'static {
    /// What a clock shows, in nanoseconds.
    fn now(&self, clock: TimerClock) -> u64;
}

/// The kernel's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTime;

impl TimeSource for SystemTime {
    fn now(&self, clock: TimerClock) -> u64 {
        let clock = match clock {
            TimerClock::Real => Clock::Real,
            TimerClock::Monotonic => Clock::Monotonic,
            TimerClock::Boot => Clock::Boot,
        };
        clock.nanoseconds()
    }
}

/// What a timer calls.
pub(crate) trait Callback: Send + Sync {
    fn call(&self) -> Ended;

    /// Whether what it calls still exists.
    fn is_alive(&self) -> bool;
}

/// How a callback has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// By itself.
    Returned,
    /// By an error of a helper, or without fuel.
    Failed,
}

/// Why a timer does not do what it should. Programs get [`errno`](Self::errno), negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerError {
    /// The value's timer exists already.
    Busy,
    /// There is no timer yet, it has no callback, or a flag is unknown.
    Invalid,
    /// Its callback cancels it, and would wait for itself.
    Itself,
    /// The thread could not be started.
    Thread,
    /// This process is a forked child of the one that has the thread.
    Child,
    /// This thread is changing timers, and a signal handler has interrupted it, or it asks for the time.
    Interrupted,
}

impl TimerError {
    /// Linux's number for it.
    pub(crate) const fn errno(self) -> i64 {
        match self {
            Self::Busy => 16,
            Self::Invalid => 22,
            Self::Itself | Self::Interrupted => 35,
            Self::Thread => 11,
            Self::Child => 1,
        }
    }
}

struct Timer {
    clock: TimerClock,
    callback: Option<Arc<dyn Callback>>,
    /// `Some` while it is armed; then [`State::armed`] has the same.
    armed: Option<Armed>,
}

/// A call that a timer is to make. Within one clock, they are ordered as they are to be made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Armed {
    clock: TimerClock,
    deadline: u64,
    /// Counts how often timers were armed. So of two with one deadline, the one that was armed first is called first,
    /// and no two calls are equal.
    serial: u64,
    address: u64,
}

impl Armed {
    /// All calls of a clock that are due by `deadline`.
    const fn until(clock: TimerClock, deadline: u64) -> RangeInclusive<Self> {
        let first = Self { clock, deadline: 0, serial: 0, address: 0 };
        first..=Self { clock, deadline, serial: u64::MAX, address: u64::MAX }
    }
}

/// The callback that is running.
struct Running {
    serial: u64,
    address: u64,
    thread: ThreadId,
}

#[derive(Default)]
struct State {
    /// By address.
    timers: BTreeMap<u64, Timer>,
    armed: BTreeSet<Armed>,
    /// The serial of the next timer that is armed.
    serial: u64,
    running: Option<Running>,
    /// The thread, from its start until its end.
    thread: Option<ThreadId>,
    /// How many looks at the clock were asked for, and how many were made.
    wanted: u64,
    made: u64,
}

impl State {
    fn disarm(&mut self, address: u64) -> bool {
        let Some(timer) = self.timers.get_mut(&address) else { return false };
        timer.armed.take().is_some_and(|armed| self.armed.remove(&armed))
    }

    /// Whether a call that was asked for before `serial`, and is due by these times, has not been made or not returned.
    fn owes(&self, serial: u64, times: [(TimerClock, u64); 3]) -> bool {
        let mut due = times.into_iter().flat_map(|(clock, time)| self.armed.range(Armed::until(clock, time)));
        due.any(|armed| armed.serial < serial) || self.running.as_ref().is_some_and(|running| running.serial < serial)
    }

    fn remove(&mut self, address: u64) -> Option<Timer> {
        self.disarm(address);
        self.timers.remove(&address)
    }
}

struct Shared {
    here: ForkDetector,
    time: Box<dyn TimeSource>,
    state: Mutex<State>,
    /// Tells the thread that a timer was armed, that a look is wanted, or that it is to end.
    changed: Condvar,
    /// By which the thread tells that a callback has returned, or that a look was made.
    done: Condvar,
    /// How many callbacks failed. The thread adds to it, anybody reads it.
    failures: AtomicU64,
    /// Whether the [`Timers`] were dropped. The thread reads it inside the lock; it is set before the lock is taken, or
    /// by the thread itself.
    is_ended: AtomicBool,
}

impl Shared {
    /// Takes the lock. The caller is not inside it.
    fn lock(&self) -> Locked<'_> {
        let inside = Inside(INSIDE.replace(self.address()));
        // A panic never leaves the state half changed.
        Locked(self.state.lock().unwrap_or_else(PoisonError::into_inner), inside)
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    fn is_ended(&self) -> bool {
        // Relaxed: whoever has set it on another thread takes the lock afterwards, and then wakes the thread.
        self.is_ended.load(Ordering::Relaxed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if matches!(self.state.try_lock(), Err(TryLockError::WouldBlock)) {
            // A thread that this child does not have was changing it: nobody knows what is left of its trees.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(core::mem::take(state));
        }
    }
}

std::thread_local! {
    /// The address of the [`Shared`] whose lock this thread holds, or is about to; 0 if it holds none.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Says, when dropped, that the thread is where it was before.
struct Inside(usize);

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// The state, and then [`Inside`], which is dropped behind it.
struct Locked<'a>(MutexGuard<'a, State>, Inside);

impl Locked<'_> {
    /// Waits for the condition, without the lock.
    fn wait(self, condition: &Condvar) -> Self {
        let Self(state, inside) = self;
        Self(condition.wait(state).unwrap_or_else(PoisonError::into_inner), inside)
    }

    /// The same, for this long at most.
    fn wait_for(self, condition: &Condvar, rest: Duration) -> Self {
        let Self(state, inside) = self;
        Self(condition.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0, inside)
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

/// The timers of a host's maps.
pub(crate) struct Timers {
    shared: Arc<Shared>,
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").field("time", &self.shared.time).finish_non_exhaustive()
    }
}

impl Timers {
    pub(crate) fn new(time: Box<dyn TimeSource>) -> Self {
        Self {
            shared: Arc::new(Shared {
                here: ForkDetector::new(),
                time,
                state: Mutex::default(),
                changed: Condvar::new(),
                done: Condvar::new(),
                failures: AtomicU64::new(0),
                is_ended: AtomicBool::new(false),
            }),
        }
    }

    /// The state, if this is the process that has the thread, and not a signal handler that would wait for what it has
    /// interrupted.
    fn state(&self) -> Result<Locked<'_>, TimerError> {
        if !self.shared.here.is_same_process() {
            return Err(TimerError::Child);
        }
        if Self::is_interrupted() {
            return Err(TimerError::Interrupted);
        }
        Ok(self.shared.lock())
    }

    /// Whether this thread is changing timers.
    pub(crate) fn is_interrupted() -> bool {
        INSIDE.get() != 0
    }

    /// Makes a timer (`bpf_timer_init`).
    pub(crate) fn init(&self, address: u64, clock: TimerClock) -> Result<(), TimerError> {
        let mut state = self.state()?;
        if state.timers.contains_key(&address) {
            return Err(TimerError::Busy);
        }
        state.timers.insert(address, Timer { clock, callback: None, armed: None });
        Ok(())
    }

    /// Sets what a timer calls (`bpf_timer_set_callback`).
    pub(crate) fn set_callback(&self, address: u64, callback: Arc<dyn Callback>) -> Result<(), TimerError> {
        let mut state = self.state()?;
        let timer = state.timers.get_mut(&address).ok_or(TimerError::Invalid)?;
        let before = timer.callback.replace(callback);
        // Without the lock: the old callback may be the last thing that keeps a program.
        drop(state);
        drop(before);
        Ok(())
    }

    /// Arms a timer (`bpf_timer_start`): `time` is a time of its clock, or counts from now.
    pub(crate) fn start(&self, address: u64, time: u64, from: From) -> Result<(), TimerError> {
        let mut state = self.state()?;
        let timer = state.timers.get(&address).filter(|timer| timer.callback.is_some());
        let clock = timer.ok_or(TimerError::Invalid)?.clock;
        if state.thread.is_none() {
            state.thread = Some(thread::start(&self.shared).map_err(|_| TimerError::Thread)?);
        }
        let now = self.shared.time.now(clock);
        let deadline = match from {
            From::Now => now.saturating_add(time),
            // Not earlier: a timer that kept arming itself for a time long ago would always be the most overdue, and
            // the only one that is called.
            From::Beginning => time.max(now),
        };
        state.disarm(address);
        let armed = Armed { clock, deadline, serial: state.serial, address };
        state.serial += 1;
        if let Some(timer) = state.timers.get_mut(&address) {
            timer.armed = Some(armed);
        }
        state.armed.insert(armed);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Disarms a timer and takes its callback away; returns whether it was armed (`bpf_timer_cancel`). If the callback
    /// is running, waits for that one call, not for calls that are asked for meanwhile.
    pub(crate) fn cancel(&self, address: u64) -> Result<bool, TimerError> {
        let mut state = self.state()?;
        let running = state.running.as_ref().filter(|running| running.address == address);
        if running.is_some_and(|running| running.thread == std::thread::current().id()) {
            return Err(TimerError::Itself);
        }
        let called = running.map(|running| running.serial);
        let was_armed = state.disarm(address);
        let callback = state.timers.get_mut(&address).ok_or(TimerError::Invalid)?.callback.take();
        while called.is_some() && state.running.as_ref().map(|running| running.serial) == called {
            state = state.wait(&self.shared.done);
        }
        drop(state);
        drop(callback);
        Ok(was_armed)
    }

    /// Removes the timer of an element that is removed or replaced. A callback that is running runs to its end.
    pub(crate) fn forget(&self, address: u64) {
        let removed = self.state().ok().and_then(|mut state| state.remove(address));
        // Without the lock: its callback may be the last thing that keeps a program.
        drop(removed);
    }

    /// Removes all timers in this range of addresses.
    pub(crate) fn forget_all(&self, addresses: Range<u64>) {
        self.forget_where(|address, _| addresses.contains(&address));
    }

    /// Removes the timers whose callbacks have nothing left to call.
    pub(crate) fn forget_dead(&self) {
        self.forget_where(|_, timer| timer.callback.as_ref().is_some_and(|callback| !callback.is_alive()));
    }

    fn forget_where(&self, is_over: impl Fn(u64, &Timer) -> bool) {
        let Ok(mut state) = self.state() else { return };
        let over = state.timers.iter().filter(|(address, timer)| is_over(**address, timer));
        let over: alloc::vec::Vec<u64> = over.map(|(address, _)| *address).collect();
        let removed: alloc::vec::Vec<_> = over.into_iter().map(|address| state.remove(address)).collect();
        drop(state);
        drop(removed);
    }

    /// Has the thread look at the clock, and waits until every timer that was armed before, and is due now, has been
    /// called. Returns at once when called from a callback.
    pub(crate) fn look(&self) {
        let Ok(mut state) = self.state() else { return };
        let (serial, times) = (state.serial, TimerClock::ALL.map(|clock| (clock, self.shared.time.now(clock))));
        if state.thread.is_none_or(|thread| thread == std::thread::current().id()) {
            return;
        }
        state.wanted += 1;
        let wanted = state.wanted;
        self.shared.changed.notify_one();
        // If a clock has been set back since, the thread finds nothing due, and the look is made all the same.
        while state.made < wanted && state.owes(serial, times) && state.thread.is_some() {
            state = state.wait(&self.shared.done);
        }
    }

    /// How many callbacks have failed.
    pub(crate) fn failures(&self) -> u64 {
        // Relaxed: a statistic.
        self.shared.failures.load(Ordering::Relaxed)
    }
}

impl Drop for Timers {
    /// Does not wait for the thread's end: the thread itself may be the one that drops this.
    fn drop(&mut self) {
        if !self.shared.here.is_same_process() {
            return;
        }
        // Relaxed: see `Shared::is_ended`.
        self.shared.is_ended.store(true, Ordering::Relaxed);
        if INSIDE.get() == self.shared.address() {
            // The thread asks for the time, and its source drops this: it looks again before it waits.
            return;
        }
        let mut state = self.shared.lock();
        let timers = core::mem::take(&mut state.timers);
        state.armed.clear();
        self.shared.changed.notify_one();
        drop(state);
        drop(timers);
    }
}

/// What a timer's time counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// When it is started.
    Now,
    /// The beginning of its clock (`BPF_F_TIMER_ABS`).
    Beginning,
}

#[cfg(test)]
mod tests;
