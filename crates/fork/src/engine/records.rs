//! What the tables hold, one record for each mapping, part of one, or extent.

use palimpsest_sys::memory::extent::{Commit, FileId};
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Vma, VmaFlags};

use super::prices::Memory;
use super::span::Span;
use super::traits::Traits;
use crate::report::Skip;

/// Memory that will be frozen: a mapping, or a part of one, with what it must have afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eligible {
    pub(crate) span: Span,
    pub(crate) traits: Traits,
    /// Whether it has a name, which a mapping of a file cannot have.
    pub(crate) is_named: bool,
    /// Bytes that were copied, once it is frozen.
    pub(crate) frozen: usize,
    /// Populated bytes, as far as the figures of the whole mapping tell.
    pub(crate) populated: usize,
    /// Those of them that are mapped as huge pages.
    pub(crate) huge: usize,
}

/// Memory that must be left alone although its mapping could be frozen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excluded {
    pub(crate) span: Span,
    pub(crate) reason: Skip,
}

/// Memory that is left as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skipped {
    pub(crate) span: Span,
    pub(crate) populated: usize,
    pub(crate) reason: Skip,
}

/// An extent that is, or was, mapped somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) id: FileId,
    /// Its number in this process and its children; never 0.
    pub(crate) serial: u32,
    /// Bytes that were stored in it.
    stored: usize,
    /// The addresses whose bytes it has ever held; all that there are once memory of it was moved.
    pub(super) origin: Span,
    /// Whether it holds something that the program has erased.
    pub(crate) is_erased: bool,
    /// Whether a mapping of it was seen by the inventory that is being worked on.
    pub(crate) seen: bool,
    /// What all its mappings have; nothing if they differ.
    pub(crate) flags: Option<VmaFlags>,
    /// Whether the memory that it was made of was counted as committed. Its own mappings never are.
    commit: Commit,
    /// Bytes of address space that show it.
    mapped: usize,
    /// Whether all of that may be replaced.
    hold: Hold,
}

/// Whether the mappings of an extent may be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// They may.
    Loose,
    /// One of them may not.
    Fast,
}

impl Held {
    /// A new extent with so many bytes of these addresses, whose mappings have these traits.
    pub(super) fn new(id: FileId, serial: u32, (stored, origin): (usize, Span), traits: Traits) -> Self {
        let (flags, commit) = (traits.known_flags(), traits.commit());
        Self { id, serial, stored, origin, is_erased: false, seen: true, flags, commit, mapped: 0, hold: Hold::Loose }
    }

    /// A value that is sorted by what this extent's mappings show.
    pub(super) const fn key(&self) -> (u32, u32, u64) {
        key(self.id)
    }

    /// Bytes that were stored in it.
    pub(super) const fn stored(&self) -> usize {
        self.stored
    }

    /// Begins an inventory.
    pub(super) const fn look_again(&mut self) {
        self.seen = false;
    }

    /// What must replace a mapping of it.
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

    /// Notes where a mapping of it lies, which is elsewhere than what it was made of if the program has moved it.
    pub(super) fn place(&mut self, vma: &Vma) {
        if vma.start < self.origin.start || vma.end > self.origin.end {
            self.note_move();
        }
    }

    /// Memory of it was moved.
    pub(super) const fn note_move(&mut self) {
        self.origin = Span::new(0, usize::MAX);
    }

    /// Whether all that shows it is to be moved elsewhere.
    pub(super) const fn is_to_go(&self) -> bool {
        self.is_erased || self.is_sparse()
    }

    /// Whether more than half of the memory that it takes is shown by nothing any more, so that moving the rest
    /// elsewhere frees more than it takes.
    const fn is_sparse(&self) -> bool {
        // A mapping may show holes, so this is the least that is lost.
        matches!(self.hold, Hold::Loose) && self.stored > 2 * self.mapped
    }
}

/// All frozen memory, as if it were in base pages.
pub(super) fn frozen(extents: &[Held]) -> Memory {
    Memory { bytes: extents.iter().map(Held::stored).sum(), huge: 0, extents: extents.len() }
}

/// The order of extents.
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
            // Each mapping of an extent is made without a reserve, whatever it replaces.
            held.seen = false;
            held.see(&vma(VmaFlags::NO_RESERVE));
            assert_eq!((held.traits(&vma(VmaFlags::NO_RESERVE)).commit(), held.flags), (commit, Some(before)));
        }
    }
}
