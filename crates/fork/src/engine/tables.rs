//! The tables that a round works with, outside the heap.
//!
//! [`Lasting`] stays as long as the process. The other tables live for one round: each that stays mapped costs every
//! fork a page table.

use std::time::Duration;

use palimpsest_sys::MapError;
use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::vec::{Full, MappedVec};
use palimpsest_sys::pages::vmas::Vmas;

use super::agenda::{Agenda, Terms};
use super::budget::Stopped;
use super::contents::Contents;
use super::ledger::Ledger;
use super::places::Places;
use super::records::{Eligible, Excluded, Held, Skipped, key};
use crate::options::Options;
use crate::report::Skip;

/// The tables that last.
#[derive(Debug)]
pub(super) struct Lasting {
    /// Sorted by identity.
    pub(super) extents: MappedVec<Held>,
    /// Which pages the extents hold.
    pub(super) contents: Contents,
    pub(super) ledger: Ledger,
    /// What a freeze in slices has still to do.
    pub(super) agenda: Agenda,
    /// The options of the last freeze: repairs follow them.
    pub(super) options: Options,
}

/// What a round works with.
#[derive(Debug)]
pub(crate) struct Tables<'a> {
    pub(super) vmas: Vmas,
    pub(super) eligible: MappedVec<Eligible>,
    pub(super) skipped: MappedVec<Skipped>,
    /// Populated runs of the window under work.
    pub(super) runs: MappedVec<Span>,
    /// Memory that must never be frozen: this library's, and what the kernel or running code writes to.
    pub(super) excluded: MappedVec<Excluded>,
    pub(super) extents: &'a mut MappedVec<Held>,
    pub(super) contents: &'a mut Contents,
    pub(super) ledger: &'a mut Ledger,
    /// Where the items of the agenda lie.
    items: Span,
    /// Where the registry lies.
    registry: [Span; 2],
}

/// A window of 1 GiB with pages of 4 KiB has at most half as many runs as pages; the runs of bigger windows are cut
/// off, and taken up again.
const RUNS: usize = 1 << 17;

impl<'a> Tables<'a> {
    /// Makes the tables. Allocates nothing from the heap.
    pub(super) fn new(lasting: &'a mut Lasting, registry: [Span; 2]) -> Result<Self, MapError> {
        Self::with_agenda(lasting, registry).map(|(tables, _)| tables)
    }

    /// Makes the tables, and returns with them what a freeze in slices has still to do.
    pub(super) fn with_agenda(
        lasting: &'a mut Lasting,
        registry: [Span; 2],
    ) -> Result<(Self, &'a mut Agenda), MapError> {
        let mut tables = Self {
            vmas: Vmas::without_room(),
            eligible: MappedVec::without_room(),
            skipped: MappedVec::without_room(),
            runs: MappedVec::without_room(),
            excluded: MappedVec::without_room(),
            extents: &mut lasting.extents,
            contents: &mut lasting.contents,
            ledger: &mut lasting.ledger,
            items: lasting.agenda.range().into(),
            registry,
        };
        tables.make_room()?;
        Ok((tables, &mut lasting.agenda))
    }

    /// Makes room for the lists, which are empty from then on.
    pub(super) fn make_room(&mut self) -> Result<(), MapError> {
        let mappings = self.extents.capacity();
        self.vmas = Vmas::with_capacity(mappings)?;
        self.eligible = MappedVec::with_capacity(2 * mappings)?;
        self.skipped = MappedVec::with_capacity(2 * mappings)?;
        self.runs = MappedVec::with_capacity(RUNS)?;
        self.excluded = MappedVec::with_capacity(mappings)?;
        Ok(())
    }

    /// Gives back what the lists have of memory, of which the caller needs none any more. Before a deputy is sent: to
    /// unmap takes the lock of all mappings, which the deputy holds while it makes a huge page, and which it may take
    /// again and again before the kernel hands it to who waits (some ms, `RWSEM_WAIT_TIMEOUT` in
    /// `kernel/locking/rwsem.c`).
    pub(super) fn give_back(&mut self) {
        self.vmas = Vmas::without_room();
        self.eligible = MappedVec::without_room();
        self.skipped = MappedVec::without_room();
        self.runs = MappedVec::without_room();
        self.excluded = MappedVec::without_room();
    }

    /// Returns what will be frozen, or was.
    pub(crate) fn eligible(&self) -> &[Eligible] {
        &self.eligible
    }

    /// Puts eligible memory on the agenda. Returns how many bytes that is.
    pub(crate) fn plan_slices(&mut self, agenda: &mut Agenda, terms: Terms) -> usize {
        agenda.begin(&mut self.eligible, terms)
    }

