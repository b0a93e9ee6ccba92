//! What only glibc has: references that another C library may leave open.
//!
//! The dynamic linker of musl loads whatever `LD_PRELOAD` names into each program that is executed below `palimpsest
//! run`, and ends the program for a name or a library that it does not have. So there is none: here are names that may
//! be absent, and `arch` defines the one that glibc has in its dynamic linker. The object then does nothing.

#[cfg(not(test))]
use std::ffi::c_int;
use std::ffi::{c_char, c_void};

std::arch::global_asm!(
    ".weak gnu_get_libc_release",
    ".weak __chk_fail",
    ".hidden palimpsest_gnu_get_libc_release",
    ".globl palimpsest_gnu_get_libc_release",
    ".hidden palimpsest_chk_fail",
    ".globl palimpsest_chk_fail",
    ".pushsection .data.rel.ro.palimpsest_own, \"aw\", %progbits",
    ".balign 8",
    "palimpsest_gnu_get_libc_release:",
    ".8byte gnu_get_libc_release",
    "palimpsest_chk_fail:",
    ".8byte __chk_fail",
    ".popsection",
);

// The static part of glibc calls it in `pthread_atfork`, here through `--wrap` (`build.rs`).
#[cfg(not(test))]
std::arch::global_asm!(
    ".weak __real___register_atfork",
    ".hidden palimpsest_register_atfork",
    ".globl palimpsest_register_atfork",
    ".pushsection .data.rel.ro.palimpsest_own, \"aw\", %progbits",
    ".balign 8",
    "palimpsest_register_atfork:",
    ".8byte __real___register_atfork",
    ".popsection",
);

/// A handler of `pthread_atfork`.
#[cfg(not(test))]
type Handler = Option<unsafe extern "C" fn()>;

unsafe extern "C" {
    /// Registers handlers of an object; returns an error's number.
    #[cfg(not(test))]
    static palimpsest_register_atfork: Option<unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int>;
    /// A function that nobody has a reason to replace. Not that for the version, which the standard library insists on.
    static palimpsest_gnu_get_libc_release: Option<extern "C" fn() -> *const c_char>;
    /// Says that a buffer would overflow, and ends the process.
    static palimpsest_chk_fail: Option<extern "C" fn() -> !>;
}

/// Returns an address inside the C library, if that is glibc.
pub(crate) fn inside() -> Option<usize> {
    // SAFETY: a constant, which the dynamic linker has written before any code of this object runs.
    let function = unsafe { palimpsest_gnu_get_libc_release };
    function.map(|function| (function as *const c_void).addr())
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
    // SAFETY: as in `inside`.
    match unsafe { palimpsest_register_atfork } {
        // SAFETY: contract 1.
        Some(register) => unsafe { register(prepare, parent, child, object) },
        None => libc::ENOSYS,
    }
}

/// Ends the process, whose buffer would overflow.
pub(crate) fn end() -> ! {
    // SAFETY: as in `inside`.
    match unsafe { palimpsest_chk_fail } {
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
