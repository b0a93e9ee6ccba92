//! The machine as address spaces see it.

use core::sync::atomic::{AtomicI64, Ordering, fence};

use palimpsest_paging::{Charge, FlushRequest, Frame, Machine, Node, PAGE, Page, PageSize, SpaceId, Table, TableMeta};

use super::arena::{Records, TABLE};
use super::{alias, copy_frames, replicas};
use crate::arch::mmu;
use crate::counts::{COUNTS, add};
use crate::{cpu, flush};

/// The machine; its state is static.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory;

/// Number of spaces that are charged separately.
const CHARGED: usize = 1024;

static PAGES: [AtomicI64; CHARGED] = [const { AtomicI64::new(0) }; CHARGED];
static TABLES: [AtomicI64; CHARGED] = [const { AtomicI64::new(0) }; CHARGED];

/// Returns what a space is charged with.
pub(crate) fn charged(space: SpaceId) -> Charge {
    let index = space.0 as usize % CHARGED;
    // Relaxed: statistics.
    Charge { pages: PAGES[index].load(Ordering::Relaxed), tables: TABLES[index].load(Ordering::Relaxed) }
}

/// Returns what all spaces but the kernel's are charged with: nothing once all are gone.
pub(crate) fn balance() -> Charge {
    (0..CHARGED as u64).map(SpaceId).filter(|space| *space != crate::kernel_space::ID).map(charged).fold(
        Charge::default(),
        |sum, charge| Charge { pages: sum.pages + charge.pages.abs(), tables: sum.tables + charge.tables.abs() },
    )
}

/// Returns the frames of a page that are counted: not those of the physical map's gigabytes, of the image, or of
/// devices.
fn counted(page: Page) -> impl Iterator<Item = (Frame, &'static super::arena::Record)> {
    let bytes = if page.size == PageSize::Giant { 0 } else { page.size.bytes() };
    (0..bytes / PAGE)
        .map(move |number| page.frame.offset(number * PAGE))
        .map_while(|frame| Some((frame, Records::of(frame)?)))
}

// SAFETY: 1. arenas zero a frame and hand it out once, until it is given back; meta data are reset. 2. Tables are
// reached through the physical map, and each has its own meta data. 3. See `flush`. 4. A copy is a frame allocated just
// now. 5. A replica is such a copy, or the one that all spaces share of a constant frame of the image: nobody writes
// those through an entry, and a change of the kernel's text writes all of them. 6. Counts fall with Release and are
// read with Acquire; those of replicas, which nobody writes in place, under a lock.
unsafe impl Machine for Memory {
    type Pending = flush::Pending;

    fn allocate_table(&self, node: Node) -> Option<Frame> {
        let table = Records::allocate(node, TABLE)?;
        Records::meta(table).reset();
        add(&COUNTS.tables_allocated, 1);
        Some(table)
    }

    fn free_tables(&self) -> usize {
        Records::free_count()
    }

    unsafe fn free_table(&self, table: Frame) {
        let Some(record) = Records::of(table) else { panic!("{table} is no table") };
        // Relaxed: nobody refers to it any more.
        let before = record.references.swap(0, Ordering::Relaxed);
        assert_eq!(before, TABLE, "{table} is given back, and is no table");
        Records::free(table);
        add(&COUNTS.tables_freed, 1);
    }

    unsafe fn table(&self, table: Frame) -> &Table {
        #[expect(clippy::cast_ptr_alignment, reason = "the frame is a multiple of a page")]
        let entries = alias(table.address()).cast::<Table>();
        // SAFETY: mapped by the physical map, allocated (1), and atomics.
        unsafe { &*entries }
    }

    unsafe fn meta(&self, table: Frame) -> &TableMeta {
        Records::meta(table)
    }

    fn retain(&self, page: Page) {
        for (frame, record) in counted(page) {
            // Relaxed: the caller has a reference.
            let before = record.references.fetch_add(1, Ordering::Relaxed);
            assert!(before > 0 && before != TABLE, "{frame} is mapped and is no page");
        }
    }

