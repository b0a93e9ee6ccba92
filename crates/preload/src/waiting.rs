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

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use libc::{clockid_t, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use palimpsest_fork::guard;

use crate::arch::system_call;
use crate::cancelling::{end_if_cancelled, uncancelled};
use crate::limit::{Limit, Step, duration, now};
use crate::own_waits::{
    own_clock_nanosleep, own_epoll_pwait, own_epoll_wait, own_nanosleep, own_poll, own_ppoll, own_pselect, own_select,
};
use crate::real_waits::{CLOCK_NANOSLEEP, EPOLL_PWAIT, EPOLL_WAIT, NANOSLEEP, POLL, PPOLL, PSELECT, SELECT};
use crate::started::{self, Started};
use crate::waits::{Set, Signals, can_be_given, can_be_split, is_main_thread};
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
        confined::begin_work();
        let is_wanted = !confined::is_owners() && is_due(started);
        confined::end_work();
        is_wanted
    };
    started::get().filter(is_wanted)
}

/// Returns when the next slice is due, if `limit` leaves time for one.
fn next_slice(started: &Started, limit: Limit) -> Option<Duration> {
    let rest = freezing::next_slice()?;
    limit.is_beyond(rest.saturating_add(started.settings.slice)).then_some(rest)
}

/// Asks the kernel: for how long at most, and with which signals blocked instead of the thread's own. Answers 0 if
/// nothing has happened. A call that does not wait bypasses the C library.
type Ask<'a> = &'a mut dyn FnMut(Step, Option<Set>) -> isize;

/// Waits until `limit`, with a mask of signals or the thread's own, and takes slices meanwhile. Answers like the
/// kernel.
fn split(started: &Started, limit: Limit, mask: Option<Set>, ask: Ask<'_>) -> isize {
    // SAFETY: 1. from here to the program, no frame has anything to drop.
    unsafe { end_if_cancelled() };
    confined::begin_work();
    let answer = if confined::is_seen() { ask(limit.left(), mask) } else { in_parts(started, limit, mask, ask) };
    confined::end_work();
    answer
}

/// Does the same while no filter forbids it.
fn in_parts(started: &Started, limit: Limit, mask: Option<Set>, ask: Ask<'_>) -> isize {
    let answer = ask(Step::Not, mask);
    if answer != 0 || limit.is_over() {
        return answer;
    }
    if guard::is_borrowed() || next_slice(started, limit).is_none() {
        return ask(limit.left(), mask);
    }
    let before = errno::get();
    let signals = Signals::block();
    let answer = idle(started, limit, mask.unwrap_or(signals.before()), &signals, ask);
    signals.restore();
    let answer = answer.unwrap_or_else(|| ask(limit.left(), mask));
    uncancelled(|| freezing::tell_in_wait(started));
    errno::set(before);
    answer
}

