//! The program is about to wait: a freeze in slices goes on meanwhile.
//!
//! Only calls that no signal handler ever restarts are defined here (`signal(7)`): they tell the program of each
//! signal, and they can be asked with a mask of signals that counts for the question alone. So a wait is made of
//! questions that do not wait, with a slice between any two, and of one that waits for the rest of the time. Signals
//! that do something are blocked but in the latter: a handler runs in there, or before, or afterwards, as without this
//! object, and the program hears of it by `EINTR`.
//!
//! Slices are taken by the main thread on its own stack, which has room for them; other threads wait as they did.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{clockid_t, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::arch::system_call;
use crate::next::Next;
use crate::own_waits::{
    own_clock_nanosleep, own_epoll_pwait, own_epoll_wait, own_nanosleep, own_poll, own_ppoll, own_pselect, own_select,
};
use crate::started::{self, Started};
use crate::waits::{Set, Signals, on_main_stack};
use crate::{errno, freezing};

type EpollPwait = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
type EpollWait = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
type Poll = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type Ppoll = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
type Select = unsafe extern "C-unwind" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
type Pselect = unsafe extern "C-unwind" fn(
    c_int,
    *mut fd_set,
    *mut fd_set,
    *mut fd_set,
    *const timespec,
    *const sigset_t,
) -> c_int;
type Nanosleep = unsafe extern "C-unwind" fn(*const timespec, *mut timespec) -> c_int;
type ClockNanosleep = unsafe extern "C-unwind" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;

// SAFETY: `int epoll_wait(int, struct epoll_event *, int, int)`.
static EPOLL_WAIT: Next<EpollWait> = unsafe { Next::new(c"epoll_wait") };
// SAFETY: `int epoll_pwait(int, struct epoll_event *, int, int, const sigset_t *)`.
static EPOLL_PWAIT: Next<EpollPwait> = unsafe { Next::new(c"epoll_pwait") };
// SAFETY: `int poll(struct pollfd *, nfds_t, int)`.
static POLL: Next<Poll> = unsafe { Next::new(c"poll") };
// SAFETY: `int ppoll(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *)`.
static PPOLL: Next<Ppoll> = unsafe { Next::new(c"ppoll") };
// SAFETY: `int select(int, fd_set *, fd_set *, fd_set *, struct timeval *)`.
static SELECT: Next<Select> = unsafe { Next::new(c"select") };
// SAFETY: `int pselect(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *)`.
static PSELECT: Next<Pselect> = unsafe { Next::new(c"pselect") };
// SAFETY: `int nanosleep(const struct timespec *, struct timespec *)`.
static NANOSLEEP: Next<Nanosleep> = unsafe { Next::new(c"nanosleep") };
// SAFETY: `int clock_nanosleep(clockid_t, int, const struct timespec *, struct timespec *)`.
static CLOCK_NANOSLEEP: Next<ClockNanosleep> = unsafe { Next::new(c"clock_nanosleep") };

/// Looks up the real functions.
pub(crate) fn resolve() {
    EPOLL_WAIT.resolve();
    EPOLL_PWAIT.resolve();
    POLL.resolve();
    PPOLL.resolve();
    SELECT.resolve();
    PSELECT.resolve();
    NANOSLEEP.resolve();
    CLOCK_NANOSLEEP.resolve();
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// How long the kernel is to wait.
#[derive(Clone, Copy)]
enum Step {
    /// Not at all.
    Not,
    For(Duration),
    Forever,
}

impl Step {
    /// For `ppoll` and `pselect6`; nothing for ever.
    fn time(self) -> Option<timespec> {
        let time = match self {
            Self::Not => Duration::ZERO,
            Self::For(time) => time,
            Self::Forever => return None,
        };
        let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
        Some(timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() })
    }

    /// For `epoll_pwait`: no less than asked for.
    fn millis(self) -> c_int {
        match self {
            Self::Not => 0,
            Self::For(time) => c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX),
            Self::Forever => -1,
        }
    }
}

/// Until when a call waits.
#[derive(Clone, Copy)]
struct Limit(Option<Instant>);

