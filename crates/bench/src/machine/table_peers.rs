//! The peers of page tables, `x86_64` and `page_table_multiarch`, over the tables of a [`TableHost`].
//!
//! Both find tables by adding an offset to a physical address. The offset is zero here.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

use memory_addr::{PhysAddr, VirtAddr as MultiAddr};
use page_table_multiarch::{MappingFlags, PageSize as MultiSize, PagingError, PagingHandler};
use palimpsest_paging::{PAGE, PageSize, Table};
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame, Size2MiB, Size4KiB,
};
use x86_64::{PhysAddr as CratePhys, VirtAddr as CrateVirt};

use super::TableHost;
use crate::TableError;
use crate::arch::MultiTable;

fn multi(error: PagingError) -> TableError {
    TableError::Peer { peer: "page_table_multiarch", reason: format!("{error:?}") }
}

fn refused(error: &dyn std::fmt::Debug) -> TableError {
    TableError::Peer { peer: "x86_64", reason: format!("{error:?}") }
}

/// An [`OffsetPageTable`] with a root of its own.
///
/// # Invariants
///
/// 1. `root` was taken from `host`, and so were all tables below it, which nobody else uses.
pub(crate) struct CrateTable {
    host: Rc<TableHost>,
    root: NonNull<PageTable>,
}

struct Frames<'h>(&'h TableHost);

// SAFETY: a table taken from the host belongs to nobody else.
unsafe impl FrameAllocator<Size4KiB> for Frames<'_> {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let table = self.0.take_table()?;
        Some(PhysFrame::containing_address(CratePhys::new(table.addr().get() as u64)))
    }
}

const FLAGS: PageTableFlags = PageTableFlags::PRESENT
    .union(PageTableFlags::WRITABLE)
    .union(PageTableFlags::USER_ACCESSIBLE)
    .union(PageTableFlags::NO_EXECUTE);

impl CrateTable {
    /// With an empty root.
    pub(crate) fn new(host: &Rc<TableHost>) -> Result<Self, TableError> {
        let root = host.take_table().ok_or_else(|| refused(&"no table is left"))?;
        // SAFETY: nobody else uses a table that was just taken.
        unsafe { root.write_bytes(0, 1) };
        Ok(Self { host: Rc::clone(host), root: root.cast() })
    }

    fn with<T>(&mut self, run: impl FnOnce(&mut OffsetPageTable<'_>, &mut Frames<'_>) -> T) -> T {
        // SAFETY: by invariant 1 nobody else uses the root, and it is a table: zeroed, or written by the crate.
        let root = unsafe { self.root.as_mut() };
        // SAFETY: tables have their physical addresses in this process (`TableHost`), and by invariant 1 the root leads
        // to tables alone.
        let mut table = unsafe { OffsetPageTable::new(root, CrateVirt::zero()) };
        run(&mut table, &mut Frames(&self.host))
    }

    /// Maps page by page.
    pub(crate) fn map(&mut self, range: Range<u64>, first: u64, size: PageSize) -> Result<(), TableError> {
        self.with(|table, frames| {
            for start in range.clone().step_by(size.bytes() as usize) {
                let physical = CratePhys::new(first + (start - range.start));
                let start = CrateVirt::new(start);
                if size == PageSize::Small {
                    let (page, frame) =
                        (Page::<Size4KiB>::containing_address(start), PhysFrame::containing_address(physical));
                    // SAFETY: no CPU loads these tables.
                    unsafe { table.map_to(page, frame, FLAGS, frames) }.map_err(|error| refused(&error))?.ignore();
                } else {
                    let (page, frame) =
                        (Page::<Size2MiB>::containing_address(start), PhysFrame::containing_address(physical));
                    // SAFETY: no CPU loads these tables.
                    unsafe { table.map_to(page, frame, FLAGS, frames) }.map_err(|error| refused(&error))?.ignore();
                }
            }
            Ok(())
        })
    }

    /// Unmaps page by page. Tables stay.
    pub(crate) fn unmap(&mut self, range: Range<u64>, size: PageSize) -> Result<u64, TableError> {
        self.with(|table, _| {
            let mut sum = 0_u64;
            for start in range.step_by(size.bytes() as usize).map(CrateVirt::new) {
                let physical = if size == PageSize::Small {
                    let unmapped = table.unmap(Page::<Size4KiB>::containing_address(start));
                    let (frame, flush) = unmapped.map_err(|error| refused(&error))?;
                    flush.ignore();
                    frame.start_address()
                } else {
                    let unmapped = table.unmap(Page::<Size2MiB>::containing_address(start));
                    let (frame, flush) = unmapped.map_err(|error| refused(&error))?;
                    flush.ignore();
                    frame.start_address()
                };
                sum = sum.wrapping_add(physical.as_u64());
            }
            Ok(sum)
        })
    }

