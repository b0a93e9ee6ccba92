//! Timers in the values of maps: Linux's `struct bpf_timer`, driven by a thread of the process.
//!
//! A timer is known by the address of its 16 bytes in a value; what it does is here, and the bytes themselves mean
//! nothing. All maps of a host share one `Timers`, whose thread is started by the first timer that is armed and ends
//! with the last of the maps.
//!
//! # States of a timer
//!
//! | state | who leaves it |
//! |---|---|
//! | none | `init`: idle |
//! | idle: without callback, or not armed | `set_callback`, `start`: armed |
//! | armed: a deadline among `State::armed` | `cancel`: idle, without callback; the thread: running |
//! | running: `State::running`, in the thread alone | the thread, when the callback has returned: idle, or armed by it |
//!
//! `forget` leads from any state to none, when an element goes or gets another value. One lock guards all of it; it is
//! not held while a callback runs, and whoever holds it waits for nothing but the two conditions. The lock of a bucket
//! of a hash map may be held around it, never the other way round.
//!
//! # Forks
//!
//! A child of `fork` has no such thread, and may have inherited the lock from a thread that it does not have. So
//! nothing here touches the lock there: timers of a child refuse everything, and never run.

mod thread;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::fmt;
use core::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use palimpsest_sys::ForkDetector;
use palimpsest_sys::clock::Clock;

/// The clocks that timers know. The numbers are those of Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TimerClock {
    /// Time of the day, which somebody may set.
    Real = 0,
    /// Since the machine was started, but for when it was suspended.
    Monotonic = 1,
    /// Since the machine was started.
    Boot = 7,
}

impl TimerClock {
    const ALL: [Self; 3] = [Self::Real, Self::Monotonic, Self::Boot];

    /// The clock with this number of Linux.
    pub(crate) fn new(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|clock| *clock as u64 == number)
    }
}

/// What timers tell time by.
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
    /// Calls it.
    fn call(&self) -> Ended;

    /// Whether there is still somebody to call.
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
    /// It is a timer already.
    Busy,
    /// It is no timer yet, has no callback, or flags are not known.
    Invalid,
    /// Its callback would wait for itself.
    Itself,
    /// There is no thread for it.
    Thread,
    /// This is a child of the process that has the thread.
    Child,
}

impl TimerError {
    /// The number that Linux has for it.
    pub(crate) const fn errno(self) -> i64 {
        match self {
            Self::Busy => 16,
            Self::Invalid => 22,
            Self::Itself => 35,
            Self::Thread => 11,
            Self::Child => 1,
        }
    }
}

struct Timer {
    clock: TimerClock,
    callback: Option<Arc<dyn Callback>>,
    /// If it is armed; then that is among [`State::armed`], too.
    armed: Option<Armed>,
}

/// A call that a timer is to make. Those of one clock are in the order in which they are made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Armed {
    clock: TimerClock,
    deadline: u64,
    /// Counts the times that a timer was armed. So those that were first come first, and each call differs from all
    /// others of its timer.
    serial: u64,
    address: u64,
}

impl Armed {
    /// All of a clock until `deadline`.
    const fn until(clock: TimerClock, deadline: u64) -> RangeInclusive<Self> {
        let first = Self { clock, deadline: 0, serial: 0, address: 0 };
        first..=Self { clock, deadline, serial: u64::MAX, address: u64::MAX }
    }
}

/// A callback that is being called.
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
    /// That of the next one that is armed.
    serial: u64,
    running: Option<Running>,
    /// The thread, from when it is started until it ends.
    thread: Option<ThreadId>,
    /// Whether nobody has timers any more.
    is_ended: bool,
    /// Looks at the clock that were asked for, and those that were made.
    wanted: u64,
    made: u64,
}

impl State {
    fn disarm(&mut self, address: u64) -> bool {
        let Some(timer) = self.timers.get_mut(&address) else { return false };
        timer.armed.take().is_some_and(|armed| self.armed.remove(&armed))
    }

    /// Whether a call is still to be made, or to come to its end, that had been asked for before `serial` and is due by
    /// these times.
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
    /// Told to the thread: something was armed, a look is wanted, all is over.
    changed: Condvar,
    /// Told by the thread: a callback has returned, or a look was made.
    done: Condvar,
    /// Callbacks that failed. The thread adds to it, anybody reads it.
    failures: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that panics leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            }),
        }
    }

    /// The state, if this is the process that has the thread.
    fn state(&self) -> Result<MutexGuard<'_, State>, TimerError> {
        if self.shared.here.is_same_process() { Ok(self.shared.lock()) } else { Err(TimerError::Child) }
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

    /// Says what it calls (`bpf_timer_set_callback`).
    pub(crate) fn set_callback(&self, address: u64, callback: Arc<dyn Callback>) -> Result<(), TimerError> {
        let mut state = self.state()?;
        let timer = state.timers.get_mut(&address).ok_or(TimerError::Invalid)?;
        let before = timer.callback.replace(callback);
        // It may be the last that keeps a program.
        drop(state);
        drop(before);
        Ok(())
    }

    /// Arms it (`bpf_timer_start`): `time` is that of its clock, or counts from now.
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
            // One that arms itself for a time long ago would always be the latest, and the only one that is called.
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

    /// Disarms it and takes its callback away; waits for that if it is being called by now (`bpf_timer_cancel`), and
    /// not for calls that somebody asks for meanwhile. Whether it was armed.
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
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        drop(callback);
        Ok(was_armed)
    }

    /// Makes no timer of one whose element goes. Its callback, if it is being called, comes to its end.
    pub(crate) fn forget(&self, address: u64) {
        let removed = self.state().ok().and_then(|mut state| state.remove(address));
        // Without the lock: it may be the last that keeps a program.
        drop(removed);
    }

    /// The same for all between these addresses.
    pub(crate) fn forget_all(&self, addresses: Range<u64>) {
        self.forget_where(|address, _| addresses.contains(&address));
    }

    /// The same for those that have nobody left to call.
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

    /// Has the thread look at the clock, and waits until all has been called that is due and was armed by then. A
    /// callback does not wait.
    pub(crate) fn look(&self) {
        let Ok(mut state) = self.state() else { return };
        let (serial, times) = (state.serial, TimerClock::ALL.map(|clock| (clock, self.shared.time.now(clock))));
        if state.thread.is_none_or(|thread| thread == std::thread::current().id()) {
            return;
        }
        state.wanted += 1;
        let wanted = state.wanted;
        self.shared.changed.notify_one();
        // A clock may have been set back since: the thread then finds nothing due, and makes the look.
        while state.made < wanted && state.owes(serial, times) && state.thread.is_some() {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Callbacks that failed.
    pub(crate) fn failures(&self) -> u64 {
        // Relaxed: a statistic.
        self.shared.failures.load(Ordering::Relaxed)
    }
}

impl Drop for Timers {
    /// The thread ends by itself: it may be the one that drops this.
    fn drop(&mut self) {
        let Ok(mut state) = self.state() else { return };
        state.is_ended = true;
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
