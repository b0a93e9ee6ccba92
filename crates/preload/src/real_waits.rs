//! The waits that this object stands in front of: the C library's, or another object's.

use std::ffi::c_int;

use libc::{clockid_t, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::next::Next;

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
pub(crate) static EPOLL_WAIT: Next<EpollWait> = unsafe { Next::new(c"epoll_wait") };
// SAFETY: `int epoll_pwait(int, struct epoll_event *, int, int, const sigset_t *)`.
pub(crate) static EPOLL_PWAIT: Next<EpollPwait> = unsafe { Next::new(c"epoll_pwait") };
// SAFETY: `int poll(struct pollfd *, nfds_t, int)`.
pub(crate) static POLL: Next<Poll> = unsafe { Next::new(c"poll") };
// SAFETY: `int ppoll(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *)`.
pub(crate) static PPOLL: Next<Ppoll> = unsafe { Next::new(c"ppoll") };
// SAFETY: `int select(int, fd_set *, fd_set *, fd_set *, struct timeval *)`.
pub(crate) static SELECT: Next<Select> = unsafe { Next::new(c"select") };
// SAFETY: `int pselect(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *)`.
pub(crate) static PSELECT: Next<Pselect> = unsafe { Next::new(c"pselect") };
// SAFETY: `int nanosleep(const struct timespec *, struct timespec *)`.
pub(crate) static NANOSLEEP: Next<Nanosleep> = unsafe { Next::new(c"nanosleep") };
// SAFETY: `int clock_nanosleep(clockid_t, int, const struct timespec *, struct timespec *)`.
pub(crate) static CLOCK_NANOSLEEP: Next<ClockNanosleep> = unsafe { Next::new(c"clock_nanosleep") };

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
