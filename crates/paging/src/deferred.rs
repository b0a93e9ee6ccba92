//! What is released after a flush: a few items stored directly, and more in tables allocated for them, since pages that
//! were mapped one after the other are rarely adjacent in memory.

use core::fmt;
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use crate::address::{ENTRIES, Frame, Level, PAGE};
use crate::machine::{Machine, Node, Page, allocate};

/// Items stored directly. Obligations are passed from function to function, so they should be small.
const AT_HAND: usize = 8;
/// Maximum number of tables for the others. Waiting memory cannot be used by anybody, and memory may be scarce.
const TABLES: usize = 8;
/// Words of a table that one item takes.
const WORDS: usize = 2;

/// Something that CPUs may still reach.
enum Item {
    /// Pages of one size, adjacent in memory, up to the address `end`.
    Pages { first: Page, end: u64 },
    /// A reference to a table that others may share.
    Share(Frame, Level),
}

/// Set in the first word of a reference to a table, together with its level; without it the word has the level of
/// pages.
const SHARE: u64 = 1 << 3;
const LEVEL: u64 = SHARE - 1;

impl Item {
    fn words(&self) -> [u64; WORDS] {
        match *self {
            Self::Pages { first, end } => [first.frame.address() | u64::from(first.size.level().number()), end],
            Self::Share(table, level) => [table.address() | SHARE | u64::from(level.number()), 0],
        }
    }

    fn from_words([first, end]: [u64; WORDS]) -> Self {
        let (frame, level) = (Frame::containing(first), Level::new((first & LEVEL) as u8));
        if first & SHARE != 0 {
            return Self::Share(frame, level);
        }
        match level.page_size() {
            Some(size) => Self::Pages { first: Page { frame, size }, end },
            None => unreachable!("pages have a size"),
        }
    }
}

/// There is no memory to note another item.
#[derive(Debug)]
pub(crate) struct Full;

/// See the module.
#[derive(Default)]
pub(crate) struct Deferred {
    at_hand: ArrayVec<Item, AT_HAND>,
    /// Tables of items, linked by their meta data.
    spilled: Option<Frame>,
    /// The number of these tables.
    tables: usize,
    /// Words of the first table that hold items; the others are full.
    used: usize,
}

impl Deferred {
    /// Adds a page whose entry is gone. Memory for the list comes from `node`.
    #[inline]
    pub(crate) fn add_page<M: Machine>(&mut self, machine: &M, node: Node, page: Page) -> Result<(), Full> {
        let (start, end) = (page.frame.address(), page.frame.address() + page.size.bytes());
        if let Some(Item::Pages { first, end: last }) = self.at_hand.last_mut()
            && (*last, first.size) == (start, page.size)
        {
            *last = end;
            return Ok(());
        }
        self.add(machine, node, Item::Pages { first: page, end })
    }

    /// Adds a reference to a table.
    pub(crate) fn add_share<M: Machine>(
        &mut self,
        machine: &M,
        node: Node,
        table: Frame,
        level: Level,
    ) -> Result<(), Full> {
        self.add(machine, node, Item::Share(table, level))
    }

    fn add<M: Machine>(&mut self, machine: &M, node: Node, item: Item) -> Result<(), Full> {
        if self.at_hand.is_full() {
            self.spill(machine, node)?;
        }
        self.at_hand.push(item);
        Ok(())
    }

    /// Makes room by moving all direct items to a table.
    #[cold]
    fn spill<M: Machine>(&mut self, machine: &M, node: Node) -> Result<(), Full> {
        let table = match self.spilled {
            Some(table) if self.used < ENTRIES => table,
            full => {
                let table = if self.tables < TABLES { allocate(machine, node) } else { None }.ok_or(Full)?;
                // SAFETY: 1. allocated just now, and freed in `release`.
                unsafe { machine.meta(table) }.set_link(full);
                (self.spilled, self.used) = (Some(table), 0);
                self.tables += 1;
                table
            }
        };
        // SAFETY: 1. allocated above or before, and freed only in `release`.
        let words = &unsafe { machine.table(table) }.0;
        for (place, word) in words[self.used..].iter().zip(self.at_hand.iter().flat_map(Item::words)) {
            // Relaxed: no CPU walks this table, and only this value refers to it.
            place.store(word, Ordering::Relaxed);
        }
        self.used += AT_HAND * WORDS;
        self.at_hand.clear();
        Ok(())
    }

    /// Returns whether there are no items.
    pub(crate) fn is_empty(&self) -> bool {
        self.at_hand.is_empty()
    }

    /// Releases the pages, and calls `drop_table` for the references. No CPU reaches any of them.
    pub(crate) fn release<M: Machine>(&mut self, machine: &M, drop_table: impl Fn(Frame, Level)) {
        let end = |item: Item| match item {
            Item::Pages { first: Page { frame, size }, end } => {
                for address in (frame.address()..end).step_by(size.bytes() as usize) {
                    machine.release(Page { frame: Frame::containing(address), size });
                }
            }
            Item::Share(table, level) => drop_table(table, level),
        };
        self.at_hand.drain(..).for_each(end);
        let mut used = core::mem::take(&mut self.used);
        let mut next = self.spilled.take();
        self.tables = 0;
        while let Some(table) = next {
            // SAFETY: 1. allocated in `spill`, and freed below.
            let words = &unsafe { machine.table(table) }.0[..used];
            for pair in words.chunks_exact(WORDS) {
                // Relaxed: as in `spill`.
                end(Item::from_words([pair[0].load(Ordering::Relaxed), pair[1].load(Ordering::Relaxed)]));
            }
            // SAFETY: 1. as above.
            next = unsafe { machine.meta(table) }.link();
            // SAFETY: 1. no entry, root or CPU has ever referred to it.
            unsafe { machine.free_table(table) };
            used = ENTRIES;
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_hand, tables, used, spilled: _ } = self;
        f.debug_struct("Deferred").field("at_hand", &at_hand.len()).field("tables", tables).field("used", used).finish()
    }
}

const _: () = assert!(
    ENTRIES.is_multiple_of(AT_HAND * WORDS) && 2 * SHARE <= PAGE,
    "a table is filled without a rest, and the low bits of a frame's address are free"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PageSize;

    #[test]
    fn items_keep_what_they_are() {
        for size in PageSize::DESCENDING {
            let first = Page { frame: Frame::containing(0x7_4000_0000), size };
            let words = Item::Pages { first, end: 0x8_0000_0000 }.words();
            assert!(
                matches!(Item::from_words(words), Item::Pages { first: again, end: 0x8_0000_0000 } if again == first)
            );
        }
        for level in 1..=5 {
            let words = Item::Share(Frame::containing(0x5000), Level::new(level)).words();
            let Item::Share(table, again) = Item::from_words(words) else { panic!("{words:?}") };
            assert_eq!((table.address(), again.number()), (0x5000, level));
        }
    }
}
