//! Guards `mprotect` and `pkey_mprotect`: what takes the place of frozen memory gets its rights and its key, so the map
//! must know both.
//!
//! The kernel changes one mapping after the other, and stops at the first that it cannot change, or where nothing is
//! mapped (`do_mprotect_pkey` in mm/mprotect.c). It does not tell where, and the map does not know: nobody reports an
//! `munmap`. So after a failure the same call is made for fewer bytes, until it is known for how many it succeeds. No
//! file is opened for that, and no other call is made than that of the program. For what has these rights by now it
//! changes nothing and divides no mapping; what lies behind has kept its own.

use palimpsest_sys::arch::untagged;
use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use rustix::io::Errno;

use super::errno::Kept;
use super::parts::whole_pages;
use super::{changed, in_turn, is_planned, keyed, protected, touches};

/// The arguments of an `mprotect`, or of a `pkey_mprotect`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protect {
    /// Where the memory is.
    pub address: usize,
    /// Its length in bytes.
    pub len: usize,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`, and those that only some machines have.
    pub rights: i32,
    /// The protection key, which none but `pkey_mprotect` gives; -1 leaves the key as it is.
    pub key: i32,
}

impl Protect {
    /// Returns the usual rights that it gives.
    fn permissions(self) -> Permissions {
        let given = USUAL.iter().filter(|(bit, _)| self.rights & bit != 0);
        given.fold(Permissions::default(), |all, (_, permission)| all.union(*permission))
    }

    /// Whether it gives rights beside the usual ones, which concern more than what may be done with memory.
    fn gives_others(self) -> bool {
        self.rights & !USUAL.iter().fold(0, |all, (bit, _)| all | bit) != 0
    }
}

const USUAL: [(i32, Permissions); 3] = [
    (libc::PROT_READ, Permissions::READ),
    (libc::PROT_WRITE, Permissions::WRITE),
    (libc::PROT_EXEC, Permissions::EXECUTE),
];

/// Calls `mprotect`, or `pkey_mprotect` if a key is given, and notes what memory has afterwards.
///
/// # Safety
///
/// 1. The memory belongs to the caller, and all its users can work with these rights.
///
/// # Errors
///
/// The kernel's.
pub unsafe fn mprotect(asked: Protect) -> Result<(), Errno> {
    let Protect { address, rights, key, .. } = asked;
    // SAFETY: 1. is this function's own.
    let call = |len| unsafe { calls::mprotect(address, len, rights, key) };
    // SAFETY: 1. is this function's own, and `call` makes the call.
    unsafe { mprotect_by(asked, call) }
}

/// Does what [`mprotect`] does; `call` makes the system call in an interposer's way, for the first bytes of the memory,
/// of which it is given the number.
///
/// While it works, no guard in another thread gives memory the rights from before. It makes the call again if a signal
/// handler has changed rights meanwhile; and if memory became frozen only during the call, so that no other thread's
/// comes between it and its note. That it succeeded once stands.
///
/// # Safety
///
/// 1. As [`mprotect`], and `call` makes that call, or does nothing.
///
/// # Errors
///
/// Those of `call`.
pub unsafe fn mprotect_by(asked: Protect, call: impl Fn(usize) -> Result<(), Errno>) -> Result<(), Errno> {
    let Some(span) = whole_pages(untagged(asked.address), asked.len) else {
        // The kernel refuses what is malformed.
        return call(asked.len);
    };
    let is_concerned = || touches(span.range()) || is_planned(span.range());
    let has_succeeded = !is_concerned() && {
        let done = call(asked.len);
        if !is_concerned() {
            return done;
        }
        done.is_ok()
    };
    let note_others = || {
        if asked.gives_others() {
            changed(span.range());
        }
    };
    // Before the call, too: another thread may freeze meanwhile.
    note_others();
    let done = in_turn(span.range(), || {
        let done = call(asked.len);
        let given = if done.is_ok() { span } else { given_at_least(span, &call) };
        protected(given.range(), Ok(asked.permissions()));
        if let Ok(key) = u32::try_from(asked.key) {
            keyed(given.range(), key);
        }
        done
    });
    note_others();
    if has_succeeded { Ok(()) } else { done }
}

/// Returns the part of `span` from its start on for which a call succeeds that has failed for all of it.
fn given_at_least(span: Span, call: impl Fn(usize) -> Result<(), Errno>) -> Span {
    let _errno = Kept::now();
    let page = rustix::param::page_size();
    // In pages: for so many it succeeds, and for so many it fails.
    let (mut given, mut refused) = (0, span.len() / page);
    // Most calls that fail do so at the first page.
    let mut asked = 1;
    while asked < refused {
        if call(asked * page).is_ok() {
            given = asked
        } else {
            refused = asked
        }
        asked = given + (refused - given) / 2;
        if asked == given {
            break;
        }
    }
    Span::new(span.start, span.start + given * page)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Fails on: more or less than what has the rights; a call for each page.
    #[test]
    fn a_call_that_fails_has_changed_rights_up_to_where_it_fails() {
        let page = rustix::param::page_size();
        for pages in [1, 2, 3, 5, 64, 1000] {
            for given in 0..pages.min(70) {
                let calls = Cell::new(0);
                let call = |len: usize| {
                    calls.set(calls.get() + 1);
                    assert!(len.is_multiple_of(page) && len < pages * page, "{len}");
                    if len <= given * page { Ok(()) } else { Err(Errno::NOMEM) }
                };
                let span = Span::new(1 << 30, (1 << 30) + pages * page);
                assert_eq!(given_at_least(span, call), Span::new(span.start, span.start + given * page));
                let most = if given == 0 { 1 } else { 2 + pages.ilog2() };
                assert!(calls.get() <= most, "{given} of {pages}: {} calls", calls.get());
            }
        }
    }

    #[test]
    fn rights_are_taken_apart() {
        let of = |rights| Protect { address: 0, len: 0, rights, key: -1 };
        assert_eq!(of(libc::PROT_NONE).permissions(), Permissions::default());
        let both = of(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!((both.permissions(), both.gives_others()), (Permissions::READ_WRITE, false));
        // PROT_BTI and PROT_MTE of AArch64.
        for others in [0x10, 0x20] {
            let special = of(others | libc::PROT_READ);
            assert_eq!((special.permissions(), special.gives_others()), (Permissions::READ, true));
        }
    }
}