    /// Returns the sum of all frames' addresses, page by page.
    pub(crate) fn query(&mut self, range: Range<u64>, size: PageSize) -> Result<u64, TableError> {
        self.with(|table, _| {
            let mut sum = 0_u64;
            for start in range.step_by(size.bytes() as usize).map(CrateVirt::new) {
                let physical = if size == PageSize::Small {
                    let frame = table.translate_page(Page::<Size4KiB>::containing_address(start));
                    frame.map_err(|error| refused(&error))?.start_address()
                } else {
                    let frame = table.translate_page(Page::<Size2MiB>::containing_address(start));
                    frame.map_err(|error| refused(&error))?.start_address()
                };
                sum = sum.wrapping_add(physical.as_u64());
            }
            Ok(sum)
        })
    }
}

impl Drop for CrateTable {
    fn drop(&mut self) {
        // The crate can give empty tables back. Here all are given back.
        fn give_back(host: &TableHost, table: &PageTable, level: u8) {
            for entry in table.iter().filter(|entry| level > 1 && entry.flags().contains(PageTableFlags::PRESENT)) {
                if !entry.flags().contains(PageTableFlags::HUGE_PAGE) {
                    let below = entry.addr().as_u64();
                    // SAFETY: by the invariant of `CrateTable` it is a table, in host memory at its physical address.
                    let table = unsafe { &*std::ptr::with_exposed_provenance::<PageTable>(below as usize) };
                    give_back(host, table, level - 1);
                    host.give_table(below);
                }
            }
        }
        // SAFETY: by invariant 1 nobody else uses the root.
        let root = unsafe { self.root.as_ref() };
        give_back(&self.host, root, 4);
        self.host.give_table(self.root.addr().get() as u64);
    }
}

thread_local! {
    /// Where [`MultiFrames`], which has no `self`, takes tables.
    static HOST: RefCell<Option<Rc<TableHost>>> = const { RefCell::new(None) };
}

/// Memory for `page_table_multiarch`.
#[derive(Debug)]
pub(crate) enum MultiFrames {}

impl PagingHandler for MultiFrames {
    fn alloc_frames(num: usize, align: usize) -> Option<PhysAddr> {
        if num != 1 || align as u64 > PAGE {
            return None;
        }
        let table = HOST.with_borrow(|host| host.as_ref()?.take_table())?;
        Some(PhysAddr::from(table.addr().get()))
    }

    fn dealloc_frames(paddr: PhysAddr, _num: usize) {
        HOST.with_borrow(|host| {
            if let Some(host) = host {
                host.give_table(paddr.as_usize() as u64);
            }
        });
    }

    fn phys_to_virt(paddr: PhysAddr) -> MultiAddr {
        MultiAddr::from(paddr.as_usize())
    }
}

const _: () = assert!(size_of::<Table>() == PAGE as usize);

/// A table of `page_table_multiarch`, in this machine's format.
pub(crate) struct MultiArch {
    table: MultiTable<MultiFrames>,
}

const MULTI_FLAGS: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE).union(MappingFlags::USER);

impl MultiArch {
    /// Makes one with an empty root. All tables of a thread come from the host that was named last.
    pub(crate) fn new(host: &Rc<TableHost>) -> Result<Self, TableError> {
        HOST.set(Some(Rc::clone(host)));
        Ok(Self { table: MultiTable::try_new().map_err(multi)? })
    }

    /// Maps the range with one call.
    pub(crate) fn map(&mut self, range: Range<u64>, first: u64, size: PageSize) -> Result<(), TableError> {
        let start = range.start as usize;
        let physical = |address: MultiAddr| PhysAddr::from(first as usize + (address.as_usize() - start));
        let len = (range.end - range.start) as usize;
        let mapped = self.table.cursor().map_region(start.into(), physical, len, MULTI_FLAGS, size != PageSize::Small);
        mapped.map_err(multi)
    }

    /// Unmaps the range with one call. Tables stay.
    pub(crate) fn unmap(&mut self, range: Range<u64>) -> Result<(), TableError> {
        let len = (range.end - range.start) as usize;
        self.table.cursor().unmap_region((range.start as usize).into(), len).map_err(multi)
    }

    /// Returns the sum of all frames' addresses, page by page.
    pub(crate) fn query(&mut self, range: Range<u64>, size: PageSize) -> Result<u64, TableError> {
        let mut sum = 0_u64;
        for start in range.step_by(size.bytes() as usize) {
            let (frame, _, found) = self.table.query((start as usize).into()).map_err(multi)?;
            debug_assert_eq!(found == MultiSize::Size4K, size == PageSize::Small);
            sum = sum.wrapping_add(frame.as_usize() as u64);
        }
        Ok(sum)
    }
}