    fn release(&self, page: Page) {
        for (frame, record) in counted(page) {
            if replicas::release(frame) {
                continue;
            }
            // AcqRel, partner: the same in other spaces' releases, and the Acquire in `is_exclusive`. Forbids reusing a
            // frame, or writing it in place, before another space's last access.
            let before = record.references.fetch_sub(1, Ordering::AcqRel);
            assert!(before > 0 && before != TABLE, "{frame} is given back, and is no page");
            if before == 1 {
                // Relaxed: nobody else refers to it.
                assert_eq!(record.pins.load(Ordering::Relaxed), 0, "{frame} is given back while it is pinned");
                Records::free(frame);
                add(&COUNTS.pages_freed, 1);
            }
        }
    }

    fn is_exclusive(&self, page: Page) -> bool {
        let mut frames = 0;
        // Acquire, partner: the AcqRel in `release`.
        counted(page).all(|(_, record)| {
            frames += 1;
            record.references.load(Ordering::Acquire) == 1
        }) && frames > 0
    }

    fn copy(&self, page: Page, node: Node) -> Option<Frame> {
        if page.size != PageSize::Small {
            // Arenas hand out single frames.
            return None;
        }
        let copy = Records::allocate(node, 1)?;
        // SAFETY: 1. allocated just now; one frame each.
        unsafe { copy_frames(page.frame, copy, PAGE) };
        add(&COUNTS.pages_copied, 1);
        Some(copy)
    }

    fn replica(&self, page: Page, node: Node) -> Option<Frame> {
        match replicas::index(page.frame) {
            Some(index) if page.size == PageSize::Small => replicas::get(index, page.frame, node),
            // The packs of each node exist before anybody asks.
            _ => crate::packs::copy(page, node).or_else(|| self.copy(page, node)),
        }
    }

    fn pin(&self, page: Page) {
        for (_, record) in counted(page) {
            // Relaxed: read under the same space's lock.
            record.pins.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unpin(&self, page: Page) {
        for (frame, record) in counted(page) {
            // Relaxed: as above.
            assert!(record.pins.fetch_sub(1, Ordering::Relaxed) > 0, "{frame} is not pinned");
        }
    }

    fn is_pinned(&self, page: Page) -> bool {
        // Relaxed: as above.
        counted(page).any(|(_, record)| record.pins.load(Ordering::Relaxed) > 0)
    }

    fn split(&self, _page: Page) {
        // Frames are always counted one by one.
    }

    fn merge(&self, _page: Page) -> bool {
        true
    }

    fn dispatch(&self, request: FlushRequest<'_>) -> flush::Pending {
        // SeqCst, partner: the fence in `cpu::run_space`. Forbids that a CPU walks old entries of a space while this
        // CPU does not see that it runs the space.
        fence(Ordering::SeqCst);
        flush::dispatch(request)
    }

    fn wait(&self, pending: flush::Pending) {
        flush::wait(pending);
    }

    fn flush_here(&self, request: FlushRequest<'_>) {
        flush::here(&request);
    }

    fn entries_made(&self) {
        mmu::entries_made();
    }

    fn physical_end(&self) -> u64 {
        mmu::physical_end()
    }

    fn caller(&self) -> Option<core::num::NonZeroU64> {
        // Nothing preempts the kernel, and interrupts use no space.
        core::num::NonZeroU64::new(crate::arch::cpu::number() as u64 + 1)
    }

    fn charge(&self, space: SpaceId, charge: Charge) {
        let index = space.0 as usize % CHARGED;
        // Relaxed: statistics.
        PAGES[index].fetch_add(charge.pages, Ordering::Relaxed);
        TABLES[index].fetch_add(charge.tables, Ordering::Relaxed);
    }

    fn relax(&self) {
        cpu::relax();
    }
}