impl Limit {
    fn after(time: Option<Duration>) -> Self {
        // What is too far away is for ever.
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    fn left(self) -> Step {
        match self.0 {
            None => Step::Forever,
            Some(end) => Step::For(end.saturating_duration_since(Instant::now())),
        }
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// Whether this wait is to be used, for a freeze that is under way in this process. Costs a few loads if not.
fn wanted() -> Option<&'static Started> {
    started::get().filter(|started| freezing::next_slice(started).is_some() && on_main_stack())
}

/// Waits until `limit`, with a mask of signals or the thread's own, and takes slices meanwhile. `ask` asks the kernel:
/// how long it waits at most, and with which signals blocked; 0 if nothing has happened. What it gives, as the kernel
/// does.
fn split(started: &Started, limit: Limit, mask: Option<Set>, ask: &mut dyn FnMut(Step, Set) -> isize) -> isize {
    let before = errno::get();
    let signals = Signals::block();
    let mask = mask.unwrap_or(signals.before());
    let answer = loop {
        let Some(rest) = freezing::next_slice(started).filter(|_| !signals.is_any_pending(mask)) else {
            break ask(limit.left(), mask);
        };
        if rest > Duration::ZERO {
            let step = match limit.left() {
                Step::For(left) => left.min(rest),
                _ => rest,
            };
            let answer = ask(Step::For(step), mask);
            if answer != 0 || limit.is_over() {
                break answer;
            }
            continue;
        }
        let answer = ask(Step::Not, signals.blocked());
        if answer != 0 || limit.is_over() {
            break answer;
        }
        let (mut answer, mut taken, mut since) = (0, Duration::ZERO, Instant::now());
        let mut is_idle = || {
            taken = since.elapsed();
            since = Instant::now();
            answer = ask(Step::Not, signals.blocked());
            answer == 0 && !limit.is_over() && !signals.is_any_pending(mask)
        };
        // SAFETY: 1. system calls that do not wait.
        if !unsafe { freezing::slice(started, &mut is_idle) } {
            // Refused: it may be another time.
            break ask(limit.left(), mask);
        }
        if answer != 0 {
            // Somebody was kept waiting.
            palimpsest_fork::put_off_slices(taken);
            break answer;
        }
    };
    signals.restore();
    errno::set(before);
    answer
}

/// Ends a wait: `errno`, and the end of the thread if that was asked for, as the C library's function would.
///
/// # Safety
///
/// 1. The caller has nothing to drop: this may not return.
unsafe fn finish(answer: isize) -> c_int {
    if answer == -(libc::EINTR as isize) {
        // SAFETY: acts on a request to cancel this thread, by unwinding frames that have nothing to drop (1).
        unsafe { pthread_testcancel() };
    }
    errno::answer(answer) as c_int
}

fn duration(time: timespec) -> Option<Duration> {
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|&nanos| nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}

/// `epoll_pwait` of the kernel.
///
/// # Safety
///
/// 1. As for the C library's function.
unsafe fn ask_epoll(fd: c_int, events: *mut epoll_event, most: c_int, step: Step, mask: Set) -> isize {
    let arguments = [
        fd as usize,
        events.expose_provenance(),
        most as usize,
        step.millis() as usize,
        (&raw const mask).expose_provenance(),
        size_of::<Set>(),
    ];
    // SAFETY: 1. the caller's; the mask outlives the call.
    unsafe { system_call(libc::SYS_epoll_pwait, arguments) }
}

/// `ppoll` of the kernel.
///
/// # Safety
///
/// 1. As for the C library's function.
unsafe fn ask_poll(fds: *mut pollfd, count: nfds_t, step: Step, mask: Set) -> isize {
    let time = step.time();
    let arguments = [
        fds.expose_provenance(),
        count as usize,
        time.as_ref().map_or(0, |time| std::ptr::from_ref(time).expose_provenance()),
        (&raw const mask).expose_provenance(),
        size_of::<Set>(),
        0,
    ];
    // SAFETY: 1. the caller's; time, which the kernel may change, and mask outlive the call.
    unsafe { system_call(libc::SYS_ppoll, arguments) }
}

/// `epoll_wait(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(fd: c_int, events: *mut epoll_event, most: c_int, millis: c_int) -> c_int {
    if millis != 0
        && let Some(started) = wanted()
    {
        let limit = Limit::after(u64::try_from(millis).ok().map(Duration::from_millis));
        // SAFETY: 1. is this function's.
        let ask = &mut |step, mask| unsafe { ask_epoll(fd, events, most, step, mask) };
        let answer = split(started, limit, None, ask);
        // SAFETY: 1. nothing here needs dropping.
        return unsafe { finish(answer) };
    }
    match EPOLL_WAIT.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(fd, events, most, millis) },
        // SAFETY: contract 1.
        None => unsafe { own_epoll_wait(fd, events, most, millis) },
    }
}

