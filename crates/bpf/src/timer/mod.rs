//! Timers in the values of maps: Linux's `struct bpf_timer`, driven by a thread of the process.
//!
//! A timer is known by the address of its 16 bytes in a value. Its state is kept here, in memory that was allocated
//! with the map (`Part`); the bytes themselves mean nothing. All maps of a host share one `Timers`. The first program
//! that sets timers starts its thread, which ends when the last of the maps is dropped.
//!
//! # States of a timer
//!
//! | state | what ends it |
//! |---|---|
//! | none | `init`: idle |
//! | idle: not armed, with or without a callback | `start`, which needs a callback: armed |
//! | armed: has a deadline, and is in a heap | `cancel`: idle, without a callback; the thread: running |
//! | running: the thread calls it, `State::running` names it | the callback's return: idle, or armed if it did that |
//!
//! When an element is removed or gets another value, `forget` leads from any state to none. One lock guards all of
//! this. It is not held while a callback runs, and whoever holds it waits for nothing but the two conditions. A thread
//! may take this lock while it holds that of a hash map's bucket, never the other way round.
//!
//! # Who frees
//!
//! Programs make, arm and end timers in runs that must not use the allocator: signal handlers may have interrupted it.
//! So what callbacks keep has another keeper here (`Timers::keep`), and goes when that is the last one: the thread
//! looks when callbacks were dropped, and so do those who load and drop programs.
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

mod part;
mod thread;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use palimpsest_sys::ForkDetector;
use palimpsest_sys::clock::Clock;

use crate::holding::{Holding, Level, is_holding};
pub(crate) use part::Part;
use part::Timer;

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

    /// Its place in [`ALL`](Self::ALL).
    const fn index(self) -> usize {
        match self {
            Self::Real => 0,
            Self::Monotonic => 1,
            Self::Boot => 2,
        }
    }
}

/// What timers tell time by. It is asked while no timer can be changed: programs that it runs get -35 (`EDEADLK`) of
/// helpers for timers, and changes of maps with timers [`Deadlock`](crate::map::OpError::Deadlock). It waits for no
/// lock of a map: changes are refused in the same way where another thread is changing the same part, and look-ups take
/// what is there.
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

/// What a timer calls. A clone needs no memory.
pub(crate) trait Callback: Clone + Send + Sync + 'static {
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
    /// The thread could not be started.
    Thread,
    /// This process is a forked child of the one that has the thread.
    Child,
    /// This thread is changing timers, and a signal handler has interrupted it, or it asks for the time. Or it would
    /// wait for a call that may wait for it: for the map that it is changing, or for the callback that it runs.
    Interrupted,
}

impl TimerError {
    /// Linux's number for it.
    pub(crate) const fn errno(self) -> i64 {
        match self {
            Self::Busy => 16,
            Self::Invalid => 22,
            Self::Interrupted => 35,
            Self::Thread => 11,
            Self::Child => 1,
        }
    }
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

/// The callback that is running, on the timers' thread.
struct Running {
    serial: u64,
    address: u64,
}

/// What callbacks keep: it is freed here, and by none of them.
pub(crate) trait Kept: Send + Sync {
    /// How many [`Timers`] keep it: programs may work on maps of several hosts.
    fn keepers(&self) -> &AtomicUsize;
}

/// One of those that keep it.
struct Keeper(Arc<dyn Kept>);

impl Keeper {
    fn new(kept: Arc<dyn Kept>) -> Self {
        // Relaxed, here and below: read inside locks of others, and a count that is late only keeps it for longer.
        kept.keepers().fetch_add(1, Ordering::Relaxed);
        Self(kept)
    }

    /// Whether nothing else keeps it.
    fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == self.0.keepers().load(Ordering::Relaxed)
    }
}

impl Drop for Keeper {
    /// Before the keeper's share goes: others must not take a callback's for it.
    fn drop(&mut self) {
        self.0.keepers().fetch_sub(1, Ordering::Relaxed);
    }
}

