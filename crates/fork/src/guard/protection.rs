//! Guards `mprotect` and `pkey_mprotect`: what takes the place of frozen memory gets its rights and its key, so the map
//! must know both.
//!
//! The kernel changes one mapping after the other, and stops at the first that it cannot change, or where nothing is
//! mapped (`do_mprotect_pkey` in mm/mprotect.c). It does not tell where, and the map does not know: nobody reports an
//! `munmap`. A process that freezes by itself looks at what is mapped. In a child, and where the program has confined
//! itself, no file may be opened: there pages are asked, by advice, whether they have the rights. Shorter calls would
//! not tell: under `RLIMIT_DATA`, or at the end of a huge page, the kernel grants them where it has refused the whole.

use palimpsest_sys::arch::untagged;
use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::threads::own::Blocked;
use rustix::io::Errno;

use super::errno::Kept;
use super::parts::{Part, parts, whole_pages};
use super::release::is_confined;
use super::sight::{Seen, Sight};
use super::{changed, in_turn, is_planned, keyed, protected, touches};
use crate::engine::entry::Entry;
use crate::engine::frozen_map::FrozenMap;
use crate::engine::registry;
use crate::hazards::borrowed;

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
        // These say where the memory begins and ends.
        let known = libc::PROT_GROWSDOWN | libc::PROT_GROWSUP;
        self.rights & !USUAL.iter().fold(known, |all, (bit, _)| all | bit) != 0
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
    let Protect { address, len, rights, key } = asked;
    // SAFETY: 1. is this function's own.
    let call = || unsafe { calls::mprotect(address, len, rights, key) };
    // SAFETY: 1. is this function's own, and `call` makes the call.
    unsafe { mprotect_by(asked, call) }
}

/// Does what [`mprotect`] does; `call` makes the system call, in an interposer's way.
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
pub unsafe fn mprotect_by(asked: Protect, call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let Some(span) = whole_pages(untagged(asked.address), asked.len) else {
        // The kernel refuses what is malformed.
        return call();
    };
    let is_concerned = || touches(span.range()) || is_planned(span.range());
    let has_succeeded = !is_concerned() && {
        let done = call();
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
        let done = call();
        match (done, registry::shared()) {
            (Err(errno), Some(shared)) => note_failure(&shared.map, span, asked, errno),
            _ => protected(span.range(), Ok(asked.permissions())),
        }
        match u32::try_from(asked.key) {
            Ok(key) if done.is_ok() => keyed(span.range(), key),
            // Part of it may have the key, and nobody shows which.
            Ok(_) => changed(span.range()),
            Err(_) => {}
        }
        done
    });
    note_others();
    if has_succeeded { Ok(()) } else { done }
}

/// Notes which rights the memory in `span` has after a call for these failed.
fn note_failure(map: &FrozenMap, span: Span, asked: Protect, errno: Errno) {
    let _errno = Kept::now();
    let span = span.intersection(map.bounds());
    if span.is_empty() {
        return;
    }
    let may_open = !is_confined() && borrowed::owner().is_none();
    // A handler that leaves by `longjmp` would leave a file open.
    let blocked = may_open.then(Blocked::all);
    match blocked.as_ref().and_then(|_| Sight::open()).and_then(Sight::look) {
        Some(sight) => note_what_is_seen(map, span, &sight),
        None => note_what_pages_tell(span, asked.permissions(), errno),
    }
}

/// Notes the rights that the kernel tells, and forgets holes. Where something else is mapped, rights are unknown.
fn note_what_is_seen(map: &FrozenMap, span: Span, sight: &Sight) {
    let mut rest = span;
    while !rest.is_empty() {
        let Ok(found) = sight.first(rest) else { return unknown(rest) };
        // In a turn, nothing is frozen where nothing is mapped.
        let Some((part, seen)) = found else { return map.forget(rest) };
        map.forget(Span::new(rest.start, part.start));
        match seen {
            Seen::Ours(permissions) => map.change(part, &|entry| entry.with_rights(permissions)),
            Seen::Foreign => unknown(part),
        }
        rest.start = part.end;
    }
}

