//! `nanosleep`.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use libc::{clockid_t, timespec};

use super::{Wait, poll, split, wanted};
use crate::limit::{Limit, Step, duration, now};
use crate::own_waits::{own_clock_nanosleep, own_nanosleep};
use crate::real_waits::{CLOCK_NANOSLEEP, NANOSLEEP, PPOLL};
use crate::started::Started;
use crate::waits::Set;
use crate::{confined, errno};

/// A sleep. With a mask it waits by `ppoll`, as precisely as the kernel's sleep: that takes no mask, and a signal
/// between it and a change of the thread's own would end nothing.
struct Sleep<F> {
    limit: Limit,
    /// Sleeps so long, and answers like `nanosleep`.
    call: F,
}

impl<F: Fn(&timespec) -> c_int> Wait for Sleep<F> {
    fn look(&mut self, mask: Option<Set>) -> isize {
        // SAFETY: 1. no descriptors.
        unsafe { poll::look(ptr::null_mut(), 0, mask) }
    }

    fn wait(&mut self, step: Step, mask: Set) -> isize {
        // SAFETY: 1. no descriptors.
        let poll = |step| unsafe { poll::wait(ptr::null_mut(), 0, step, mask) };
        match step {
            Step::For(time) if !self.limit.is_beyond(time) => self.limit.exactly(poll, confined::is_seen),
            step => poll(step),
        }
    }

    fn call(&mut self, left: Step) -> c_int {
        const EVER: timespec = timespec { tv_sec: libc::time_t::MAX, tv_nsec: 0 };
        (self.call)(&left.time().unwrap_or(EVER))
    }
}

/// Sleeps this long, and answers like the kernel; stores what was left in `rest`, unless that is null.
///
/// # Safety
///
/// 1. `rest` is null, or can be written.
unsafe fn sleep(started: &Started, time: Duration, rest: *mut timespec, call: impl Fn(&timespec) -> c_int) -> isize {
    let limit = Limit::after(Some(time));
    let answer = split(started, limit, None, &mut Sleep { limit, call });
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
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn nanosleep(time: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: null, which the kernel refuses, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied().and_then(duration);
    if let Some(told) = told
        && let Some(started) = wanted(Some(told), [NANOSLEEP.address(), PPOLL.address()])
    {
        // SAFETY: 1. the time outlives the call.
        let call = |left: &timespec| unsafe { NANOSLEEP.or(own_nanosleep)(left, ptr::null_mut()) };
        // SAFETY: 1. contract 1.
        let answer = unsafe { sleep(started, told, rest, call) };
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
#[inline(never)]
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
        let call = |left: &timespec| {
            let time = if flags == 0 { ptr::from_ref(left) } else { time };
            // SAFETY: 1. the time outlives the call.
            match unsafe { CLOCK_NANOSLEEP.or(own_clock_nanosleep)(clock, flags, time, ptr::null_mut()) } {
                0 => 0,
                error => {
                    errno::set(error);
                    -1
                }
            }
        };
        // SAFETY: 1. contract 1.
        let answer = unsafe { sleep(started, told, rest, call) };
        errno::set(before);
        return -(answer as c_int);
    }
    // SAFETY: contract 1.
    unsafe { CLOCK_NANOSLEEP.or(own_clock_nanosleep)(clock, flags, time, rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_for_ever_does_so_by_his_own_call() {
        for (time, seconds) in [(Duration::MAX, libc::time_t::MAX), (Duration::ZERO, 0)] {
            let call = |left: &timespec| if left.tv_sec == seconds { 7 } else { 0 };
            let limit = Limit::after(Some(time));
            assert_eq!(Sleep { limit, call }.call(limit.left()), 7);
        }
    }
}
