//! A machine that keeps the meta data of tables itself, and hands tables out again with those of their last use.

use std::collections::HashMap;
use std::sync::Mutex;

use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config, Sent};
use palimpsest_paging::*;

/// What becomes of the meta data of a table that is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Reset,
    AsLeft,
    Zeroed,
}

struct Keeper<'c> {
    computer: &'c Computer,
    found: Found,
    /// Never moved: each is a box, and none is removed.
    metas: Mutex<HashMap<u64, Box<TableMeta>>>,
}

impl Keeper<'_> {
    fn meta_of(&self, table: Frame) -> &TableMeta {
        let mut metas = self.metas.lock().unwrap();
        let meta: *const TableMeta = &raw const **metas.entry(table.address()).or_insert_with(|| match self.found {
            // SAFETY: atomic numbers, for which zero is a value.
            Found::Zeroed => Box::new(unsafe { std::mem::zeroed() }),
            Found::Reset | Found::AsLeft => Box::default(),
        });
        // SAFETY: a box that is as old as the map at least, and stays as long as `self`.
        unsafe { &*meta }
    }
}

// SAFETY: the computer keeps 2 to 6, and 1 except for what a test breaks on purpose: `meta_of` returns the same data
// for a table. With wrong data nothing goes on that could use them.
unsafe impl Machine for &Keeper<'_> {
    type Pending = Sent;

    fn allocate_table(&self, node: Node) -> Option<Frame> {
        let table = self.computer.allocate_table(node)?;
        if self.found == Found::Reset {
            self.meta_of(table).reset();
        }
        Some(table)
    }

    fn free_tables(&self) -> usize {
        (&self.computer).free_tables()
    }

    unsafe fn free_table(&self, table: Frame) {
        // SAFETY: 1. as the caller's.
        unsafe { (&self.computer).free_table(table) }
    }

    unsafe fn table(&self, table: Frame) -> &Table {
        // SAFETY: 1. as the caller's.
        unsafe { (&self.computer).table(table) }
    }

    unsafe fn meta(&self, table: Frame) -> &TableMeta {
        self.meta_of(table)
    }

    fn retain(&self, page: Page) {
        (&self.computer).retain(page);
    }

    fn release(&self, page: Page) {
        (&self.computer).release(page);
    }

    fn is_exclusive(&self, page: Page) -> bool {
        (&self.computer).is_exclusive(page)
    }

    fn copy(&self, page: Page, node: Node) -> Option<Frame> {
        (&self.computer).copy(page, node)
    }

    fn pin(&self, page: Page) {
        (&self.computer).pin(page);
    }

    fn unpin(&self, page: Page) {
        (&self.computer).unpin(page);
    }

    fn is_pinned(&self, page: Page) -> bool {
        (&self.computer).is_pinned(page)
    }

    fn split(&self, page: Page) {
        (&self.computer).split(page);
    }

    fn merge(&self, page: Page) -> bool {
        (&self.computer).merge(page)
    }

    fn dispatch(&self, request: FlushRequest<'_>) -> Sent {
        (&self.computer).dispatch(request)
    }

    fn wait(&self, pending: Sent) {
        (&self.computer).wait(pending);
    }
}

/// Makes and drops spaces until tables are handed out again.
fn use_tables_again(found: Found) {
    let computer = Computer::new::<X86_64>(Config::default());
    let keeper = Keeper { computer: &computer, found, metas: Mutex::default() };
    for id in 0..100 {
        let space = AddressSpace::<X86_64, _>::new(&keeper, SpaceId(id), &[Node(0)], SpaceOptions::default()).unwrap();
        space.fork(SpaceId(1000 + id)).unwrap().1.finish();
    }
    let tables = keeper.metas.lock().unwrap().len();
    assert!(tables < 200, "none of {tables} was handed out twice");
}

#[test]
fn tables_whose_meta_data_are_reset_are_used_again() {
    use_tables_again(Found::Reset);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only noticed with debug assertions")]
#[should_panic(expected = "has not reset the meta data")]
fn meta_data_of_an_earlier_table_are_noticed() {
    use_tables_again(Found::AsLeft);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only noticed with debug assertions")]
#[should_panic(expected = "has not reset the meta data")]
fn zeroed_meta_data_are_noticed() {
    use_tables_again(Found::Zeroed);
}