/// Does the same once all signals are blocked. `None` if there is a filter by now: then nothing has happened yet.
fn idle(started: &Started, limit: Limit, mask: Set, signals: &Signals, ask: Ask<'_>) -> Option<isize> {
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
            return Some(ask(limit.left(), Some(mask)));
        };
        if rest > Duration::ZERO {
            let answer = ask(Step::For(rest), Some(mask));
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
            answer = ask(Step::Not, Some(Set::ALL));
            answer == 0 && !limit.is_over() && !signals.is_any_pending(mask)
        };
        // SAFETY: 1. system calls that do not wait.
        let is_taken = uncancelled(|| unsafe { freezing::slice(started, &mut is_idle) });
        if taken.is_none() {
            // Other threads were held, or it was no freeze, or only planned.
            taken = Some(since.elapsed());
            answer = ask(Step::Not, Some(Set::ALL));
        }
        if answer != 0 || limit.is_over() {
            // Somebody was kept waiting.
            palimpsest_fork::put_off_slices(taken.unwrap_or_default());
            return Some(answer);
        }
        if !is_taken && !confined::is_seen() {
            // Refused: another time may be better.
            signals.drop_ignored(mask);
            return Some(ask(limit.left(), Some(mask)));
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

/// Waits in the kernel by a C library function. Meanwhile a filter may be installed: what comes next asks for it anew.
fn waits(wait: impl FnOnce() -> c_int) -> isize {
    confined::end_work();
    let answer = raw(wait());
    confined::begin_work();
    answer
}

/// Turns an answer of a C library function into the kernel's.
fn raw(answer: c_int) -> isize {
    if answer < 0 { -(errno::get() as isize) } else { answer as isize }
}

/// Calls `epoll_pwait`; the kernel's own if it does not wait. Once there is a filter, makes the program's call instead,
/// `call`, which takes a time in milliseconds.
///
/// With a mask it waits by `ppoll` for the descriptor. A signal that the program ignores is kept by the kernel if it
/// comes while it is blocked; the mask then lets it in, where it does nothing, but `epoll_pwait` ends with `EINTR`
/// (`do_epoll_pwait`, fs/eventpoll.c), which the program would not have seen. `ppoll` goes on unless a handler has run
/// (`ERESTARTNOHAND`, fs/select.c).
///
/// # Safety
///
/// 1. As for the C library's function.
unsafe fn ask_epoll(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    (step, mask): (Step, Option<Set>),
    call: &dyn Fn(c_int) -> c_int,
) -> isize {
    let look = |mask| match confined::is_seen() {
        true => raw(call(0)),
        // SAFETY: (1); all of them.
        false => unsafe { look_epoll(fd, events, most, mask) },
    };
    let (time, mask) = match (step, mask) {
        (Step::Not, _) => return look(mask),
        (_, None) => return waits(|| call(step.millis())),
        (Step::For(time), Some(mask)) => (Some(time), mask),
        (Step::Forever, Some(mask)) => (None, mask),
    };
    let limit = Limit::after(time);
    loop {
        let mut one = pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: 1. one descriptor, of this function.
        let answer = unsafe { ask_poll(&raw mut one, 1, limit.left(), Some(mask)) };
        if answer <= 0 {
            return answer;
        }
        let answer = look(Some(Set::ALL));
        // Another thread may have taken the event.
        if answer != 0 || limit.is_over() {
            return answer;
        }
    }
}

/// Looks without waiting what has happened to the descriptors of `fd`, by the kernel's own `epoll_pwait`.
///
/// # Safety
///
/// 1. As for the C library's function.
unsafe fn look_epoll(fd: c_int, events: *mut epoll_event, most: c_int, mask: Option<Set>) -> isize {
    let mask = mask.map(long);
    let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (place, mask) = (events.expose_provenance(), mask.expose_provenance());
    // SAFETY: 1. (1); the mask outlives the call.
    unsafe { system_call(libc::SYS_epoll_pwait, [fd as usize, place, most as usize, 0, mask, size_of::<Set>()]) }
}

/// Calls `ppoll`; the kernel's own if it does not wait.
///
/// # Safety
///
/// 1. As for the C library's function.
unsafe fn ask_poll(fds: *mut pollfd, count: nfds_t, step: Step, mask: Option<Set>) -> isize {
    let (time, mask) = (step.time(), mask.map(long));
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
    if let Step::Not = step {
        let (fds, time, mask) = (fds.expose_provenance(), time.expose_provenance(), mask.expose_provenance());
        // SAFETY: 1. the caller's; time, which is zero and stays so, and mask outlive the call.
        return unsafe { system_call(libc::SYS_ppoll, [fds, count as usize, time, mask, size_of::<Set>(), 0]) };
    }
    // SAFETY: (1).
    waits(|| unsafe { PPOLL.or(own_ppoll)(fds, count, time, mask) })
}

/// `epoll_wait(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(fd: c_int, events: *mut epoll_event, most: c_int, millis: c_int) -> c_int {
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    if let Some(started) = wanted(time, [EPOLL_WAIT.address(), PPOLL.address()]) {
        let limit = Limit::after(time);
        // SAFETY: contract 1.
        let call = |millis| unsafe { EPOLL_WAIT.or(own_epoll_wait)(fd, events, most, millis) };
        // SAFETY: 1. is this function's.
        let ask = &mut |step, mask| unsafe { ask_epoll(fd, events, most, (step, mask), &call) };
        let answer = split(started, limit, None, ask);
        return errno::answer(answer) as c_int;
    }
    // SAFETY: contract 1.
    unsafe { EPOLL_WAIT.or(own_epoll_wait)(fd, events, most, millis) }
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
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    if let Some(started) = wanted(time, [EPOLL_PWAIT.address(), PPOLL.address()]) {
        let limit = Limit::after(time);
        // SAFETY: contract 1.
        let call = |millis| unsafe { EPOLL_PWAIT.or(own_epoll_pwait)(fd, events, most, millis, mask) };
        // SAFETY: 1. is this function's.
        let ask = &mut |step, mask| unsafe { ask_epoll(fd, events, most, (step, mask), &call) };
        // SAFETY: null, or a set by contract 1.
        let answer = split(started, limit, unsafe { Set::read(mask) }, ask);
        return errno::answer(answer) as c_int;
    }
    // SAFETY: contract 1.
    unsafe { EPOLL_PWAIT.or(own_epoll_pwait)(fd, events, most, millis, mask) }
}