    /// Lists mappings for a slice of this length that gathers, if they must be: see [`Places::begin_beside`].
    pub(crate) fn list(&mut self, places: &Places, slice: Duration) -> Result<(), Stopped> {
        places.begin_beside(&mut self.vmas, slice)
    }

    /// Returns the account.
    pub(crate) const fn ledger(&mut self) -> &mut Ledger {
        self.ledger
    }

    /// Returns what is left alone.
    pub(crate) fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Returns the addresses of these tables and of the registry.
    pub(super) fn own_spans(&self) -> [Span; 12] {
        let [list, text] = self.vmas.own_ranges();
        let [head, apart] = self.registry.map(Span::range);
        [
            list,
            text,
            self.eligible.range(),
            self.skipped.range(),
            self.runs.range(),
            self.excluded.range(),
            self.extents.range(),
            self.contents.range(),
            self.ledger.hot.range(),
            self.items.range(),
            head,
            apart,
        ]
        .map(Span::from)
    }

    /// Returns the extent that a mapping shows.
    pub(super) fn held(&mut self, id: FileId) -> Option<&mut Held> {
        let place = self.extents.binary_search_by_key(&key(id), Held::key).ok()?;
        self.extents.get_mut(place)
    }

    /// Adds an extent at its place in the order. New files need not have higher numbers than older ones: each CPU takes
    /// them from a batch of its own (`get_next_ino` in `fs/inode.c`).
    pub(super) fn add_extent(&mut self, held: Held) -> Result<(), Full> {
        let place = self.extents.partition_point(|known| known.key() < held.key());
        self.extents.push(held)?;
        self.extents[place..].rotate_right(1);
        Ok(())
    }

    /// Forgets an extent that has no mapping any more.
    pub(super) fn forget_extent(&mut self, id: FileId) {
        let Ok(place) = self.extents.binary_search_by_key(&key(id), Held::key) else { return };
        self.contents.forget(self.extents[place].serial);
        self.extents[place..].rotate_left(1);
        self.extents.truncate(self.extents.len() - 1);
    }

    /// Returns the populated bytes of all eligible memory.
    pub(super) fn eligible_bytes(&self) -> usize {
        self.eligible.iter().map(|one| one.populated).sum()
    }

    /// Whether running code or the kernel may write to `span`, as last found out.
    pub(crate) fn is_in_use(&self, span: Span) -> bool {
        self.excluded.iter().any(|excluded| excluded.reason == Skip::InUse && excluded.span.overlaps(span))
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::traits::Traits;
    use palimpsest_sys::pages::maps::Permissions;

    use super::*;
    use crate::engine::hot::HotPieces;
    use crate::engine::prices::Prices;

    fn lasting() -> Lasting {
        Lasting {
            extents: MappedVec::with_capacity(16).expect("memory"),
            contents: Contents::new(MappedVec::with_capacity(16).expect("memory")),
            ledger: Ledger::new(HotPieces::new(MappedVec::with_capacity(16).expect("memory")), Prices::new(4096)),
            agenda: Agenda::new(MappedVec::with_capacity(16).expect("memory")),
            options: Options::new(),
        }
    }

    /// Fails on: a list that stays mapped, which a slice would have to unmap while a deputy is at work.
    #[test]
    fn what_lists_have_of_memory_can_be_given_back() {
        let mut lasting = lasting();
        let mut tables = Tables::new(&mut lasting, [Span::default(); 2]).expect("memory");
        let lists = |tables: &Tables<'_>| -> Vec<Span> {
            tables.own_spans().into_iter().take(6).filter(|span| !span.is_empty()).collect()
        };
        let before = lists(&tables);
        assert_eq!(before.len(), 6);
        tables.give_back();
        assert_eq!(lists(&tables), []);
        tables.make_room().expect("memory");
        assert_eq!(lists(&tables).len(), 6);
        tables.runs.push(Span::new(1, 2)).expect("room");
        assert_eq!(tables.runs[..], [Span::new(1, 2)]);
    }

    #[test]
    fn extents_are_found_whatever_the_order_of_their_numbers() {
        let mut lasting = lasting();
        let mut tables = Tables::new(&mut lasting, [Span::default(); 2]).expect("memory");
        // As if each had been made on another CPU.
        let ids = [9, 8, 2, 6, 5, 4, 7, 3, 1].map(|inode| FileId { inode, ..FileId::default() });
        for (index, id) in ids.iter().enumerate() {
            let traits = Traits::bare(Permissions::READ);
            tables.add_extent(Held::new(*id, 1 + index as u32, (0, Span::default()), traits)).expect("room");
            for known in &ids[..=index] {
                let found = tables.held(*known).map(|held| held.id);
                assert_eq!(found, Some(*known), "one of {} is lost", index + 1);
            }
        }
    }
}