/// `epoll_pwait(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    millis: c_int,
    mask: *const sigset_t,
) -> c_int {
    if millis != 0
        && let Some(started) = wanted()
    {
        let limit = Limit::after(u64::try_from(millis).ok().map(Duration::from_millis));
        // SAFETY: 1. is this function's.
        let ask = &mut |step, mask| unsafe { ask_epoll(fd, events, most, step, mask) };
        // SAFETY: null, or a set by contract 1.
        let answer = split(started, limit, unsafe { Set::read(mask) }, ask);
        // SAFETY: 1. nothing here needs dropping.
        return unsafe { finish(answer) };
    }
    match EPOLL_PWAIT.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(fd, events, most, millis, mask) },
        // SAFETY: contract 1.
        None => unsafe { own_epoll_pwait(fd, events, most, millis, mask) },
    }
}

/// `poll(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    if millis != 0
        && let Some(started) = wanted()
    {
        let limit = Limit::after(u64::try_from(millis).ok().map(Duration::from_millis));
        // SAFETY: 1. is this function's.
        let answer = split(started, limit, None, &mut |step, mask| unsafe { ask_poll(fds, count, step, mask) });
        // SAFETY: 1. nothing here needs dropping.
        return unsafe { finish(answer) };
    }
    match POLL.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(fds, count, millis) },
        // SAFETY: contract 1.
        None => unsafe { own_poll(fds, count, millis) },
    }
}

/// `ppoll(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied();
    let limit = told.map_or(Some(None), |time| duration(time).map(Some));
    if let Some(limit) = limit.filter(|limit| *limit != Some(Duration::ZERO))
        && let Some(started) = wanted()
    {
        // SAFETY: 1. is this function's.
        let ask = &mut |step, mask| unsafe { ask_poll(fds, count, step, mask) };
        // SAFETY: null, or a set by contract 1.
        let answer = split(started, Limit::after(limit), unsafe { Set::read(mask) }, ask);
        // SAFETY: 1. nothing here needs dropping.
        return unsafe { finish(answer) };
    }
    match PPOLL.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(fds, count, time, mask) },
        // SAFETY: contract 1.
        None => unsafe { own_ppoll(fds, count, time, mask) },
    }
}

/// Bytes of a set with so many descriptors.
const fn set_len(count: usize) -> usize {
    count.div_ceil(64) * 8
}

/// What `select` is asked for, so that it can be asked again: the kernel writes its answer in the same place.
struct Asked {
    sets: [*mut fd_set; 3],
    count: c_int,
    wanted: [fd_set; 3],
}

impl Asked {
    /// Nothing if there are more descriptors than a set has.
    ///
    /// # Safety
    ///
    /// 1. Each set is null, or has room for so many descriptors.
    unsafe fn read(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        let count_of = usize::try_from(count).ok().filter(|&count| count <= libc::FD_SETSIZE)?;
        // SAFETY: all zeros is a valid set.
        let mut wanted: [fd_set; 3] = unsafe { std::mem::zeroed() };
        for (wanted, set) in wanted.iter_mut().zip(sets).filter(|(_, set)| !set.is_null()) {
            // SAFETY: by (1) it has as many bytes, and the copy has room for all that a set can have.
            unsafe {
                std::ptr::from_mut(wanted).cast::<u8>().copy_from_nonoverlapping(set.cast(), set_len(count_of));
            }
        }
        Some(Self { sets, count, wanted })
    }

    /// # Safety
    ///
    /// 1. As for [`read`](Self::read); the sets are still there.
    unsafe fn ask(&self, step: Step, mask: Set) -> isize {
        for (wanted, set) in self.wanted.iter().zip(self.sets).filter(|(_, set)| !set.is_null()) {
            let len = set_len(self.count as usize);
            // SAFETY: by (1).
            unsafe { std::ptr::from_ref(wanted).cast::<u8>().copy_to_nonoverlapping(set.cast(), len) };
        }
        let time = step.time();
        // The last argument of `pselect6`: a mask and its size.
        let mask_of = (&raw const mask, size_of::<Set>());
        let [read, write, except] = self.sets.map(|set| set.expose_provenance());
        let time = time.as_ref().map_or(0, |time| std::ptr::from_ref(time).expose_provenance());
        let arguments = [self.count as usize, read, write, except, time, (&raw const mask_of).expose_provenance()];
        // SAFETY: 1. (1); time, which the kernel may change, and mask outlive the call.
        unsafe { system_call(libc::SYS_pselect6, arguments) }
    }
}

