//! A machine for page tables that does what a kernel's does and checks nothing: tables in one array of host memory, a
//! count of references for each page, and flushes that are only counted.
//!
//! The physical address of a table is its address in this process, as with a kernel that maps all memory at an offset
//! of zero. Pages have addresses and counts, and no bytes.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use palimpsest_paging::format::Format;
use palimpsest_paging::{
    AddressSpace, Attributes, Charge, CursorMapError, CursorMut, FlushRequest, Frame, Machine, MapError, Node, PAGE,
    Page, PageSize, PageSizes, SpaceId, Table, TableMeta, VirtAddr,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{PlaceError, TableError};

/// Physical address of the first page. Nobody looks at what is there.
const PAGES: u64 = 1 << 46;

/// Where the array of tables begins: as large as a huge page, so that it is one.
const ALIGN: usize = 2 << 20;

/// What a [`TableHost`] was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Tables that were allocated.
    pub(crate) tables: u64,
    /// Pages that were copied.
    pub(crate) copies: u64,
    /// Flushes that were sent.
    pub(crate) flushes: u64,
}

/// See the module.
///
/// # Invariants
///
/// 1. `mapped` is a mapping of `mapped_len` bytes that belongs to this value alone; `tables` lies in it, aligned to
///    [`ALIGN`], with room for `metas.len()` tables.
/// 2. `free` contains the number of each unallocated table once.
pub(crate) struct TableHost {
    mapped: NonNull<u8>,
    mapped_len: usize,
    tables: NonNull<Table>,
    metas: Vec<TableMeta>,
    free: RefCell<Vec<u32>>,
    /// How often each page is mapped. Atomic although there is one thread: whoever maps has a shared reference.
    small: Vec<AtomicU32>,
    large: Vec<AtomicU32>,
    /// Pages for copies: small ones from this address on.
    spare_from: u64,
    spare: RefCell<Vec<u32>>,
    charged: Cell<Charge>,
    asked: Cell<Asked>,
}

impl TableHost {
    /// Makes room for `tables` tables, `pages` pages of 4 KiB and of 2 MiB each, and for `copies` small ones.
    pub(crate) fn new(tables: usize, pages: usize, copies: usize) -> Result<Self, TableError> {
        Self::map(tables, pages, copies).map_err(|source| TableError::Machine { tables, pages, source })
    }

    fn map(tables: usize, pages: usize, copies: usize) -> Result<Self, PlaceError> {
        let len = tables * size_of::<Table>();
        let mapped_len = len + ALIGN;
        // SAFETY: no address is asked for, so the kernel chooses one where nothing is mapped.
        let mapped = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapped_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let failed = |source: io::Error| PlaceError::Map { len: mapped_len, source };
        let mapped = mapped.map_err(|errno| failed(errno.into()))?.cast::<u8>();
        let skipped = mapped.align_offset(ALIGN);
        let start = mapped.wrapping_add(skipped);
        // SAFETY: the range lies in the new mapping, whose bytes nobody uses yet.
        let advised = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        // If the kernel has no huge pages, all contestants do without.
        let _ = advised;
        // The peers find tables by address only.
        let _ = start.expose_provenance();
        let not_available = || failed(io::ErrorKind::AddrNotAvailable.into());
        let counts = |count: usize| std::iter::repeat_with(|| AtomicU32::new(0)).take(count).collect::<Vec<_>>();
        Ok(Self {
            mapped: NonNull::new(mapped).ok_or_else(not_available)?,
            mapped_len,
            tables: NonNull::new(start.cast()).ok_or_else(not_available)?,
            metas: std::iter::repeat_with(TableMeta::new).take(tables).collect(),
            free: RefCell::new((0..tables as u32).rev().collect()),
            small: counts(pages + copies),
            large: counts(pages),
            spare_from: Self::page(PageSize::Small, pages as u64).address(),
            spare: RefCell::new((pages as u32..(pages + copies) as u32).collect()),
            charged: Cell::default(),
            asked: Cell::default(),
        })
    }

    /// The page with this number.
    pub(crate) fn page(size: PageSize, number: u64) -> Frame {
        Frame::containing(PAGES + number * size.bytes())
    }

    /// Gives each of these pages one reference, which mapping takes over.
    pub(crate) fn give(&self, size: PageSize, pages: Range<usize>) {
        let counts = if size == PageSize::Small { &self.small } else { &self.large };
        for count in &counts[pages] {
            // Relaxed: nobody else has a reference.
            count.store(1, Ordering::Relaxed);
        }
    }

    /// References to all pages.
    pub(crate) fn references(&self) -> u64 {
        self.small.iter().chain(&self.large).map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    /// Tables that are allocated.
    pub(crate) fn live_tables(&self) -> usize {
        self.metas.len() - self.free.borrow().len()
    }

    /// What was asked for so far.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> Asked {
        self.asked.get()
    }

    fn count(&self, change: impl FnOnce(&mut Asked)) {
        let mut asked = self.asked.get();
        change(&mut asked);
        self.asked.set(asked);
    }

    /// Returns memory for a table, with whatever bytes it has.
    pub(super) fn take_table(&self) -> Option<NonNull<Table>> {
        let number = self.free.borrow_mut().pop()?;
        self.count(|asked| asked.tables += 1);
        // SAFETY: by invariant 2 it is the number of a table, which by invariant 1 lies in the mapping.
        Some(unsafe { self.tables.add(number as usize) })
    }

    /// Takes back the memory of a table, which nobody may use any more.
    pub(super) fn give_table(&self, address: u64) {
        self.free.borrow_mut().push(self.number(address) as u32);
    }