struct State<C> {
    /// Of each map.
    parts: Vec<Part<C>>,
    /// What callbacks keep, too.
    kept: Vec<Keeper>,
    /// Whether callbacks were dropped since somebody has looked at `kept`.
    dropped: bool,
    /// The serial of the next timer that is armed.
    serial: u64,
    running: Option<Running>,
    /// Whether there is a thread: from its start until its end.
    has_thread: bool,
    /// How many looks at the clock were asked for, and how many were made.
    wanted: u64,
    made: u64,
}

// Not derived, which would ask for callbacks that have a default.
impl<C> Default for State<C> {
    fn default() -> Self {
        let (parts, kept) = (Vec::new(), Vec::new());
        Self { parts, kept, dropped: false, serial: 0, running: None, has_thread: false, wanted: 0, made: 0 }
    }
}

impl<C> State<C> {
    fn part(&mut self, address: u64) -> Option<&mut Part<C>> {
        self.parts.iter_mut().find(|part| part.has(address))
    }

    fn timer(&mut self, address: u64) -> Option<&mut Timer<C>> {
        self.part(address)?.timer_mut(address)
    }

    fn disarm(&mut self, address: u64) -> bool {
        self.part(address).is_some_and(|part| part.disarm(address))
    }

    /// Whether a call that was asked for before `serial`, and is due by these times, has not been made or not returned.
    fn owes(&self, serial: u64, times: [(TimerClock, u64); 3]) -> bool {
        let is_owed = |part: &Part<C>, (clock, time): (TimerClock, u64)| {
            part.armed(clock).any(|armed| armed.deadline <= time && armed.serial < serial)
        };
        self.parts.iter().any(|part| times.into_iter().any(|time| is_owed(part, time)))
            || self.running.as_ref().is_some_and(|running| running.serial < serial)
    }

    /// Takes out what nothing but timers keeps.
    fn take_unused(&mut self) -> Vec<Keeper> {
        self.dropped = false;
        self.kept.extract_if(.., |keeper| keeper.is_last()).collect()
    }
}

struct Shared<C> {
    here: ForkDetector,
    time: Box<dyn TimeSource>,
    state: Mutex<State<C>>,
    /// Tells the thread that a timer was armed, that a look is wanted, that callbacks were dropped, or that it is to
    /// end.
    changed: Condvar,
    /// By which the thread tells that a callback has returned, or that a look was made.
    done: Condvar,
    /// How many callbacks failed. The thread adds to it, anybody reads it.
    failures: AtomicU64,
    /// Whether the [`Timers`] were dropped. The thread reads it inside the lock; it is set before the lock is taken, or
    /// by the thread itself.
    is_ended: AtomicBool,
}

impl<C> Shared<C> {
    /// Takes the lock. The caller is not inside it.
    fn lock(&self) -> Locked<'_, C> {
        let inside = Inside { before: INSIDE.replace(self.address()), _holding: Holding::begin(Level::Timers) };
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

impl<C> Drop for Shared<C> {
    fn drop(&mut self) {
        if matches!(self.state.try_lock(), Err(TryLockError::WouldBlock)) {
            // A thread that this child does not have was changing it: nobody knows what is left of it.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(core::mem::take(state));
        }
    }
}

std::thread_local! {
    /// The address of the [`Shared`] whose lock this thread holds, or is about to; 0 if it holds none.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
    /// The process in which this is the thread of some timers; 0 if it is not. A callback may fork, and the thread of
    /// the child is no timers'.
    static CALLS_IN: Cell<u32> = const { Cell::new(0) };
}

/// Says, when dropped, that the thread is where it was before.
struct Inside {
    before: usize,
    _holding: Holding,
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}

/// The state, and then [`Inside`], which is dropped behind it.
struct Locked<'a, C>(MutexGuard<'a, State<C>>, Inside);

impl<C> Locked<'_, C> {
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

