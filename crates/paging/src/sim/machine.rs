//! The computer, as an address space sees it.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::cpu::Ranges;
use super::tables::Tables;
use super::{Computer, Delivery, Failure, lock, pages, tables};
use crate::address::{Frame, PAGE, VirtAddr};
use crate::id::SpaceId;
use crate::machine::{Charge, FlushDepth, FlushRanges, FlushRequest, Machine, Node, Page, Table};
use crate::meta::TableMeta;

thread_local! {
    /// The CPU that faulted last.
    pub(super) static FAULTED: Cell<usize> = const { Cell::new(0) };
}

fn ranges_of(request: &FlushRequest<'_>) -> Ranges {
    match request.what {
        FlushRanges::All => Ranges::All,
        FlushRanges::Some(ranges) if request.depth == FlushDepth::Leaves => Ranges::Leaves(ranges.to_vec()),
        FlushRanges::Some(ranges) => Ranges::Walks(ranges.to_vec()),
    }
}

/// A flush that some CPUs have not executed yet: one bit for each.
#[derive(Debug)]
pub struct Sent(u64);

impl Computer {
    /// Returns whether memory may be allocated; tests can forbid that, see [`refuse`](Self::refuse).
    fn may_allocate(&self) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        asked < self.refused_from.load(Ordering::Relaxed) || asked >= self.refused_until.load(Ordering::Relaxed)
    }

    /// Notes a failure if a CPU holds a translation to what is freed.
    fn expect_forgotten(&self, freed: &[Frame]) {
        if freed.is_empty() {
            return;
        }
        for (number, cpu) in self.cpus.iter().enumerate() {
            let cpu = lock(cpu);
            for entry in &cpu.tlb {
                let range = entry.frame..entry.frame + entry.level.entry_bytes();
                if let Some(&frame) = freed.iter().find(|frame| range.contains(&frame.address())) {
                    self.failed(Failure::EarlyFree { cpu: number, frame });
                }
            }
        }
    }

    pub(super) fn note_pages(&self, result: Result<(), pages::Wrong>) {
        match result {
            Ok(()) => {}
            Err(pages::Wrong::Free(frame)) => self.failed(Failure::FreeFrame { frame }),
            Err(pages::Wrong::NotPinned(frame)) => self.failed(Failure::Count { frame }),
        }
    }

    /// Returns the table's memory; notes a failure if it is not allocated.
    pub(super) fn table_at(&self, frame: Frame) -> (&Table, &TableMeta) {
        let Some(node) = Tables::node_of(frame).and_then(|node| self.tables.get(node)) else {
            self.failed(Failure::FreeTable { table: frame });
            // A table that was never handed out replaces it, so that the failure can be reported.
            let (table, meta, _) = self.tables[0].get(Frame::default());
            return (table, meta);
        };
        let (table, meta, state) = node.get(frame);
        if state.is_err() {
            self.failed(Failure::FreeTable { table: frame });
        }
        (table, meta)
    }
}

// SAFETY: 1, 2. `Tables` hands each slot out once until it is freed, zeroed and with its meta data reset, and never
// moves it. 3. `wait` makes every CPU that ran the space when the flush was sent take its interrupts; a CPU that
// switches forgets everything. 4. `Pages::copy` allocates. 5. As 4.
// 6. Counts are under a lock.
unsafe impl Machine for &Computer {
    type Pending = Sent;

    fn allocate_table(&self, node: Node) -> Option<Frame> {
        if !self.may_allocate() {
            return None;
        }
        let count = self.tables.len();
        let (frame, state) =
            (0..count).find_map(|turn| self.tables[(usize::from(node.0) + turn) % count].allocate())?;
        if state == Err(tables::Wrong::Written) {
            self.failed(Failure::FreeTable { table: frame });
        }
        self.counts.tables_allocated.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }

    fn free_tables(&self) -> usize {
        self.tables.iter().map(Tables::free_count).sum()
    }

    unsafe fn free_table(&self, table: Frame) {
        for (number, cpu) in self.cpus.iter().enumerate() {
            let cpu = lock(cpu);
            let walking = cpu.walk.and_then(|walk| walk.at).is_some_and(|part| part.table == table);
            let root = cpu.running.is_some_and(|(_, root)| root == table);
            if root || walking || cpu.parts.iter().any(|part| part.table == table) {
                self.failed(Failure::EarlyFree { cpu: number, frame: table });
            }
        }
        let node = Tables::node_of(table).and_then(|node| self.tables.get(node));
        if node.is_none_or(|node| node.free(table).is_err()) {
            self.failed(Failure::FreeTable { table });
        }
        self.counts.tables_freed.fetch_add(1, Ordering::Relaxed);
    }

    unsafe fn table(&self, table: Frame) -> &Table {
        self.table_at(table).0
    }

