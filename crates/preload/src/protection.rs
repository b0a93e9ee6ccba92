//! `mprotect` and `pkey_mprotect` as the program calls them: they are passed on, and what memory has by them is remembered to be looked at before a part of it is
//! replaced.

use std::ffi::{c_int, c_long, c_void};

use libc::size_t;
use palimpsest_fork::guard;

use crate::arch::system_call;
use crate::errno;
use crate::memory::pages;
use crate::next::Next;

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

/// `mprotect(2)`: rights beyond the usual three stay with frozen memory.
///
/// # Safety
///
/// 1. As for the C library's function: the program must be able to do without the rights that it gives up.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(address: *mut c_void, length: size_t, rights: c_int) -> c_int {
    let place = address.expose_provenance();
    let pass_on = || match MPROTECT.get() {
        // SAFETY: contract 1.
        Some(real) => c_long::from(unsafe { real(address, length, rights) }),
        // SAFETY: contract 1.
        None => errno::answer(unsafe { system_call(libc::SYS_mprotect, [place, length, rights as usize, 0, 0, 0]) }),
    };
    noted(place, length, Rights::of(rights), pass_on) as c_int
}

/// `pkey_mprotect(2)`: the key stays with frozen memory.
///
/// # Safety
///
/// 1. As for [`mprotect`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(address: *mut c_void, length: size_t, rights: c_int, key: c_int) -> c_int {
    let place = address.expose_provenance();
    let pass_on = || match PKEY_MPROTECT.get() {
        // SAFETY: contract 1.
        Some(real) => c_long::from(unsafe { real(address, length, rights, key) }),
        None => {
            let arguments = [place, length, rights as usize, key as usize, 0, 0];
            // SAFETY: contract 1.
            errno::answer(unsafe { system_call(libc::SYS_pkey_mprotect, arguments) })
        }
    };
    noted(place, length, Rights::Special, pass_on) as c_int
}

/// What a call gives to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    /// To read, write and execute, or less: what every mapping shows to who asks for it.
    Usual,
    /// A key, or rights that only some machines have.
    Special,
}

impl Rights {
    pub(crate) const fn of(rights: c_int) -> Self {
        if rights & !(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) == 0 { Self::Usual } else { Self::Special }
    }
}

/// Makes a call that changes rights, and notes it before and, since another thread may have frozen the memory meanwhile, afterwards.
pub(crate) fn noted(address: usize, length: usize, rights: Rights, pass_on: impl FnOnce() -> c_long) -> c_long {
    if rights == Rights::Usual {
        return pass_on();
    }
    guard::changed(pages(address, length));
    let answer = pass_on();
    guard::changed(pages(address, length));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_three_usual_rights_are_usual() {
        assert_eq!(Rights::of(libc::PROT_NONE), Rights::Usual);
        assert_eq!(Rights::of(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC), Rights::Usual);
        // PROT_BTI and PROT_MTE of AArch64.
        assert_eq!((Rights::of(0x10 | libc::PROT_READ), Rights::of(0x20)), (Rights::Special, Rights::Special));
    }

    #[test]
    fn before_the_start_calls_go_to_the_kernel() {
        // In a test nothing is started, so that no real function was looked up.
        let page = rustix::param::page_size();
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: makes a mapping at a place that the kernel chooses.
        let made = unsafe { libc::mmap(std::ptr::null_mut(), page, libc::PROT_NONE, kind, -1, 0) };
        assert_ne!(made, libc::MAP_FAILED);
        // SAFETY: the mapping is this test's own.
        assert_eq!(unsafe { mprotect(made, page, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        // SAFETY: the first byte of it, which can be written now.
        unsafe { made.cast::<u8>().write(1) };
        // SAFETY: no such key: refused.
        assert_eq!(unsafe { pkey_mprotect(made, page, libc::PROT_READ, 1 << 20) }, -1);
        // SAFETY: the mapping is this test's own.
        assert_eq!(unsafe { libc::munmap(made, page) }, 0);
    }
}
