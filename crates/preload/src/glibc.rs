//! What only glibc has: references that another C library may leave open.
//!
//! The dynamic linker of musl loads whatever `LD_PRELOAD` names into each program that is executed below `palimpsest
//! run`, and ends the program for a name or a library that it does not have. So there is none: here are names that may
//! be absent, and `arch` defines the one that glibc has in its dynamic linker. The object then does nothing.

#[cfg(not(test))]
use std::ffi::c_int;
use std::ffi::c_void;
use std::ptr;

use crate::arch::weak_address;

/// A handler of `pthread_atfork`.
#[cfg(not(test))]
type Handler = Option<unsafe extern "C" fn()>;

/// Returns an address inside the C library, if that is glibc.
pub(crate) fn inside() -> Option<usize> {
    // A function that nobody has a reason to replace. Not that for the version, which the standard library insists on.
    Some(weak_address!("gnu_get_libc_release")).filter(|&address| address != 0)
}

/// `__register_atfork`, for the static part of glibc in this object.
///
/// # Safety
///
/// 1. As for the C library's function: the handlers may run at each fork until the object is unloaded.
#[cfg(not(test))]
pub(crate) unsafe extern "C" fn register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    let place = ptr::with_exposed_provenance::<c_void>(weak_address!("__real___register_atfork"));
    // SAFETY: null, or this function of the C library; a pointer that may be null is an option of one.
    match unsafe { std::mem::transmute::<*const c_void, Option<Register>>(place) } {
        // SAFETY: contract 1.
        Some(register) => unsafe { register(prepare, parent, child, object) },
        None => libc::ENOSYS,
    }
}

/// Ends the process, whose buffer would overflow.
pub(crate) fn end() -> ! {
    let place = ptr::with_exposed_provenance::<c_void>(weak_address!("__chk_fail"));
    // SAFETY: null, or this function of the C library, which takes nothing and does not return; a pointer that may be
    // null is an option of one.
    match unsafe { std::mem::transmute::<*const c_void, Option<extern "C" fn() -> !>>(place) } {
        Some(fail) => fail(),
        None => std::process::abort(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_glibc_has_is_found() {
        let version = palimpsest_sys::global_symbol(c"gnu_get_libc_release").map(|found| found.addr().get());
        assert_eq!(inside(), version);
    }
}