    unsafe fn meta(&self, table: Frame) -> &TableMeta {
        self.table_at(table).1
    }

    fn retain(&self, page: Page) {
        let result = lock(&self.pages).retain(page);
        self.note_pages(result);
    }

    fn release(&self, page: Page) {
        let mut freed = Vec::new();
        let result = lock(&self.pages).release(page, &mut freed);
        self.note_pages(result);
        self.expect_forgotten(&freed);
    }

    fn is_exclusive(&self, page: Page) -> bool {
        page.frame.address() < pages::DEVICE && lock(&self.pages).all(page, |references, _| references == 1)
    }

    fn copy(&self, page: Page, node: Node) -> Option<Frame> {
        if !self.may_allocate() {
            return None;
        }
        let copy = lock(&self.pages).copy(page, node)?;
        self.counts.pages_copied.fetch_add(1, Ordering::Relaxed);
        Some(copy)
    }

    fn replica(&self, page: Page, node: Node) -> Option<Frame> {
        if pages::is_device(page) { None } else { self.copy(page, node) }
    }

    fn distance(&self, from: Node, to: Node) -> u32 {
        let nodes = self.tables.len();
        ((usize::from(to.0) + nodes - usize::from(from.0) % nodes) % nodes) as u32
    }

    fn pin(&self, page: Page) {
        let result = lock(&self.pages).pin(page);
        self.note_pages(result);
    }

    fn unpin(&self, page: Page) {
        let mut freed = Vec::new();
        let result = lock(&self.pages).unpin(page, &mut freed);
        self.note_pages(result);
        self.expect_forgotten(&freed);
    }

    fn is_pinned(&self, page: Page) -> bool {
        page.frame.address() < pages::DEVICE && !lock(&self.pages).all(page, |_, pins| pins == 0)
    }

    fn split(&self, page: Page) {
        // Each part is counted separately anyway.
        let live = page.frame.address() >= pages::DEVICE || lock(&self.pages).all(page, |references, _| references > 0);
        if !live {
            self.failed(Failure::FreeFrame { frame: page.frame });
        }
    }

    fn merge(&self, page: Page) -> bool {
        page.frame.address() >= pages::DEVICE
            || lock(&self.pages).all(page, |references, pins| references == 1 && pins == 0)
    }

    fn dispatch(&self, request: FlushRequest<'_>) -> Sent {
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        let ranges = ranges_of(&request);
        if let Ranges::Walks(ranges) | Ranges::Leaves(ranges) = &ranges {
            let canonical = |address: u64| (self.mmu.is_valid)(VirtAddr(address));
            let is_bad = |range: &Range<VirtAddr>| {
                let whole = (range.start.0 | range.end.0) & (PAGE - 1) == 0 && range.start < range.end;
                !whole || !canonical(range.start.0) || !canonical(range.end.0 - 1)
            };
            for range in ranges.iter().filter(|range| is_bad(range)) {
                self.failed(Failure::Range { start: range.start, end: range.end });
            }
        }
        let mut sent = 0;
        for (number, cpu) in self.cpus.iter().enumerate() {
            let mut cpu = lock(cpu);
            if cpu.running.is_none_or(|(space, _)| space != request.space) {
                continue;
            }
            self.counts.interrupts.fetch_add(1, Ordering::Relaxed);
            sent |= 1 << number;
            cpu.inbox.push((request.space, ranges.clone()));
            if self.delivery == Delivery::AtOnce || self.delivery == Delivery::Random && self.coin() {
                cpu.take_interrupts();
            }
        }
        Sent(sent)
    }

    fn wait(&self, pending: Sent) {
        for (number, cpu) in self.cpus.iter().enumerate() {
            if pending.0 & 1 << number != 0 {
                lock(cpu).take_interrupts();
            }
        }
    }

    fn flush_here(&self, request: FlushRequest<'_>) {
        // The CPU whose fault this thread saw last.
        let here = FAULTED.get();
        let Some(cpu) = self.cpus.get(here) else { return };
        self.counts.local_flushes.fetch_add(1, Ordering::Relaxed);
        let mut cpu = lock(cpu);
        if cpu.running.is_some_and(|(space, _)| space == request.space) {
            cpu.forget(&ranges_of(&request));
        }
    }

    fn physical_end(&self) -> u64 {
        self.physical_end
    }

    fn charge(&self, space: SpaceId, charge: Charge) {
        let mut charges = lock(&self.charges);
        let sum = charges.entry(space).or_default();
        sum.pages += charge.pages;
        sum.tables += charge.tables;
    }

    fn caller(&self) -> Option<NonZeroU64> {
        thread_local!(static HERE: u8 = const { 0 });
        // An address that no other thread has.
        HERE.with(|here| NonZeroU64::new((&raw const *here).addr() as u64))
    }

    fn relax(&self) {
        std::thread::yield_now();
    }
}
