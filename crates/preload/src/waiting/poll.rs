//! `poll`, and a look at descriptors and a wait for them as the other waits use it.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use libc::{nfds_t, pollfd, sigset_t, timespec};

use super::{Wait, long, split, waits, wanted};
use crate::arch::system_call;
use crate::errno;
use crate::limit::{AT_ONCE, Limit, Step, duration};
use crate::own_waits::{own_poll, own_ppoll};
use crate::real_waits::{POLL, PPOLL};
use crate::waits::Set;

/// Looks without waiting, by the kernel's own `ppoll`.
///
/// # Safety
///
/// 1. As for the C library's function.
pub(super) unsafe fn look(fds: *mut pollfd, count: nfds_t, mask: Option<Set>) -> isize {
    let (time, mask) = (AT_ONCE, mask.map(long));
    let time = &raw const time;
    let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (fds, time, mask) = (fds.expose_provenance(), time.expose_provenance(), mask.expose_provenance());
    // SAFETY: 1. (1); time, which is zero and stays so, and mask outlive the call.
    unsafe { system_call(libc::SYS_ppoll, [fds, count as usize, time, mask, size_of::<Set>(), 0]) }
}

/// Waits by `ppoll`.
///
/// # Safety
///
/// 1. As for the C library's function.
pub(super) unsafe fn wait(fds: *mut pollfd, count: nfds_t, step: Step, mask: Set) -> isize {
    let (time, mask) = (step.time(), long(mask));
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: (1).
    waits(|| unsafe { PPOLL.or(own_ppoll)(fds, count, time, &raw const mask) })
}

/// `poll` and `ppoll`.
///
/// # Invariants
///
/// 1. The descriptors are as for the C library's function.
struct Poll<F> {
    fds: *mut pollfd,
    count: nfds_t,
    call: F,
}

impl<F: Fn(Step) -> c_int> Wait for Poll<F> {
    fn look(&mut self, mask: Option<Set>) -> isize {
        // SAFETY: 1. (invariant 1).
        unsafe { look(self.fds, self.count, mask) }
    }

    fn wait(&mut self, step: Step, mask: Set) -> isize {
        // SAFETY: 1. (invariant 1).
        unsafe { wait(self.fds, self.count, step, mask) }
    }

    fn call(&mut self, left: Step) -> c_int {
        (self.call)(left)
    }
}

/// `poll(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    // SAFETY: contract 1.
    let call = |millis| unsafe { POLL.or(own_poll)(fds, count, millis) };
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    if let Some(started) = wanted(time, [POLL.address(), PPOLL.address()]) {
        let mut wait = Poll { fds, count, call: |left: Step| call(left.millis()) };
        return errno::answer(split(started, Limit::after(time), None, &mut wait)) as c_int;
    }
    call(millis)
}

/// `ppoll(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: contract 1.
    let call = |time| unsafe { PPOLL.or(own_ppoll)(fds, count, time, mask) };
    // SAFETY: null, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied();
    let limit = told.map_or(Some(None), |time| duration(time).map(Some));
    if let Some(limit) = limit
        && let Some(started) = wanted(limit, [PPOLL.address(), PPOLL.address()])
    {
        let call = |left: Step| call(left.time().as_ref().map_or(ptr::null(), ptr::from_ref));
        // SAFETY: null, or a set by contract 1.
        let mask = unsafe { Set::read(mask) };
        let answer = split(started, Limit::after(limit), mask, &mut Poll { fds, count, call });
        return errno::answer(answer) as c_int;
    }
    call(time)
}
