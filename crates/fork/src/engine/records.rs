//! Records of the tables: of mappings, parts of mappings, and extents.

use palimpsest_sys::memory::calls::Commit;
use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Vma, VmaFlags};

use super::prices::Memory;
use crate::report::Skip;

/// Memory that will be frozen: a mapping or a part of one, with the traits that it must have afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eligible {
    pub(crate) span: Span,
    pub(crate) traits: Traits,
    /// Whether it has a name, which a mapping of a file cannot have.
    pub(crate) is_named: bool,
    /// Bytes copied, once it is frozen.
    pub(crate) frozen: usize,
    /// Populated bytes, as estimated from the figures of the whole mapping.
    pub(crate) populated: usize,
    /// The part of them in huge pages.
    pub(crate) huge: usize,
}

/// Memory that must be left alone although its mapping could be frozen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excluded {
    pub(crate) span: Span,
    pub(crate) reason: Skip,
}

/// Memory that is not frozen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skipped {
    pub(crate) span: Span,
    pub(crate) populated: usize,
    pub(crate) reason: Skip,
}

/// An extent that is mapped somewhere, or was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) id: FileId,
    /// Its number in this process and its children; never 0.
    pub(crate) serial: u32,
    /// Bytes stored in it.
    stored: usize,
    /// The addresses whose bytes it has ever held; all addresses once memory of it was moved.
    pub(super) origin: Span,
    /// Whether it holds something that the program has erased.
    pub(crate) is_erased: bool,
    /// Whether the inventory under way has seen a mapping of it.
    pub(crate) seen: bool,
    /// Flags that all its mappings have; `None` if they differ.
    pub(crate) flags: Option<VmaFlags>,
    /// Whether the memory it was made of counted as committed. Its own mappings never do.
    commit: Commit,
    /// Bytes of address space that show it.
    mapped: usize,
    /// Whether all its mappings may be replaced.
    hold: Hold,
}

/// Whether the mappings of an extent may be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// All may.
    Loose,
    /// One of them may not.
    Fast,
}

impl Held {
    /// Makes a new extent with this many bytes stored from these addresses, whose mappings have these traits.
    pub(super) fn new(id: FileId, serial: u32, (stored, origin): (usize, Span), traits: Traits) -> Self {
        let (flags, commit) = (traits.known_flags(), traits.commit());
        Self { id, serial, stored, origin, is_erased: false, seen: true, flags, commit, mapped: 0, hold: Hold::Loose }
    }

    /// Returns the sort key, which is found from a mapping as well.
    pub(super) const fn key(&self) -> (u32, u32, u64) {
        key(self.id)
    }

    /// Returns the bytes stored in it.
    pub(super) const fn stored(&self) -> usize {
        self.stored
    }

    /// Begins an inventory.
    pub(super) const fn look_again(&mut self) {
        self.seen = false;
    }

    /// Returns the traits that a replacement of a mapping must have.
    pub(super) fn traits(&self, vma: &Vma) -> Traits {
        Traits::of(vma).with_commit(self.commit)
    }

    /// Notes a mapping of it that an inventory has found, with its flags.
    pub(super) fn see(&mut self, vma: &Vma) {
        let flags = self.traits(vma).known_flags();
        if !self.seen {
            (self.seen, self.flags, self.mapped, self.hold) = (true, flags, 0, Hold::Loose);
        }
        self.flags = self.flags.filter(|known| Some(*known) == flags);
        self.mapped += vma.range().len();
        if !may_be_replaced(vma) {
            self.hold = Hold::Fast;
        }
    }

    /// Begins to count what its mappings show.
    pub(super) const fn hide(&mut self) {
        self.mapped = 0;
    }

    /// Notes that a mapping of it shows `shown` bytes more, and `hidden` fewer.
    pub(super) const fn maps(&mut self, shown: usize, hidden: usize) {
        self.mapped = (self.mapped + shown).saturating_sub(hidden);
    }

    /// Notes where a mapping of it lies: elsewhere than the memory it was made of, if the program has moved it.
    pub(super) fn place(&mut self, vma: &Vma) {
        if vma.start < self.origin.start || vma.end > self.origin.end {
            self.note_move();
        }
    }

    /// Notes that memory of it was moved.
    pub(super) const fn note_move(&mut self) {
        self.origin = Span::new(0, usize::MAX);
    }

    /// Whether all its mappings must be moved off it.
    pub(super) const fn is_to_go(&self) -> bool {
        self.is_erased || self.is_sparse()
    }

    /// Whether no mapping shows more than half of its memory any more, so that moving the rest elsewhere frees more
    /// than it takes.
    const fn is_sparse(&self) -> bool {
        // A mapping may show holes, so that this is the least that is wasted.
        matches!(self.hold, Hold::Loose) && self.stored > 2 * self.mapped
    }
}

/// Returns all frozen memory, counted as if in base pages.
pub(super) fn frozen(extents: &[Held]) -> Memory {
    Memory { bytes: extents.iter().map(Held::stored).sum(), huge: 0, extents: extents.len() }
}

/// Returns the sort key of extents.
pub(super) const fn key(id: FileId) -> (u32, u32, u64) {
    (id.device.major, id.device.minor, id.inode)
}

/// Flags of a mapping that must not be replaced even if it is ours.
const UNTOUCHABLE: VmaFlags = VmaFlags::LOCKED
    .union(VmaFlags::USERFAULT)
    .union(VmaFlags::DONT_FORK)
    .union(VmaFlags::SEALED)
    .union(VmaFlags::TAGGED);

/// Whether a mapping of an extent may be replaced by another one with the same bytes.
pub(super) fn may_be_replaced(vma: &Vma) -> bool {
    let has = |permission| vma.permissions.contains(permission);
    let is_ordinary = has(Permissions::READ) && !has(Permissions::EXECUTE) && !has(Permissions::SHARED);
    is_ordinary && !vma.flags.intersects(UNTOUCHABLE) && vma.protection_key == 0
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::pages::maps::MapLine;
    use palimpsest_sys::pages::vmas::Label;

    use super::*;

    #[test]
    fn what_was_counted_is_counted_again() {
        let line = MapLine {
            start: 0x1000,
            end: 0x2000,
            permissions: Permissions::READ,
            offset: 0,
            device: Default::default(),
            inode: 1,
        };
        let vma = |flags| Vma { flags, ..Vma::new(line, Label::Extent) };
        for (before, commit) in [(VmaFlags::default(), Commit::Counted), (VmaFlags::NO_RESERVE, Commit::Uncounted)] {
            let mut held = Held::new(FileId::default(), 1, (0, Span::default()), Traits::of(&vma(before)));
            // Mappings of extents are always made without a reserve, whatever they replace.
            held.seen = false;
            held.see(&vma(VmaFlags::NO_RESERVE));
            assert_eq!((held.traits(&vma(VmaFlags::NO_RESERVE)).commit(), held.flags), (commit, Some(before)));
        }
    }
}
