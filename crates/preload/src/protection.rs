//! `mprotect` and `pkey_mprotect` as the program calls them: passed on, and noted, so that the guard knows the rights
//! of memory before part of it is replaced.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};

use libc::size_t;
use palimpsest_fork::guard::{self, Protect};

use crate::next::Next;
use crate::{errno, kernel};

type Mprotect = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
type PkeyMprotect = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int) -> c_int;

// SAFETY: `int mprotect(void *, size_t, int)`.
static MPROTECT: Next<Mprotect> = unsafe { Next::new(c"mprotect") };
// SAFETY: `int pkey_mprotect(void *, size_t, int, int)`.
static PKEY_MPROTECT: Next<PkeyMprotect> = unsafe { Next::new(c"pkey_mprotect") };

/// Looks up the real functions.
pub(crate) fn resolve() {
    MPROTECT.resolve();
    PKEY_MPROTECT.resolve();
}

/// `mprotect(2)`: frozen memory keeps rights beyond the usual three.
///
/// # Safety
///
/// 1. As for the C library's function: the program must not need the rights that it gives up.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(address: *mut c_void, length: size_t, rights: c_int) -> c_int {
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { MPROTECT.or(kernel::mprotect)(address, length, rights) });
    let asked = Protect { address: address.expose_provenance(), len: length, rights, key: -1 };
    // SAFETY: 1. is contract 1, and this is the call.
    unsafe { protect(asked, pass_on) as c_int }
}

/// `pkey_mprotect(2)`: frozen memory keeps the key.
///
/// # Safety
///
/// 1. As for [`mprotect`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(address: *mut c_void, length: size_t, rights: c_int, key: c_int) -> c_int {
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { PKEY_MPROTECT.or(kernel::pkey_mprotect)(address, length, rights, key) });
    let asked = Protect { address: address.expose_provenance(), len: length, rights, key };
    // SAFETY: 1. is contract 1, and this is the call.
    unsafe { protect(asked, pass_on) as c_int }
}

/// Makes a call that changes rights, and notes them for guards. `pass_on` calls the real function, whose answer and
/// `errno` the program gets, whatever they are.
///
/// # Safety
///
/// 1. The program must not need the rights that it gives up, and `pass_on` makes that call.
pub(crate) unsafe fn protect(asked: Protect, pass_on: impl Fn() -> c_long) -> c_long {
    let before = errno::get();
    let told = Cell::new((0, before));
    let call = || {
        let answer = pass_on();
        told.set((answer, errno::get()));
        if answer == 0 { Ok(()) } else { Err(errno::failure()) }
    };
    // SAFETY: 1. is this function's own.
    let done = unsafe { guard::mprotect_by(asked, call) };
    // It may have succeeded once, and failed when it was made again.
    let (answer, errno) = if done.is_ok() && told.get().0 != 0 { (0, before) } else { told.get() };
    errno::set(errno);
    answer
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::calls::{self, Commit};
    use palimpsest_sys::pages::maps::Permissions;

    use super::*;

    #[test]
    fn before_the_start_calls_go_to_the_kernel() {
        // Nothing is started in a test, so that no real function was looked up.
        let page = rustix::param::page_size();
        let span = calls::map(page, Permissions::default(), Commit::Uncounted).expect("room");
        let made = std::ptr::with_exposed_provenance_mut::<c_void>(span.start);
        // SAFETY: the mapping is this test's own.
        assert_eq!(unsafe { mprotect(made, page, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        // SAFETY: the first byte of it, which can be written now.
        unsafe { made.cast::<u8>().write(1) };
        // SAFETY: no such key: refused.
        assert_eq!(unsafe { pkey_mprotect(made, page, libc::PROT_READ, 1 << 20) }, -1);
        // SAFETY: 1. the mapping is this test's own.
        assert_eq!(unsafe { calls::unmap(span) }, Ok(()));
    }
}
