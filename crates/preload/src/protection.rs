//! `mprotect` and `pkey_mprotect` as the program calls them: passed on, and noted, so that the guard knows the rights
//! of memory before part of it is replaced.

use std::ffi::{c_int, c_long, c_void};

use libc::size_t;
use palimpsest_fork::guard;
use palimpsest_sys::pages::maps::Permissions;

use crate::memory::{is_ours, pages};
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
    let place = address.expose_provenance();
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { MPROTECT.or(kernel::mprotect)(address, length, rights) });
    noted(place, length, Rights::of(rights), pass_on) as c_int
}

/// `pkey_mprotect(2)`: frozen memory keeps the key.
///
/// # Safety
///
/// 1. As for [`mprotect`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(address: *mut c_void, length: size_t, rights: c_int, key: c_int) -> c_int {
    let place = address.expose_provenance();
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { PKEY_MPROTECT.or(kernel::pkey_mprotect)(address, length, rights, key) });
    noted(place, length, Rights::with_key(rights, key), pass_on) as c_int
}

/// What a call gives to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    usual: Permissions,
    extra: Extra,
    /// The protection key, if the call gives one.
    key: Option<u32>,
}

/// Rights beside the usual ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extra {
    /// Nothing.
    None,
    /// Rights that only some machines have.
    Some,
}

impl Rights {
    const USUAL: [(c_int, Permissions); 3] = [
        (libc::PROT_READ, Permissions::READ),
        (libc::PROT_WRITE, Permissions::WRITE),
        (libc::PROT_EXEC, Permissions::EXECUTE),
    ];

    pub(crate) fn of(rights: c_int) -> Self {
        let (mut usual, mut rest) = (Permissions::default(), rights);
        for (bit, permission) in Self::USUAL {
            if rights & bit != 0 {
                usual = usual.union(permission);
                rest &= !bit;
            }
        }
        Self { usual, extra: if rest == 0 { Extra::None } else { Extra::Some }, key: None }
    }

    /// Returns the rights of a call that also gives a key.
    pub(crate) fn with_key(rights: c_int, key: c_int) -> Self {
        // -1 leaves the key as it is.
        Self { key: u32::try_from(key).ok(), ..Self::of(rights) }
    }
}

/// Makes a call that changes rights, and tells the guard afterwards, while no guard in another thread gives memory the
/// rights from before. Makes it again if a signal handler has changed rights meanwhile. It announces rights beyond the
/// usual ones before the call, too, since another thread may freeze meanwhile.
///
/// If memory became frozen only during the call, it makes the call once more, so that no other thread's comes between
/// it and its note. That it succeeded once stands.
pub(crate) fn noted(address: usize, length: usize, rights: Rights, pass_on: impl Fn() -> c_long) -> c_long {
    let range = || pages(address, length);
    let is_given = !is_ours(range()) && {
        let answer = pass_on();
        if !is_ours(range()) {
            return answer;
        }
        answer == 0
    };
    let before = errno::get();
    if rights.extra == Extra::Some {
        guard::changed(range());
    }
    let (answer, told) = guard::in_turn(range(), || {
        let (answer, told) = (pass_on(), errno::get());
        let outcome = if answer == 0 { Ok(rights.usual) } else { Err(errno::failure()) };
        guard::protected(range(), outcome);
        match rights.key {
            Some(key) if answer == 0 => guard::keyed(range(), key),
            // Part of it may have the key, and nobody shows which.
            Some(_) => guard::changed(range()),
            None => {}
        }
        (answer, told)
    });
    if rights.extra == Extra::Some {
        guard::changed(range());
    }
    errno::set(if is_given { before } else { told });
    if is_given { 0 } else { answer }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::calls::{self, Commit};

    use super::*;

    #[test]
    fn rights_are_taken_apart() {
        let plain = |usual| Rights { usual, extra: Extra::None, key: None };
        assert_eq!(Rights::of(libc::PROT_NONE), plain(Permissions::default()));
        assert_eq!(Rights::of(libc::PROT_READ | libc::PROT_WRITE), plain(Permissions::READ_WRITE));
        // PROT_BTI and PROT_MTE of AArch64.
        let special = Rights { extra: Extra::Some, ..plain(Permissions::READ) };
        assert_eq!((Rights::of(0x10 | libc::PROT_READ), Rights::of(0x21)), (special, special));
        let keyed = Rights { key: Some(3), ..plain(Permissions::READ_WRITE) };
        assert_eq!(Rights::with_key(libc::PROT_READ | libc::PROT_WRITE, 3), keyed);
        assert_eq!(Rights::with_key(libc::PROT_READ | libc::PROT_WRITE, -1), plain(Permissions::READ_WRITE));
    }

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