/// `poll(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    if let Some(started) = wanted(time, [POLL.address(), PPOLL.address()]) {
        let limit = Limit::after(time);
        // SAFETY: 1. is this function's.
        let answer = split(started, limit, None, &mut |step, mask| unsafe { ask_poll(fds, count, step, mask) });
        return errno::answer(answer) as c_int;
    }
    // SAFETY: contract 1.
    unsafe { POLL.or(own_poll)(fds, count, millis) }
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
    if let Some(limit) = limit
        && let Some(started) = wanted(limit, [PPOLL.address(), PPOLL.address()])
    {
        // SAFETY: 1. is this function's.
        let ask = &mut |step, mask| unsafe { ask_poll(fds, count, step, mask) };
        // SAFETY: null, or a set by contract 1.
        let answer = split(started, Limit::after(limit), unsafe { Set::read(mask) }, ask);
        return errno::answer(answer) as c_int;
    }
    // SAFETY: contract 1.
    unsafe { PPOLL.or(own_ppoll)(fds, count, time, mask) }
}

/// Returns the bytes of a set with this many descriptors.
const fn set_len(count: usize) -> usize {
    count.div_ceil(64) * 8
}

/// What `select` is asked for, so that it can be asked again: the kernel writes its answer in the same place, which is
/// a copy until there is one. Only the kernel touches the program's sets: what cannot be read or written is an error.
struct Asked {
    sets: [*mut fd_set; 3],
    count: c_int,
    wanted: [fd_set; 3],
    answer: [fd_set; 3],
}

impl Asked {
    /// Reads the sets; `None` if there are more descriptors than a set has, or if they cannot be read.
    ///
    /// # Safety
    ///
    /// 1. Each set is null, or has room for this many descriptors.
    unsafe fn read(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        usize::try_from(count).ok().filter(|&count| count <= libc::FD_SETSIZE)?;
        // SAFETY: all zeros is a valid set.
        let empty: [fd_set; 3] = unsafe { std::mem::zeroed() };
        let mut asked = Self { sets, count, wanted: empty, answer: empty };
        let own = asked.wanted.each_mut().map(ptr::from_mut);
        // SAFETY: 1. the copies are this function's own.
        let is_read = unsafe { asked.copy(libc::SYS_process_vm_readv, own) };
        (is_read && can_be_given()).then_some(asked)
    }

    /// Copies between the program's sets and `own` through the kernel. Returns false if it refuses.
    ///
    /// # Safety
    ///
    /// 1. What the call writes may be written, if it exists.
    unsafe fn copy(&self, call: libc::c_long, own: [*mut fd_set; 3]) -> bool {
        let len = set_len(self.count as usize);
        let part = |set: *mut fd_set, other: *mut fd_set| libc::iovec {
            iov_base: set.cast::<c_void>(),
            iov_len: if other.is_null() { 0 } else { len },
        };
        let pairs = [0, 1, 2].map(|number| (own[number], self.sets[number]));
        let [own, program] = [pairs.map(|(own, set)| part(own, set)), pairs.map(|(_, set)| part(set, set))];
        let all: usize = own.iter().map(|part| part.iov_len).sum();
        let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
        let arguments = [process, own.as_ptr().expose_provenance(), 3, program.as_ptr().expose_provenance(), 3, 0];
        // SAFETY: (1); the lists outlive the call.
        all == 0 || usize::try_from(unsafe { system_call(call, arguments) }) == Ok(all)
    }

    /// Asks about the copies.
    fn ask(&mut self, step: Step, mask: Option<Set>) -> isize {
        self.answer = self.wanted;
        let mut places = self.answer.each_mut().map(ptr::from_mut);
        for (place, _) in places.iter_mut().zip(self.sets).filter(|(_, set)| set.is_null()) {
            *place = ptr::null_mut();
        }
        let [read, write, except] = places;
        let (time, mask) = (step.time(), mask.map(long));
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
        if let Step::Not = step {
            // The last argument of `pselect6`: a mask and its size.
            let mask = (mask.expose_provenance(), size_of::<Set>());
            let [read, write, except] = places.map(|set| set.expose_provenance());
            let (time, mask) = (time.expose_provenance(), (&raw const mask).expose_provenance());
            let arguments = [self.count as usize, read, write, except, time, mask];
            // SAFETY: the copies are long enough for all descriptors; all outlives the call.
            return unsafe { system_call(libc::SYS_pselect6, arguments) };
        }
        // SAFETY: as above.
        waits(|| unsafe { PSELECT.or(own_pselect)(self.count, read, write, except, time, mask) })
    }

