//! `prctl` as the program calls it: a program that confines itself by a seccomp filter is served with memory calls only
//! from then on.

use std::ffi::{c_int, c_long, c_ulong};

use palimpsest_fork::guard;

use crate::cancelling::uncancelled;
use crate::next::Next;
use crate::{confined, freezing, kernel, started};

type Prctl = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;

// SAFETY: `int prctl(int, ...)` with at most four more numbers, for which a variadic function is called like one with
// five parameters on the supported ISAs.
static PRCTL: Next<Prctl> = unsafe { Next::new(c"prctl") };

/// Notes that a filter is about to be installed.
fn note() {
    if let Some(started) = started::get() {
        freezing::before_filter(started);
    }
    // A filter before this one might end the program for these questions.
    let was_known = confined::is_owners();
    if !was_known && guard::is_borrowed() {
        return confined::note_borrower();
    }
    confined::note();
    if !was_known {
        // What a fork would ask for later.
        palimpsest_sys::in_children::before_fork();
    }
    // The filter may be for all threads. From here on no freeze begins, and no wait sends another deputy.
    if !was_known {
        confined::await_work();
        palimpsest_fork::await_own_stack();
        palimpsest_fork::dismiss_deputy();
    }
    // Not earlier: a first freeze that is at work counts once it has frozen something.
    guard::confined();
}

/// Looks up the real function.
pub(crate) fn resolve() {
    PRCTL.resolve();
}

/// `prctl(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_SECCOMP && is_setting(a as usize, b as usize) {
        uncancelled(note);
    }
    // SAFETY: contract 1.
    unsafe { PRCTL.or(kernel::prctl)(option, a, b, c, d) }
}

/// Whether `PR_SET_SECCOMP` with these arguments sets anything: a caller that asks what the kernel can do names no
/// filter.
fn is_setting(mode: usize, filter: usize) -> bool {
    mode != libc::SECCOMP_MODE_FILTER as usize || filter != 0
}

/// Notes what a call through `syscall(3)` means.
pub(crate) fn seen(number: c_long, [first, second, third]: [usize; 3]) {
    let sets = match number {
        libc::SYS_seccomp => match first as c_ulong {
            operation if operation == c_ulong::from(libc::SECCOMP_SET_MODE_FILTER) => third != 0,
            operation => operation == c_ulong::from(libc::SECCOMP_SET_MODE_STRICT),
        },
        libc::SYS_prctl => first == libc::PR_SET_SECCOMP as usize && is_setting(second, third),
        _ => false,
    };
    if sets {
        uncancelled(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test for everything that raises the flag, since the process has one flag.
    #[test]
    fn filters_are_seen_and_questions_are_none() {
        let (filter, prctl) = (libc::SECCOMP_SET_MODE_FILTER as usize, libc::PR_SET_SECCOMP as usize);
        seen(libc::SYS_seccomp, [filter, 0, 0]);
        seen(libc::SYS_prctl, [prctl, libc::SECCOMP_MODE_FILTER as usize, 0]);
        seen(libc::SYS_prctl, [libc::PR_SET_NAME as usize, 1, 1]);
        assert!(!confined::is_seen());
        seen(libc::SYS_seccomp, [filter, 0, 1]);
        assert!(confined::is_seen());
        confined::forget();
        seen(libc::SYS_prctl, [prctl, libc::SECCOMP_MODE_FILTER as usize, 1]);
        assert!(confined::is_seen());
        confined::forget();
    }
}