/// Notes how far the kernel has come, as pages tell that have the rights or do not. What lies behind has its own. Where
/// it cannot be told, rights are unknown.
fn note_what_pages_tell(span: Span, rights: Permissions, errno: Errno) {
    let (mut changed, mut doubtful) = (span.start, span.start);
    for part in parts(span).filter(|part| part.is_shown()) {
        let Part::Frozen(found, entry) = part else { continue };
        let upto = match told(found.start, entry, rights) {
            Told::Changed => border(found, |page| told(page, entry, rights) == Told::Changed),
            Told::Nothing => {
                if !entry.is_sure() || entry.permissions() != rights {
                    doubtful = found.end;
                }
                continue;
            }
            Told::AsBefore | Told::Hole => break,
        };
        // And so has all before it.
        changed = upto;
        if upto < found.end {
            break;
        }
    }
    protected(span.start..changed, Ok(rights));
    if changed < doubtful {
        protected(changed..doubtful, Err(errno));
    }
}

fn unknown(span: Span) {
    protected(span.range(), Err(Errno::NOMEM));
}

/// Returns where the pages end that have changed, of which the first is one.
fn border(span: Span, has_changed: impl Fn(usize) -> bool) -> usize {
    let page = rustix::param::page_size();
    // So many have, and one of so many more has not.
    let (mut changed, mut more) = (1, span.len() / page);
    if changed == more || has_changed(span.end - page) {
        return span.end;
    }
    while changed + 1 < more {
        let middle = changed + (more - changed) / 2;
        if has_changed(span.start + (middle - 1) * page) { changed = middle } else { more = middle }
    }
    span.start + changed * page
}

/// What a page tells of a call for rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// It has them.
    Changed,
    /// It has those that it had.
    AsBefore,
    /// Nothing is mapped there.
    Hole,
    /// It cannot be told, or makes no difference.
    Nothing,
}

/// Asks the page at this address, of which the map says `entry`, whether it has these rights by now.
fn told(address: usize, entry: Entry, rights: Permissions) -> Told {
    let differs = |right| entry.permissions().contains(right) != rights.contains(right);
    let asked = [(libc::MADV_POPULATE_WRITE, Permissions::WRITE), (libc::MADV_POPULATE_READ, Permissions::READ)];
    let asked = asked.into_iter().find(|(_, right)| differs(*right));
    let Some((advice, right)) = asked.filter(|_| entry.is_sure() && entry.key() == 0) else { return Told::Nothing };
    let page = Span::new(address, address + rustix::param::page_size());
    // Copies a page at most. SAFETY: 1. changes no contents.
    let has = match unsafe { calls::advise(page, advice) } {
        Ok(()) => true,
        Err(Errno::NOMEM) => return Told::Hole,
        // What may not be populated (madvise(2)).
        Err(Errno::INVAL) if calls::knows(advice) => false,
        Err(_) => return Told::Nothing,
    };
    if has == rights.contains(right) { Told::Changed } else { Told::AsBefore }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use palimpsest_sys::memory::calls::Commit;

    use super::*;

    #[test]
    fn the_border_is_found_in_a_few_steps() {
        let page = rustix::param::page_size();
        for pages in [1, 2, 3, 5, 64, 1000] {
            for changed in 1..=pages.min(70) {
                let asked = Cell::new(0);
                let span = Span::new(1 << 30, (1 << 30) + pages * page);
                let has_changed = |at: usize| {
                    asked.set(asked.get() + 1);
                    assert!(span.contains(at) && at.is_multiple_of(page), "{at}");
                    at < span.start + changed * page
                };
                assert_eq!(border(span, has_changed), span.start + changed * page);
                assert!(asked.get() <= 2 + pages.ilog2(), "{changed} of {pages}: {} pages", asked.get());
            }
        }
    }

    /// Fails on: an answer that is the entry's, and not the kernel's.
    #[test]
    fn a_page_tells_whether_it_has_rights() {
        let page = rustix::param::page_size();
        let all = [Permissions::default(), Permissions::READ, Permissions::READ_WRITE];
        if !calls::knows(libc::MADV_POPULATE_READ) {
            return println!("skipped: before Linux 5.14 nothing tells");
        }
        for (before, asked) in all.into_iter().flat_map(|before| all.map(|asked| (before, asked))) {
            for (kernels, expected) in [(before, Told::AsBefore), (asked, Told::Changed)] {
                let span = calls::map(4 * page, kernels, Commit::Uncounted).expect("room");
                let entry = Entry::new(before, None, 1);
                let expected = if before == asked { Told::Nothing } else { expected };
                assert_eq!(told(span.start, entry, asked), expected, "{before} to {asked}, where it is {kernels}");
                assert_eq!(told(span.start, entry.unsure(), asked), Told::Nothing);
                // SAFETY: 1. the test's own memory.
                unsafe { calls::unmap(span) }.expect("unmapped");
                let of_nothing = if before == asked { Told::Nothing } else { Told::Hole };
                assert_eq!(told(span.start, entry, asked), of_nothing);
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
