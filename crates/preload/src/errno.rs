//! The calling thread's `errno`.

use std::ffi::{c_int, c_long};

/// Returns its value.
pub(crate) fn get() -> c_int {
    let place = place();
    // SAFETY: the place belongs to this thread and lives as long as it.
    unsafe { place.read() }
}

/// Sets it. Written only if it differs: after a fork each side copies the page for it.
pub(crate) fn set(value: c_int) {
    if get() == value {
        return;
    }
    let place = place();
    // SAFETY: the place belongs to this thread and lives as long as it.
    unsafe { place.write(value) };
}

/// Turns the kernel's answer into that of a C function: `-errno` becomes -1 and `errno`.
pub(crate) extern "C" fn answer(raw: isize) -> c_long {
    // `include/linux/err.h`: the last 4095 numbers are errors, whatever the call.
    if (-4095..0).contains(&raw) {
        // The range fits every integer type.
        set(-raw as c_int);
        return -1;
    }
    raw as c_long
}

fn place() -> *mut c_int {
    // SAFETY: takes nothing and returns an address; glibc keeps it at a fixed distance from the thread pointer.
    unsafe { libc::__errno_location() }
}
