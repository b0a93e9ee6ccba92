//! The kernel's waits: for the code in this object itself (see `build.rs`), and before the start.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

use libc::{clockid_t, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::arch::system_call;
use crate::kernel::kernel;
use crate::waits::Set;

fn place<T>(pointer: *const T) -> usize {
    pointer.cast::<c_void>().expose_provenance()
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_epoll_wait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    millis: c_int,
) -> c_int {
    // SAFETY: 1. (1).
    unsafe { own_epoll_pwait(fd, events, most, millis, ptr::null()) }
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    millis: c_int,
    mask: *const sigset_t,
) -> c_int {
    let arguments = [fd as usize, place(events), most as usize, millis as usize, place(mask), size_of::<Set>()];
    // SAFETY: 1. (1).
    unsafe { kernel(libc::SYS_epoll_pwait, arguments) as c_int }
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_poll(fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    let time = u64::try_from(millis).ok().map(Duration::from_millis).map(|time| timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(0, |time| place(time));
    // SAFETY: 1. (1); the time outlives the call.
    unsafe { kernel(libc::SYS_ppoll, [place(fds), count as usize, time, 0, size_of::<Set>(), 0]) as c_int }
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time (1). The kernel changes it, and the C library does not.
    let time = unsafe { time.as_ref() }.copied();
    let time = time.as_ref().map_or(0, |time| place(time));
    // SAFETY: 1. (1); the time outlives the call.
    unsafe { kernel(libc::SYS_ppoll, [place(fds), count as usize, time, place(mask), size_of::<Set>(), 0]) as c_int }
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: null, or a time (1).
    let told = unsafe { time.as_ref() }.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 });
    // SAFETY: 1. (1).
    unsafe { own_pselect(count, read, write, except, told.as_ref().map_or(ptr::null(), |time| time), ptr::null()) }
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time (1). The kernel changes it, and the C library does not.
    let time = unsafe { time.as_ref() }.copied();
    let time = time.as_ref().map_or(0, |time| place(time));
    let mask = (mask, size_of::<Set>());
    let arguments = [count as usize, place(read), place(write), place(except), time, place(&raw const mask)];
    // SAFETY: 1. (1); time and mask outlive the call.
    unsafe { kernel(libc::SYS_pselect6, arguments) as c_int }
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_nanosleep(time: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: 1. (1).
    unsafe { kernel(libc::SYS_nanosleep, [place(time), place(rest), 0, 0, 0, 0]) as c_int }
}

/// # Safety
///
/// 1. As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn own_clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
) -> c_int {
    let arguments = [clock as usize, flags as usize, place(time), place(rest), 0, 0];
    // SAFETY: 1. (1).
    -unsafe { system_call(libc::SYS_clock_nanosleep, arguments) } as c_int
}
