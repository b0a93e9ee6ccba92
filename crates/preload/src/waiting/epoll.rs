//! `epoll_wait`.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use libc::{epoll_event, pollfd, sigset_t};

use super::{Wait, long, poll, split, wanted};
use crate::arch::system_call;
use crate::limit::{Limit, Step};
use crate::own_waits::{own_epoll_pwait, own_epoll_wait};
use crate::real_waits::{EPOLL_PWAIT, EPOLL_WAIT, PPOLL};
use crate::waits::Set;
use crate::{confined, errno};

/// `epoll_wait` and `epoll_pwait`.
///
/// # Invariants
///
/// 1. Everything is as for the C library's function.
struct Epoll<F> {
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    /// Takes a time in milliseconds.
    call: F,
}

impl<F: Fn(c_int) -> c_int> Wait for Epoll<F> {
    fn look(&mut self, mask: Option<Set>) -> isize {
        let mask = mask.map(long);
        let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
        let (place, mask) = (self.events.expose_provenance(), mask.expose_provenance());
        let arguments = [self.fd as usize, place, self.most as usize, 0, mask, size_of::<Set>()];
        // SAFETY: 1. invariant 1; the mask outlives the call.
        unsafe { system_call(libc::SYS_epoll_pwait, arguments) }
    }

    /// Waits by `ppoll` for the descriptor. A signal that the program ignores is kept by the kernel if it comes while
    /// it is blocked; the mask then lets it in, where it does nothing, but `epoll_pwait` ends with `EINTR`
    /// (`do_epoll_pwait`, fs/eventpoll.c), which the program would not have seen. `ppoll` goes on unless a handler has
    /// run (`ERESTARTNOHAND`, fs/select.c).
    fn wait(&mut self, step: Step, mask: Set) -> isize {
        let limit = match step {
            Step::For(time) => Limit::after(Some(time)),
            Step::Forever => Limit::after(None),
        };
        loop {
            let mut one = pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: 1. one descriptor, of this function.
            let answer = unsafe { poll::wait(&raw mut one, 1, limit.left(), mask) };
            if answer <= 0 {
                return answer;
            }
            if confined::is_seen() {
                // It is left to the program's own call.
                return 0;
            }
            let answer = self.look(Some(Set::ALL));
            // Another thread may have taken the event.
            if answer != 0 || limit.is_over() {
                return answer;
            }
        }
    }

    fn call(&mut self, left: Step) -> c_int {
        (self.call)(left.millis())
    }
}

/// `epoll_wait(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(fd: c_int, events: *mut epoll_event, most: c_int, millis: c_int) -> c_int {
    // SAFETY: contract 1.
    let call = |millis| unsafe { EPOLL_WAIT.or(own_epoll_wait)(fd, events, most, millis) };
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    if let Some(started) = wanted(time, [EPOLL_WAIT.address(), PPOLL.address()]) {
        let answer = split(started, Limit::after(time), None, &mut Epoll { fd, events, most, call });
        return errno::answer(answer) as c_int;
    }
    call(millis)
}

/// `epoll_pwait(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    millis: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: contract 1.
    let call = |millis| unsafe { EPOLL_PWAIT.or(own_epoll_pwait)(fd, events, most, millis, mask) };
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    if let Some(started) = wanted(time, [EPOLL_PWAIT.address(), PPOLL.address()]) {
        // SAFETY: null, or a set by contract 1.
        let mask = unsafe { Set::read(mask) };
        let answer = split(started, Limit::after(time), mask, &mut Epoll { fd, events, most, call });
        return errno::answer(answer) as c_int;
    }
    call(millis)
}
