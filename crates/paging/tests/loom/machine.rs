//! A machine of a few tables and pages, with one CPU for each thread and no TLB: a walk and its access are one step,
//! for which a flush waits.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use palimpsest_paging::format::{Entry, Format, ShareMode, Sv39, X86_64};
use palimpsest_paging::*;

const TABLES: usize = 6;
const PAGES: usize = 5;
/// Where pages start.
const MEMORY: u64 = 1 << 20;

macro_rules! two_levels {
    ($($name:ident: $of:ty;)*) => {$(
        /// A format of two levels.
        pub(crate) enum $name {}

        impl Format for $name {
            const NAME: &'static str = <$of>::NAME;
            const TOP: Level = Level::new(2);
            const SHARE_MODE: ShareMode = <$of>::SHARE_MODE;
            const MARKS_ACCESSED: bool = <$of>::MARKS_ACCESSED;
            const MARKS_DIRTY: bool = <$of>::MARKS_DIRTY;
            const FAULT_EVICTS: bool = <$of>::FAULT_EVICTS;
            const BREAK_BEFORE_MAKE: bool = <$of>::BREAK_BEFORE_MAKE;
            const PHYSICAL_END: u64 = <$of>::PHYSICAL_END;
            const MEMORY_TYPES: u8 = <$of>::MEMORY_TYPES;

            fn is_valid(address: VirtAddr) -> bool {
                address.0 < Self::TOP.table_bytes()
            }

            fn has_leaf(level: Level) -> bool {
                <$of>::has_leaf(level)
            }

            fn decode(level: Level, bits: u64) -> Entry {
                <$of>::decode(level, bits)
            }

            fn leaf(level: Level, leaf: format::Leaf) -> u64 {
                <$of>::leaf(level, leaf)
            }

            fn table(frame: Frame, stores: Stores) -> u64 {
                <$of>::table(frame, stores)
            }
        }
    )*};
}

two_levels! {
    TableProtect: X86_64;
    LeafProtect: Sv39;
}

struct Slot {
    table: Table,
    meta: TableMeta,
    /// Read by users of the table, written when it is allocated or freed.
    is_allocated: UnsafeCell<bool>,
}

struct Memory {
    content: UnsafeCell<u64>,
    references: AtomicU32,
}

pub(crate) struct Machinery {
    tables: Vec<Slot>,
    free: Mutex<Vec<usize>>,
    pages: Vec<Memory>,
    free_pages: Mutex<Vec<usize>>,
    /// Held by a CPU while it makes an access.
    accesses: [Mutex<()>; 2],
}

/// An action of a CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Do {
    Load,
    Store(u64),
}

#[derive(Clone)]
pub(crate) struct Ram(Arc<Machinery>);

impl Ram {
    pub(crate) fn new() -> Self {
        let slot = |_| Slot { table: Table::new(), meta: TableMeta::new(), is_allocated: UnsafeCell::new(false) };
        let page = |_| Memory { content: UnsafeCell::new(0), references: AtomicU32::new(0) };
        Self(Arc::new(Machinery {
            tables: (0..TABLES).map(slot).collect(),
            free: Mutex::new((0..TABLES).collect()),
            pages: (0..PAGES).map(page).collect(),
            free_pages: Mutex::new((0..PAGES).collect()),
            accesses: [Mutex::new(()), Mutex::new(())],
        }))
    }

    /// Returns a page with this content, to which one entry will refer.
    pub(crate) fn page(&self, content: u64) -> Frame {
        self.take_page(content).unwrap()
    }

    fn take_page(&self, content: u64) -> Option<Frame> {
        let index = self.0.free_pages.lock().unwrap().pop()?;
        let page = &self.0.pages[index];
        // SAFETY: loom reports another access at the same time.
        page.content.with_mut(|cell| unsafe { *cell = content });
        page.references.store(1, Ordering::Relaxed);
        Frame::new(MEMORY + index as u64 * PAGE)
    }

    fn memory(&self, frame: Frame) -> &Memory {
        &self.0.pages[((frame.address() - MEMORY) / PAGE) as usize]
    }

    fn slot(&self, table: Frame) -> &Slot {
        &self.0.tables[(table.address() / PAGE) as usize]
    }

    fn slot_in_use(&self, table: Frame) -> &Slot {
        let slot = self.slot(table);
        // SAFETY: loom reports a store at the same time.
        assert!(slot.is_allocated.with(|cell| unsafe { *cell }), "{table} is free");
        slot
    }

