//! What a program erases is gone: `explicit_bzero`, `memset_explicit`, and `palimpsest_forget` for programs that erase
//! by other means.
//!
//! A frozen page exists twice: as the program sees it, and as it was when it was frozen. The first is overwritten here
//! as ever; then the guard forgets the second.

use std::ffi::{c_int, c_void};

use libc::size_t;
use palimpsest_fork::guard;

use crate::cancelling::uncancelled;
use crate::errno;
use crate::glibc;
use crate::memory::pages;

/// `explicit_bzero(3)`: zeroes memory, and destroys what it held when it was frozen.
///
/// # Safety
///
/// 1. As for the C library's function: the memory is writable, and nobody else uses it meanwhile.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn explicit_bzero(memory: *mut c_void, length: size_t) {
    // SAFETY: 1. as this function's.
    unsafe { overwrite(memory, 0, length) };
}

/// `__explicit_bzero_chk`: programs built with `_FORTIFY_SOURCE` call it instead of [`explicit_bzero`] (glibc,
/// `string/bits/string_fortified.h`). The memory has `room` bytes as far as the compiler can tell; if that is less than
/// `length`, the process ends as by the C library's function.
///
/// # Safety
///
/// 1. As for [`explicit_bzero`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __explicit_bzero_chk(memory: *mut c_void, length: size_t, room: size_t) {
    if length > room {
        glibc::end();
    }
    // SAFETY: 1. as this function's.
    unsafe { overwrite(memory, 0, length) };
}

/// `memset_explicit` (C23); see [`explicit_bzero`].
///
/// # Safety
///
/// 1. As for [`explicit_bzero`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn memset_explicit(memory: *mut c_void, value: c_int, length: size_t) -> *mut c_void {
    // SAFETY: 1. as this function's.
    unsafe { overwrite(memory, value as u8, length) };
    memory
}

/// Destroys what the memory held when it was frozen, and keeps what it holds now. Returns 0, or -1 with `errno`: then
/// the next repair does it, and each child of `fork` before that returns.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn palimpsest_forget(memory: *mut c_void, length: size_t) -> c_int {
    match forget(memory, length) {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error.raw_os_error());
            -1
        }
    }
}

fn forget(memory: *mut c_void, length: size_t) -> Result<(), rustix::io::Errno> {
    if length == 0 {
        return Ok(());
    }
    // An extent may have held the bytes although nothing of it lies there now: only the guard knows. It costs a load if
    // nothing was ever frozen, and leaves `errno` alone.
    uncancelled(|| guard::forget(pages(memory.expose_provenance(), length)))
}

/// # Safety
///
/// 1. As for [`explicit_bzero`].
unsafe fn overwrite(memory: *mut c_void, value: u8, length: size_t) {
    // SAFETY: 1.
    unsafe { memory.cast::<u8>().write_bytes(value, length) };
    // From here on anything may happen with the pointer: the stores above must have been made.
    std::hint::black_box(memory);
    // A refusal is made good later.
    let _ = forget(memory, length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_overwritten_where_nothing_is_frozen() {
        let mut secret = [7_u8; 100];
        // SAFETY: 1. this test's own.
        unsafe { explicit_bzero(secret.as_mut_ptr().wrapping_add(1).cast(), 98) };
        assert_eq!((secret[0], secret[1], secret[98], secret[99]), (7, 0, 0, 7));
        let place = secret.as_mut_ptr().cast();
        // SAFETY: 1. this test's own.
        assert_eq!(unsafe { memset_explicit(place, 0x105, 100) }, place);
        assert_eq!(secret, [5; 100]);
        assert_eq!((palimpsest_forget(place, 100), palimpsest_forget(place, 0)), (0, 0));
    }
}