impl<C> Deref for Locked<'_, C> {
    type Target = State<C>;

    fn deref(&self) -> &State<C> {
        &self.0
    }
}

impl<C> DerefMut for Locked<'_, C> {
    fn deref_mut(&mut self) -> &mut State<C> {
        &mut self.0
    }
}

/// The timers of a host's maps.
pub(crate) struct Timers<C> {
    shared: Arc<Shared<C>>,
}

impl<C> fmt::Debug for Timers<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").field("time", &self.shared.time).finish_non_exhaustive()
    }
}

/// Whether this thread is changing timers.
pub(crate) fn is_interrupted() -> bool {
    INSIDE.get() != 0
}

/// Whether this thread may wait for callbacks, of whichever timers: not from one, since one of another host may wait
/// for it; nor while it holds a lock of a map, for which one may wait: a handler has interrupted it.
fn may_wait_for_callbacks() -> bool {
    let is_calling = CALLS_IN.get() != 0 && CALLS_IN.get() == std::process::id();
    !is_calling && !is_holding()
}

impl<C: Callback> Timers<C> {
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
    fn state(&self) -> Result<Locked<'_, C>, TimerError> {
        if !self.shared.here.is_same_process() {
            return Err(TimerError::Child);
        }
        if is_interrupted() {
            return Err(TimerError::Interrupted);
        }
        Ok(self.shared.lock())
    }

    /// Adds the timers of a map.
    pub(crate) fn add(&self, part: Part<C>) {
        if let Ok(mut state) = self.state() {
            state.parts.push(part);
        }
    }

    /// Keeps what callbacks will keep, so that nobody who drops a callback has to free that. Starts the thread, so that
    /// nobody who arms a timer has to; if it cannot be started, whoever arms one tries it again.
    pub(crate) fn keep(&self, kept: Arc<dyn Kept>) {
        self.let_go();
        let Ok(mut state) = self.state() else { return };
        state.kept.push(Keeper::new(kept));
        // The error is told to whoever arms a timer.
        let _ = self.begin(&mut state);
    }

    /// Lets go of what nothing else keeps.
    pub(crate) fn let_go(&self) {
        let Ok(mut state) = self.state() else { return };
        let unused = state.take_unused();
        drop(state);
        drop(unused);
    }

    /// Starts the thread, if there is none.
    fn begin(&self, state: &mut State<C>) -> Result<(), TimerError> {
        if !state.has_thread {
            thread::start(&self.shared).map_err(|_| TimerError::Thread)?;
            state.has_thread = true;
        }
        Ok(())
    }

    /// Makes a timer (`bpf_timer_init`).
    pub(crate) fn init(&self, address: u64, clock: TimerClock) -> Result<(), TimerError> {
        let mut state = self.state()?;
        if state.part(address).is_some_and(|part| part.make(address, clock)) { Ok(()) } else { Err(TimerError::Busy) }
    }

    /// Sets what a timer calls (`bpf_timer_set_callback`).
    pub(crate) fn set_callback(&self, address: u64, callback: C) -> Result<(), TimerError> {
        let mut state = self.state()?;
        let timer = state.timer(address).ok_or(TimerError::Invalid)?;
        let before = timer.callback.replace(callback);
        drop(state);
        self.dropped(before);
        Ok(())
    }

    /// Drops a callback, and has the thread look at what it has kept.
    fn dropped(&self, callback: Option<C>) {
        if callback.is_none() {
            return;
        }
        // Without the lock, should a host that is going have let go of it meanwhile.
        drop(callback);
        if let Ok(mut state) = self.state() {
            state.dropped = true;
            self.shared.changed.notify_one();
        }
    }

    /// Arms a timer (`bpf_timer_start`): `time` is a time of its clock, or counts from now.
    pub(crate) fn start(&self, address: u64, time: u64, from: From) -> Result<(), TimerError> {
        let mut state = self.state()?;
        let timer = state.timer(address).filter(|timer| timer.callback.is_some());
        let clock = timer.ok_or(TimerError::Invalid)?.clock;
        self.begin(&mut state)?;
        let now = self.shared.time.now(clock);
        let deadline = match from {
            From::Now => now.saturating_add(time),
            // Not earlier: a timer that kept arming itself for a time long ago would always be the most overdue, and
            // the only one that is called.
            From::Beginning => time.max(now),
        };
        let serial = state.serial;
        state.serial += 1;
        if let Some(part) = state.part(address) {
            part.disarm(address);
            part.arm(address, deadline, serial);
        }
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Disarms a timer and takes its callback away; returns whether it was armed (`bpf_timer_cancel`). If the callback
    /// is running, waits for that one call, not for calls that are asked for meanwhile; not if this thread
    /// [may not wait](may_wait_for_callbacks): then nothing changes.
    pub(crate) fn cancel(&self, address: u64) -> Result<bool, TimerError> {
        let mut state = self.state()?;
        let running = state.running.as_ref().filter(|running| running.address == address);
        let called = running.map(|running| running.serial);
        if called.is_some() && !may_wait_for_callbacks() {
            return Err(TimerError::Interrupted);
        }
        let was_armed = state.disarm(address);
        let callback = state.timer(address).ok_or(TimerError::Invalid)?.callback.take();
        while called.is_some() && state.running.as_ref().map(|running| running.serial) == called {
            state = state.wait(&self.shared.done);
        }
        drop(state);
        self.dropped(callback);
        Ok(was_armed)
    }

    /// Removes the timer of an element that is removed or replaced. A callback that is running runs to its end.
    pub(crate) fn forget(&self, address: u64) {
        let Ok(mut state) = self.state() else { return };
        let removed = state.part(address).and_then(|part| part.remove(address));
        drop(state);
        self.dropped(removed.and_then(|timer| timer.callback));
    }

    /// Removes the timers of a map, whose first one is at this address.
    pub(crate) fn forget_map(&self, first: u64) {
        let Ok(mut state) = self.state() else { return };
        let place = state.parts.iter().position(|part| part.start() == first);
        let part = place.map(|place| state.parts.swap_remove(place));
        drop(state);
        drop(part);
        self.let_go();
    }

    /// Removes the timers whose callbacks have nothing left to call.
    pub(crate) fn forget_dead(&self) {
        let Ok(mut state) = self.state() else { return };
        let dead = |part: &mut Part<C>| part.take_callbacks(|callback| !callback.is_alive());
        let removed: Vec<C> = state.parts.iter_mut().flat_map(dead).collect();
        drop(state);
        drop(removed);
        self.let_go();
    }

    /// Has the thread look at the clock, and waits until every timer that was armed before, and is due now, has been
    /// called. Returns at once where this thread [may not wait](may_wait_for_callbacks). Lets go of what timers kept
    /// before.
    pub(crate) fn look(&self) {
        if !may_wait_for_callbacks() {
            return;
        }
        let Ok(mut state) = self.state() else { return };
        let (serial, times) = (state.serial, TimerClock::ALL.map(|clock| (clock, self.shared.time.now(clock))));
        if !state.has_thread {
            return;
        }
        state.wanted += 1;
        let wanted = state.wanted;
        self.shared.changed.notify_one();
        // If a clock has been set back since, the thread finds nothing due, and the look is made all the same.
        while state.made < wanted && state.owes(serial, times) && state.has_thread {
            state = state.wait(&self.shared.done);
        }
        drop(state);
        self.let_go();
    }

    /// How many callbacks have failed.
    pub(crate) fn failures(&self) -> u64 {
        // Relaxed: a statistic.
        self.shared.failures.load(Ordering::Relaxed)
    }
}

impl<C> Drop for Timers<C> {
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
        let timers = (core::mem::take(&mut state.parts), core::mem::take(&mut state.kept));
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