/// `select(2)`: tells how much of the time was left.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: null, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied();
    let duration_of = |time: timeval| {
        let micros = u64::try_from(time.tv_usec).ok()?;
        Some(Duration::from_secs(u64::try_from(time.tv_sec).ok()?) + Duration::from_micros(micros))
    };
    let limit = told.map_or(Some(None), |time| duration_of(time).map(Some));
    if let Some(limit) = limit.filter(|limit| *limit != Some(Duration::ZERO))
        && let Some(started) = wanted()
        // SAFETY: 1. contract 1.
        && let Some(asked) = unsafe { Asked::read(count, [read, write, except]) }
    {
        let limit = Limit::after(limit);
        // SAFETY: 1. contract 1.
        let answer = split(started, limit, None, &mut |step, mask| unsafe { asked.ask(step, mask) });
        // SAFETY: null, or a time by contract 1.
        if let (Some(time), Step::For(left)) = (unsafe { time.as_mut() }, limit.left()) {
            time.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
            time.tv_usec = left.subsec_micros().into();
        }
        // SAFETY: 1. nothing here needs dropping.
        return unsafe { finish(answer) };
    }
    match SELECT.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(count, read, write, except, time) },
        // SAFETY: contract 1.
        None => unsafe { own_select(count, read, write, except, time) },
    }
}

/// `pselect(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied();
    let limit = told.map_or(Some(None), |time| duration(time).map(Some));
    if let Some(limit) = limit.filter(|limit| *limit != Some(Duration::ZERO))
        && let Some(started) = wanted()
        // SAFETY: 1. contract 1.
        && let Some(asked) = unsafe { Asked::read(count, [read, write, except]) }
    {
        // SAFETY: 1. contract 1.
        let ask = &mut |step, mask| unsafe { asked.ask(step, mask) };
        // SAFETY: null, or a set by contract 1.
        let answer = split(started, Limit::after(limit), unsafe { Set::read(mask) }, ask);
        // SAFETY: 1. nothing here needs dropping.
        return unsafe { finish(answer) };
    }
    match PSELECT.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(count, read, write, except, time, mask) },
        // SAFETY: contract 1.
        None => unsafe { own_pselect(count, read, write, except, time, mask) },
    }
}

/// Sleeps for so long, and gives the kernel's answer; tells what was left in `rest`, unless that is null.
///
/// # Safety
///
/// 1. `rest` is null, or can be written.
unsafe fn sleep(started: &Started, time: Duration, rest: *mut timespec) -> isize {
    let limit = Limit::after(Some(time));
    // SAFETY: 1. no descriptors.
    let answer =
        split(started, limit, None, &mut |step, mask| unsafe { ask_poll(std::ptr::null_mut(), 0, step, mask) });
    if answer < 0
        // SAFETY: (1).
        && let (Some(rest), Some(left)) = (unsafe { rest.as_mut() }, limit.left().time())
    {
        *rest = left;
    }
    answer
}

/// `nanosleep(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn nanosleep(time: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: null, which the kernel refuses, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied().and_then(duration);
    if let Some(told) = told.filter(|told| *told > Duration::ZERO)
        && let Some(started) = wanted()
    {
        // SAFETY: 1. contract 1.
        let answer = unsafe { sleep(started, told, rest) };
        // SAFETY: 1. nothing here needs dropping.
        return unsafe { finish(answer) };
    }
    match NANOSLEEP.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(time, rest) },
        // SAFETY: contract 1.
        None => unsafe { own_nanosleep(time, rest) },
    }
}

/// `clock_nanosleep(2)`, which returns its error.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
) -> c_int {
    // SAFETY: null, which the kernel refuses, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied().and_then(duration);
    // A clock that may be set is the kernel's to wait for.
    let told = match (clock, flags) {
        (libc::CLOCK_MONOTONIC | libc::CLOCK_REALTIME, 0) => told,
        (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME) => told.map(|end| end.saturating_sub(now())),
        _ => None,
    };
    if let Some(told) = told.filter(|told| *told > Duration::ZERO)
        && let Some(started) = wanted()
    {
        let rest = if flags == 0 { rest } else { std::ptr::null_mut() };
        let before = errno::get();
        // SAFETY: 1. contract 1.
        let answer = unsafe { sleep(started, told, rest) };
        // SAFETY: 1. nothing here needs dropping.
        unsafe { finish(answer) };
        errno::set(before);
        return -(answer as c_int);
    }
    match CLOCK_NANOSLEEP.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(clock, flags, time, rest) },
        // SAFETY: contract 1.
        None => unsafe { own_clock_nanosleep(clock, flags, time, rest) },
    }
}

/// The monotonic clock.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
