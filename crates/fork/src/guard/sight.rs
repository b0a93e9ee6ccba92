//! What is mapped where the map says that memory is frozen.
//!
//! The map may be out of date. The program has unmapped frozen memory, which nobody reports, and the dynamic linker has
//! mapped a library there, which nobody sees. Or another thread is held between a call that replaces memory or changes
//! its rights, and the report. A thaw that believes the map then puts a copy in place of the program's file, or gives
//! back rights that the program has taken away. So a process that may open files looks before it replaces anything, and
//! a child that forgets what such a process could not looks before `fork` returns, while it may do what its parent may.

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Label, Vmas};
use rustix::io::Errno;

use crate::engine::own::is_home;
use crate::engine::places::Places;

/// Most mappings in a list: the kernel's default limit.
const MOST: usize = 1 << 16;

/// A look at all mappings, which is true as long as the process is held still.
pub(super) struct Sight {
    places: Places,
    list: Vmas,
}

/// What is mapped somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// An extent, or private anonymous memory, with these rights.
    Ours(Permissions),
    /// Something else, which the program has put there.
    Foreign,
}

impl Sight {
    /// Returns `None` in a process that must not open files, or cannot: there the map alone tells.
    pub(super) fn open() -> Option<Self> {
        is_home().then(Self::open_file).flatten()
    }

    /// Returns `None` if the file cannot be opened.
    pub(super) fn open_file() -> Option<Self> {
        let places = Places::open().ok()?;
        let most = if matches!(places, Places::Listed) { MOST } else { 1 };
        Some(Self { places, list: Vmas::with_capacity(most).ok()? })
    }

    /// Looks, once the process is held still. Returns `None` if it cannot see everything.
    pub(super) fn look(mut self) -> Option<Self> {
        self.places.begin(&mut self.list).ok()?;
        Some(self)
    }

    /// Returns the first mapped part of `span`, in one mapping, and what it is. ENOMEM if the kernel cannot tell.
    pub(super) fn first(&self, span: Span) -> Result<Option<(Span, Seen)>, Errno> {
        let found = self.places.look_above(&self.list, span.start).map_err(|_| Errno::NOMEM)?;
        // What begins before a span may go on behind it: of nothing there is no part.
        let Some(vma) = found.filter(|vma| !span.is_empty() && vma.start < span.end) else { return Ok(None) };
        // Shared memory has a file, too.
        let seen = match self.places.label(&vma).map_err(|_| Errno::NOMEM)? {
            Label::Extent | Label::None | Label::Named | Label::Heap => Seen::Ours(vma.permissions),
            Label::File | Label::Snapshot | Label::Kernel | Label::Stack => Seen::Foreign,
        };
        Ok(Some((span.intersection(vma.range().into()), seen)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: an empty part of a mapping that goes on behind what is thawed, which cannot be replaced.
    #[test]
    fn of_a_mapping_that_goes_on_there_is_a_part_until_the_end() {
        let page = rustix::param::page_size();
        let memory = vec![1_u8; 4 * page];
        let at = |pages: usize| memory.as_ptr().addr().next_multiple_of(page) + pages * page;
        let asked = Places::open().expect("/proc");
        for places in [asked, Places::Listed] {
            let sight = Sight { places, list: Vmas::with_capacity(MOST).expect("memory") }.look().expect("/proc");
            let first = |from, to| sight.first(Span::new(at(from), at(to))).expect("told");
            let (part, seen) = first(1, 2).expect("mapped");
            assert_eq!(part, Span::new(at(1), at(2)));
            assert!(matches!(seen, Seen::Ours(permissions) if permissions.contains(Permissions::WRITE)), "{seen:?}");
            assert_eq!(first(2, 2), None);
        }
    }
}
