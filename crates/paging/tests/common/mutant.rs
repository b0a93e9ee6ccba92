//! A machine that makes one mistake, which the tests must find, or that shows a test what an operation asks of it.

use palimpsest_paging::sim::trial::Host;
use palimpsest_paging::sim::{Computer, Sent};
use palimpsest_paging::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// Flushes do nothing.
    NoFlush,
    /// A flush of ranges leaves the last one out.
    LastRange,
    /// Waiting returns at once.
    NoWait,
    /// Every page counts as exclusive.
    AlwaysExclusive,
    /// References are not counted when a table is copied or a space forked.
    NoRetain,
    /// References are not given back.
    NoRelease,
    /// Pins are ignored.
    NoPins,
    /// A copy has different bytes.
    EmptyCopy,
    /// Every flush leaves the caches of upper levels.
    LeavesOnly,
}

/// An operation's request to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Retain,
    Release,
    Copy,
    Dispatch,
    FreeTable,
    Made,
    FlushHere(FlushDepth),
}

#[derive(Clone, Copy)]
pub(crate) struct Mutant<'c> {
    pub(crate) computer: &'c Computer,
    pub(crate) mistake: Option<Mistake>,
    /// Called before the machine does it.
    pub(crate) watch: Option<&'c dyn Fn(Event)>,
}

impl Mutant<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn sees(&self, event: Event) {
        if let Some(watch) = self.watch {
            watch(event);
        }
    }
}

// SAFETY: 1. the computer is one in software.
unsafe impl Host for Mutant<'_> {
    fn computer(&self) -> &Computer {
        self.computer
    }
}

// SAFETY: none: it breaks the contract on purpose. The computer notes each use of free memory, and keeps that memory
// allocated.
unsafe impl Machine for Mutant<'_> {
    type Pending = Option<Sent>;

    fn allocate_table(&self, node: Node) -> Option<Frame> {
        self.computer.allocate_table(node)
    }

    fn free_tables(&self) -> usize {
        (&self.computer).free_tables()
    }

    unsafe fn free_table(&self, table: Frame) {
        self.sees(Event::FreeTable);
        // SAFETY: 1. as the caller's.
        unsafe { (&self.computer).free_table(table) }
    }

    unsafe fn table(&self, table: Frame) -> &Table {
        // SAFETY: 1. as the caller's.
        unsafe { (&self.computer).table(table) }
    }

    unsafe fn meta(&self, table: Frame) -> &TableMeta {
        // SAFETY: 1. as the caller's.
        unsafe { (&self.computer).meta(table) }
    }

    fn retain(&self, page: Page) {
        self.sees(Event::Retain);
        if !self.makes(Mistake::NoRetain) {
            (&self.computer).retain(page);
        }
    }

    fn release(&self, page: Page) {
        self.sees(Event::Release);
        if !self.makes(Mistake::NoRelease) {
            (&self.computer).release(page);
        }
    }

    fn is_exclusive(&self, page: Page) -> bool {
        self.makes(Mistake::AlwaysExclusive) || (&self.computer).is_exclusive(page)
    }

    fn copy(&self, page: Page, node: Node) -> Option<Frame> {
        self.sees(Event::Copy);
        let copy = (&self.computer).copy(page, node)?;
        if self.makes(Mistake::EmptyCopy) {
            self.computer.set_content(copy, 0);
        }
        Some(copy)
    }

    fn replica(&self, page: Page, node: Node) -> Option<Frame> {
        self.sees(Event::Copy);
        (&self.computer).replica(page, node)
    }

    fn distance(&self, from: Node, to: Node) -> u32 {
        (&self.computer).distance(from, to)
    }

    fn pin(&self, page: Page) {
        (&self.computer).pin(page);
    }

    fn unpin(&self, page: Page) {
        (&self.computer).unpin(page);
    }

    fn is_pinned(&self, page: Page) -> bool {
        !self.makes(Mistake::NoPins) && (&self.computer).is_pinned(page)
    }

    fn split(&self, page: Page) {
        (&self.computer).split(page);
    }

    fn merge(&self, page: Page) -> bool {
        (&self.computer).merge(page)
    }

    fn dispatch(&self, request: FlushRequest<'_>) -> Option<Sent> {
        self.sees(Event::Dispatch);
        match request.what {
            _ if self.makes(Mistake::NoFlush) => None,
            FlushRanges::Some([most @ .., _]) if self.makes(Mistake::LastRange) => {
                let what = FlushRanges::Some(most);
                Some((&self.computer).dispatch(FlushRequest { what, ..request }))
            }
            _ if self.makes(Mistake::LeavesOnly) => {
                let depth = FlushDepth::Leaves;
                Some((&self.computer).dispatch(FlushRequest { depth, ..request }))
            }
            _ => Some((&self.computer).dispatch(request)),
        }
    }

    fn wait(&self, pending: Option<Sent>) {
        if let Some(pending) = pending
            && !self.makes(Mistake::NoWait)
        {
            (&self.computer).wait(pending);
        }
    }

    fn caller(&self) -> Option<std::num::NonZeroU64> {
        (&self.computer).caller()
    }

    fn flush_here(&self, request: FlushRequest<'_>) {
        self.sees(Event::FlushHere(request.depth));
        (&self.computer).flush_here(request);
    }

    fn entries_made(&self) {
        self.sees(Event::Made);
    }

    fn physical_end(&self) -> u64 {
        (&self.computer).physical_end()
    }

    fn charge(&self, space: SpaceId, charge: Charge) {
        (&self.computer).charge(space, charge);
    }
}