    /// Makes an access as the hardware does; `None` if it faults.
    pub(crate) fn access<F: Format>(&self, cpu: usize, root: Frame, address: VirtAddr, what: Do) -> Option<u64> {
        let _access = self.0.accesses[cpu].lock().unwrap();
        let (mut table, mut level, mut pass) = (root, F::TOP, true);
        loop {
            let bits = self.slot_in_use(table).table.0[level.index(address)].load(Ordering::Acquire);
            match F::decode(level, bits) {
                Entry::Empty => return None,
                Entry::Table { frame, stores } => {
                    pass &= stores == Stores::Pass;
                    (table, level) = (frame, level.below()?);
                }
                Entry::Leaf(leaf) => {
                    let content = &self.memory(leaf.frame).content;
                    let pass = pass && leaf.stores == Stores::Pass;
                    return match what {
                        // SAFETY: loom reports a store at the same time.
                        Do::Load => Some(content.with(|cell| unsafe { *cell })),
                        Do::Store(value) if pass => {
                            // SAFETY: loom reports another access at the same time.
                            content.with_mut(|cell| unsafe { *cell = value });
                            Some(value)
                        }
                        Do::Store(_) => None,
                    };
                }
            }
        }
    }

    /// Returns the numbers of tables and pages in use.
    pub(crate) fn used(&self) -> (usize, usize) {
        (TABLES - self.0.free.lock().unwrap().len(), PAGES - self.0.free_pages.lock().unwrap().len())
    }
}

// SAFETY: 1, 2, 4. Tables and pages are handed out once until they are given back, and never move; a table's meta data
// are reset. 6. Counts fall with Release, and are read with Acquire. 3. There is no TLB, and `wait` waits for accesses.
unsafe impl Machine for Ram {
    type Pending = ();

    fn allocate_table(&self, _: Node) -> Option<Frame> {
        let index = self.0.free.lock().unwrap().pop()?;
        let slot = &self.0.tables[index];
        slot.meta.reset();
        // SAFETY: loom reports another access at the same time.
        slot.is_allocated.with_mut(|cell| unsafe { *cell = true });
        Frame::new(index as u64 * PAGE)
    }

    fn free_tables(&self) -> usize {
        self.0.free.lock().unwrap().len()
    }

    unsafe fn free_table(&self, table: Frame) {
        let slot = self.slot(table);
        // SAFETY: loom reports another access at the same time.
        let was = slot.is_allocated.with_mut(|cell| unsafe { std::mem::replace(&mut *cell, false) });
        assert!(was, "{table} is freed twice");
        slot.table.0.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
        self.0.free.lock().unwrap().push((table.address() / PAGE) as usize);
    }

    unsafe fn table(&self, table: Frame) -> &Table {
        &self.slot_in_use(table).table
    }

    unsafe fn meta(&self, table: Frame) -> &TableMeta {
        &self.slot_in_use(table).meta
    }

    fn retain(&self, page: Page) {
        // Relaxed: the caller has a reference.
        self.memory(page.frame).references.fetch_add(1, Ordering::Relaxed);
    }

    fn release(&self, page: Page) {
        let memory = self.memory(page.frame);
        // AcqRel, partner: itself, and the Acquire in `is_exclusive`.
        if memory.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: loom reports another access at the same time.
            memory.content.with_mut(|cell| unsafe { *cell = u64::MAX });
            self.0.free_pages.lock().unwrap().push(((page.frame.address() - MEMORY) / PAGE) as usize);
        }
    }

    fn is_exclusive(&self, page: Page) -> bool {
        // Acquire, partner: the AcqRel in `release`.
        self.memory(page.frame).references.load(Ordering::Acquire) == 1
    }

    fn copy(&self, page: Page, _: Node) -> Option<Frame> {
        // SAFETY: loom reports a store at the same time.
        let content = self.memory(page.frame).content.with(|cell| unsafe { *cell });
        self.take_page(content)
    }

    fn pin(&self, _: Page) {}

    fn unpin(&self, _: Page) {}

    fn is_pinned(&self, _: Page) -> bool {
        false
    }

    fn split(&self, _: Page) {}

    fn merge(&self, _: Page) -> bool {
        false
    }

    fn dispatch(&self, _: FlushRequest<'_>) {}

    fn wait(&self, (): ()) {
        for access in &self.0.accesses {
            drop(access.lock().unwrap());
        }
    }

    fn relax(&self) {
        loom::thread::yield_now();
    }
}