    /// Hands the result to the program, unless it is an error.
    ///
    /// # Safety
    ///
    /// 1. As for [`read`](Self::read); the sets still exist.
    unsafe fn give(&mut self, answer: isize) -> isize {
        let own = self.answer.each_mut().map(ptr::from_mut);
        // SAFETY: 1. (1).
        if answer >= 0 && !unsafe { self.copy(libc::SYS_process_vm_writev, own) } {
            return -(libc::EFAULT as isize);
        }
        answer
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
    if let Some(limit) = limit
        && let Some(started) = wanted(limit, [SELECT.address(), PSELECT.address()])
        // SAFETY: 1. contract 1.
        && let Some(mut asked) = unsafe { Asked::read(count, [read, write, except]) }
    {
        let limit = Limit::after(limit);
        let answer = split(started, limit, None, &mut |step, mask| asked.ask(step, mask));
        // SAFETY: 1. contract 1.
        let answer = unsafe { asked.give(answer) };
        // SAFETY: null, or a time by contract 1.
        if let (Some(time), Step::For(left)) = (unsafe { time.as_mut() }, limit.left()) {
            time.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
            time.tv_usec = left.subsec_micros().into();
        }
        return errno::answer(answer) as c_int;
    }
    // SAFETY: contract 1.
    unsafe { SELECT.or(own_select)(count, read, write, except, time) }
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
    if let Some(limit) = limit
        && let Some(started) = wanted(limit, [PSELECT.address(), PSELECT.address()])
        // SAFETY: 1. contract 1.
        && let Some(mut asked) = unsafe { Asked::read(count, [read, write, except]) }
    {
        // SAFETY: null, or a set by contract 1.
        let mask = unsafe { Set::read(mask) };
        let answer = split(started, Limit::after(limit), mask, &mut |step, mask| asked.ask(step, mask));
        // SAFETY: 1. contract 1.
        let answer = unsafe { asked.give(answer) };
        return errno::answer(answer) as c_int;
    }
    // SAFETY: contract 1.
    unsafe { PSELECT.or(own_pselect)(count, read, write, except, time, mask) }
}

/// Sleeps this long, and answers like the kernel; stores what was left in `rest`, unless that is null.
///
/// With a mask it waits by `ppoll`, as precisely as the kernel's sleep: that takes no mask, and a signal between it and
/// a change of the thread's own would end nothing.
///
/// # Safety
///
/// 1. `rest` is null, or can be written.
unsafe fn sleep(started: &Started, time: Duration, rest: *mut timespec) -> isize {
    let limit = Limit::after(Some(time));
    let ask = &mut |step, mask| {
        // SAFETY: 1. no descriptors.
        let poll = |step| unsafe { ask_poll(ptr::null_mut(), 0, step, mask) };
        match (step, mask) {
            (Step::For(time), Some(_)) if !limit.is_beyond(time) => limit.exactly(poll),
            (Step::For(_), None) => step.time().map_or(0, |time| {
                // SAFETY: 1. the time outlives the call.
                waits(|| unsafe { NANOSLEEP.or(own_nanosleep)(&raw const time, ptr::null_mut()) })
            }),
            _ => poll(step),
        }
    };
    let answer = split(started, limit, None, ask);
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
    if let Some(told) = told
        && let Some(started) = wanted(Some(told), [NANOSLEEP.address(), PPOLL.address()])
    {
        // SAFETY: 1. contract 1.
        let answer = unsafe { sleep(started, told, rest) };
        return errno::answer(answer) as c_int;
    }
    // SAFETY: contract 1.
    unsafe { NANOSLEEP.or(own_nanosleep)(time, rest) }
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
    // Waiting by a clock that may be set is left to the kernel.
    let told = match (clock, flags) {
        (libc::CLOCK_MONOTONIC | libc::CLOCK_REALTIME, 0) => told,
        (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME) => told.map(|end| end.saturating_sub(now())),
        _ => None,
    };
    if let Some(told) = told
        && let Some(started) = wanted(Some(told), [CLOCK_NANOSLEEP.address(), PPOLL.address()])
    {
        let rest = if flags == 0 { rest } else { ptr::null_mut() };
        let before = errno::get();
        // SAFETY: 1. contract 1.
        let answer = unsafe { sleep(started, told, rest) };
        errno::set(before);
        return -(answer as c_int);
    }
    // SAFETY: contract 1.
    unsafe { CLOCK_NANOSLEEP.or(own_clock_nanosleep)(clock, flags, time, rest) }
}
