//! `prctl` as the program calls it: who confines itself by a seccomp filter is served by memory calls alone from then
//! on.

use std::ffi::{c_int, c_long, c_ulong};

use palimpsest_fork::guard;

use crate::arch::system_call;
use crate::errno;
use crate::next::Next;

type Prctl = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;

// SAFETY: `int prctl(int, ...)` with at most four more numbers, for which a variadic function is called like one with
// five parameters on the supported ISAs.
static PRCTL: Next<Prctl> = unsafe { Next::new(c"prctl") };

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
    if option == libc::PR_SET_SECCOMP {
        guard::confined();
    }
    match PRCTL.get() {
        // SAFETY: contract 1.
        Some(real) => unsafe { real(option, a, b, c, d) },
        None => {
            let arguments = [option as usize, a as usize, b as usize, c as usize, d as usize, 0];
            // SAFETY: contract 1.
            errno::answer(unsafe { system_call(libc::SYS_prctl, arguments) }) as c_int
        }
    }
}

/// What a call through `syscall(3)` tells.
pub(crate) fn seen(number: c_long, first: usize) {
    /// `SECCOMP_SET_MODE_STRICT` and `SECCOMP_SET_MODE_FILTER` (`include/uapi/linux/seccomp.h`).
    const SETTING: std::ops::RangeInclusive<usize> = 0..=1;
    let is_setting = match number {
        libc::SYS_seccomp => SETTING.contains(&first),
        libc::SYS_prctl => first == libc::PR_SET_SECCOMP as usize,
        _ => false,
    };
    if is_setting {
        guard::confined();
    }
}