    fn number(&self, address: u64) -> usize {
        (address as usize - self.tables.addr().get()) / size_of::<Table>()
    }

    #[cold]
    fn give_copy(&self, page: Page) {
        self.spare.borrow_mut().push(((page.frame.address() - PAGES) / PAGE) as u32);
    }

    #[inline]
    fn counter(&self, page: Page) -> &AtomicU32 {
        let number = |size: PageSize| ((page.frame.address() - PAGES) / size.bytes()) as usize;
        match page.size {
            PageSize::Small => &self.small[number(PageSize::Small)],
            PageSize::Large | PageSize::Giant => &self.large[number(PageSize::Large)],
        }
    }
}

impl Drop for TableHost {
    fn drop(&mut self) {
        // SAFETY: by invariant 1 the mapping is ours; whoever had tables in it has borrowed this value, or counted it.
        let unmapped = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
        debug_assert_eq!(unmapped, Ok(()), "a whole mapping can be unmapped");
    }
}

/// [`AddressSpace::map`] of a host's pages.
pub(crate) fn map_pages<F: Format>(
    space: &AddressSpace<F, &TableHost>,
    range: Range<VirtAddr>,
    first: Frame,
    attributes: Attributes,
    sizes: PageSizes,
) -> Result<(), MapError> {
    // SAFETY: 1, 2. pages have counts and no bytes, and no CPU loads the tables.
    unsafe { space.map(range, first, attributes, sizes) }
}

/// [`CursorMut::map`] of a host's page.
pub(crate) fn map_next<F: Format>(
    cursor: &mut CursorMut<'_, F, &TableHost>,
    frame: Frame,
    size: PageSize,
    attributes: Attributes,
) -> Result<(), CursorMapError> {
    // SAFETY: 1, 2. as for `map_pages`.
    unsafe { cursor.map(frame, size, attributes) }
}

// SAFETY: 1, 2. by the invariants of `TableHost`, whose array never moves; meta data are reset. 3. no CPU has
// translations: nothing loads the tables. 4. pages have no bytes, and each spare one is handed out once until it is
// given back. 6. counts fall with Release, and are read with Acquire.
unsafe impl Machine for &TableHost {
    type Pending = ();

    fn allocate_table(&self, _node: Node) -> Option<Frame> {
        let table = self.take_table()?;
        let address = table.addr().get() as u64;
        self.metas[self.number(address)].reset();
        // SAFETY: the table was free, so that nobody refers to its bytes, and it lies in the mapping.
        unsafe { table.write_bytes(0, 1) };
        Some(Frame::containing(address))
    }

    fn free_tables(&self) -> usize {
        self.free.borrow().len()
    }

    unsafe fn free_table(&self, table: Frame) {
        self.give_table(table.address());
    }

    unsafe fn table(&self, table: Frame) -> &Table {
        let offset = table.address() as usize - self.tables.addr().get();
        // SAFETY: the caller's table is allocated (1.), hence in the array.
        let table = unsafe { self.tables.byte_add(offset) };
        // SAFETY: it is aligned, was zeroed when it was allocated, and entries are atomic.
        unsafe { table.as_ref() }
    }

    unsafe fn meta(&self, table: Frame) -> &TableMeta {
        &self.metas[self.number(table.address())]
    }

    fn retain(&self, page: Page) {
        // Relaxed: whoever retains a page has a reference to it.
        self.counter(page).fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn release(&self, page: Page) {
        let counter = self.counter(page);
        // Acquire, partner: the Release below. Forbids that a page is used again before others have left it. One
        // reference is the caller's, and nobody else can add to it.
        if counter.load(Ordering::Acquire) == 1 {
            counter.store(0, Ordering::Relaxed);
        } else if counter.fetch_sub(1, Ordering::AcqRel) != 1 {
            // Release, partner: the Acquire above; and Acquire, for whoever frees the page here.
            return;
        }
        if page.size == PageSize::Small && page.frame.address() >= self.spare_from {
            self.give_copy(page);
        }
    }

    fn is_exclusive(&self, page: Page) -> bool {
        // Acquire, partner: the Release in `release`. Forbids that a page is written before others have left it.
        self.counter(page).load(Ordering::Acquire) == 1
    }

    fn copy(&self, page: Page, _node: Node) -> Option<Frame> {
        if page.size != PageSize::Small {
            return None;
        }
        let number = self.spare.borrow_mut().pop()?;
        self.count(|asked| asked.copies += 1);
        // Relaxed: nobody else has a reference.
        self.small[number as usize].store(1, Ordering::Relaxed);
        Some(TableHost::page(PageSize::Small, number.into()))
    }

    fn pin(&self, _page: Page) {}

    fn unpin(&self, _page: Page) {}

    fn is_pinned(&self, _page: Page) -> bool {
        false
    }

    fn split(&self, page: Page) {
        self.counter(page).store(0, Ordering::Relaxed);
        let first = ((page.frame.address() - PAGES) / PAGE) as usize;
        let parts = (page.size.bytes() / PAGE) as usize;
        self.give(PageSize::Small, first..first + parts);
    }

    fn merge(&self, _page: Page) -> bool {
        false
    }

    fn dispatch(&self, _request: FlushRequest<'_>) {
        self.count(|asked| asked.flushes += 1);
    }

    fn wait(&self, (): ()) {}

    fn charge(&self, _space: SpaceId, charge: Charge) {
        let sum = self.charged.get();
        self.charged.set(Charge { pages: sum.pages + charge.pages, tables: sum.tables + charge.tables });
    }
}
