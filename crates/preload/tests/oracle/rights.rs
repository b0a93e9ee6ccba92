//! `mprotect` by all its names, as in `names`.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;

use libc::size_t;

use crate::names::{next, pointer};
use crate::world::{Answer, answer};

type Mprotect = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;

unsafe extern "C" {
    /// `pkey_mprotect(2)`.
    fn pkey_mprotect(address: *mut c_void, length: size_t, protection: c_int, key: c_int) -> c_int;
}

numbered! {
    mprotect_by_number: SYS_mprotect(place: *mut c_void, len: size_t, protection: c_int) -> c_int;
}

/// # Safety
///
/// 1. As for `mprotect`.
unsafe extern "C" fn mprotect_with_key(place: *mut c_void, len: size_t, protection: c_int) -> c_int {
    // SAFETY: contract 1; the key that all memory has.
    unsafe { pkey_mprotect(place, len, protection, -1) }
}

/// Calls `mprotect`.
pub(crate) fn protect(range: Range<usize>, rights: i32) -> Answer {
    let mprotect: Mprotect = next([libc::mprotect, mprotect_with_key, mprotect_by_number]);
    // SAFETY: the range is in the region of the programs.
    answer(unsafe { mprotect(pointer(range.start), range.len(), rights) } as isize)
}
