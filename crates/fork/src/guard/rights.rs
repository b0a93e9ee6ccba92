//! Finds out which rights frozen memory has after a call that failed, and may have changed some of them.
//!
//! `mprotect` changes rights up to the first hole, and then fails (`mprotect(2)`). The map does not know where holes
//! are, for nobody reports an `munmap`.

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::threads::own::Blocked;

use super::errno::Kept;
use super::release::is_confined;
use super::sight::{Seen, Sight};
use crate::engine::entry::Entry;
use crate::engine::frozen_map::FrozenMap;
use crate::hazards::borrowed;

/// Notes which rights the memory in `span` has, as the kernel says, and forgets holes. Where it cannot be asked, or
/// something else is mapped, they are unknown. Called in a turn.
pub(super) fn note(map: &FrozenMap, span: Span) {
    let _errno = Kept::now();
    // A handler that leaves by `longjmp` would leave a file open.
    let _blocked = Blocked::all();
    let may_open = !is_confined() && borrowed::owner().is_none();
    let sight = if may_open { Sight::open().and_then(Sight::look) } else { None };
    let unknown = |span| {
        // None of the bytes of what is anonymous can be lost.
        map.rewrite(span, &|entry: Entry| if entry.is_thawed() { None } else { Some(entry.unsure()) });
    };
    let mut rest = span.intersection(map.bounds());
    while !rest.is_empty() {
        let found = match sight.as_ref().map(|sight| sight.first(rest)) {
            Some(Ok(found)) => found,
            None | Some(Err(_)) => return unknown(rest),
        };
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
