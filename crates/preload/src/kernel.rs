//! The kernel's calls, past every C function: for the program where there is no next definition, and those of memory
//! also for the code in this object itself, which calls them by these names (see `build.rs`).

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr;

use libc::{off_t, size_t};

use crate::arch::system_call;
use crate::errno;

/// `madvise(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    // SAFETY: 1. is the caller's.
    unsafe { kernel(libc::SYS_madvise, [address.expose_provenance(), length, advice as usize, 0, 0, 0]) as c_int }
}

/// `mremap(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: size_t,
    new_length: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let (old, new) = (old.expose_provenance(), new.expose_provenance());
    let arguments = [old, old_length, new_length, flags as usize, new, 0];
    // SAFETY: 1. is the caller's.
    let moved = errno::answer(unsafe { system_call(libc::SYS_mremap, arguments) });
    ptr::with_exposed_provenance_mut(moved as usize)
}

/// `mmap(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
#[unsafe(link_section = "palimpsest_start")]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    let (protection, flags, descriptor) = (protection as usize, flags as usize, descriptor as usize);
    let arguments = [address.expose_provenance(), length, protection, flags, descriptor, offset as usize];
    // SAFETY: 1. is the caller's.
    let made = errno::answer(unsafe { system_call(libc::SYS_mmap, arguments) });
    ptr::with_exposed_provenance_mut(made as usize)
}

/// `mlock(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn mlock(address: *const c_void, length: size_t) -> c_int {
    // SAFETY: 1. is the caller's.
    unsafe { kernel(libc::SYS_mlock, [address.addr(), length, 0, 0, 0, 0]) as c_int }
}

/// `mlock2(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn mlock2(address: *const c_void, length: size_t, flags: c_uint) -> c_int {
    // SAFETY: 1. is the caller's.
    unsafe { kernel(libc::SYS_mlock2, [address.addr(), length, flags as usize, 0, 0, 0]) as c_int }
}

/// `mlockall(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: 1. is the caller's.
    unsafe { kernel(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) as c_int }
}

/// `mprotect(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn mprotect(address: *mut c_void, length: size_t, rights: c_int) -> c_int {
    let arguments = [address.expose_provenance(), length, rights as usize, 0, 0, 0];
    // SAFETY: 1. is the caller's.
    unsafe { kernel(libc::SYS_mprotect, arguments) as c_int }
}

/// `pkey_mprotect(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    length: size_t,
    rights: c_int,
    key: c_int,
) -> c_int {
    let arguments = [address.expose_provenance(), length, rights as usize, key as usize, 0, 0];
    // SAFETY: 1. is the caller's.
    unsafe { kernel(libc::SYS_pkey_mprotect, arguments) as c_int }
}

/// `shmat(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn shmat(segment: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let arguments = [segment as usize, address.expose_provenance(), flags as usize, 0, 0, 0];
    // SAFETY: 1. is the caller's.
    let made = unsafe { kernel(libc::SYS_shmat, arguments) };
    ptr::with_exposed_provenance_mut(made as usize)
}

/// `prctl(2)`.
///
/// # Safety
///
/// 1. The caller answers for what it asks for.
pub(crate) unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    let arguments = [option as usize, a as usize, b as usize, c as usize, d as usize, 0];
    // SAFETY: 1. is the caller's.
    unsafe { kernel(libc::SYS_prctl, arguments) as c_int }
}

/// Makes a system call, and answers like a C function.
///
/// # Safety
///
/// 1. The call with these arguments must be sound here: the caller answers for what it does.
pub(crate) unsafe fn kernel(number: c_long, arguments: [usize; 6]) -> c_long {
    // SAFETY: contract 1.
    errno::answer(unsafe { system_call(number, arguments) })
}
