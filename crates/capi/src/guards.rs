//! Memory calls of a process that has frozen.

use std::ffi::{c_int, c_void};

use palimpsest_fork::guard::{self, Outcome, Remap};

use crate::result::set_errno;

/// `madvise` that is right for frozen memory, too: discarded memory is zeros afterwards, not the bytes of the freeze.
/// Returns 0, or -1 with `errno`.
///
/// # Safety
///
/// 1. As for `madvise`: discarding takes contents away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: 1. is contract 1.
    match unsafe { guard::madvise(address.addr(), len, advice) } {
        Outcome::Done(Ok(())) => 0,
        Outcome::Done(Err(errno)) => {
            set_errno(errno.raw_os_error());
            -1
        }
        // SAFETY: contract 1.
        Outcome::NotOurs => unsafe { libc::madvise(address, len, advice) },
    }
}

/// `mremap` that is right for frozen memory, too. `new_address` counts with `MREMAP_FIXED` only. Returns the new
/// address, or `MAP_FAILED` with `errno`.
///
/// # Safety
///
/// 1. As for `mremap`: memory is moved and cut, and with `MREMAP_FIXED` replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_mremap(
    address: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let remap = Remap { address: address.addr(), len, new_len, flags, new_address: new_address.addr() };
    // SAFETY: 1. is contract 1.
    match unsafe { guard::mremap(remap) } {
        Outcome::Done(Ok(moved)) => std::ptr::with_exposed_provenance_mut(moved),
        Outcome::Done(Err(errno)) => {
            set_errno(errno.raw_os_error());
            libc::MAP_FAILED
        }
        // SAFETY: contract 1.
        Outcome::NotOurs => unsafe { libc::mremap(address, len, new_len, flags, new_address) },
    }
}
