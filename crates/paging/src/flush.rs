//! Flush obligations: what must leave the TLBs before memory can be reused.
//!
//! An operation that removes translations returns a [`Flush`]. [Dispatching](Flush::dispatch) it sends out the
//! interrupts; [waiting](Flushing::wait) for the returned [`Flushing`] then releases the pages and tables that some CPU
//! might still reach. Dropping it does both at once, so that a flush is never forgotten, only slow.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use crate::address::{Frame, Level, VirtAddr};
use crate::deferred::Deferred;
use crate::format::{Entry, Format};
use crate::id::SpaceId;
use crate::machine::{FlushDepth, FlushRanges, FlushRequest, Machine, Node, Page};
use crate::primitive::AtomicU32;

/// Ranges that are kept separately; a flush of more covers the whole space.
const RANGES: usize = 16;

/// The number of a space's obligations whose translations may still be in TLBs.
#[derive(Debug, Default)]
pub(crate) struct Owed(AtomicU32);

impl Owed {
    /// Returns whether there is one besides `flush`. The caller holds the space's lock.
    pub(crate) fn any_beside<F: Format, M: Machine>(&self, flush: &Flush<'_, F, M>) -> bool {
        // Acquire, partner: the Release in `Flush::paid`. Forbids making an entry before the wait for the flush of its
        // previous contents. New obligations arise only under the space's lock.
        self.0.load(Ordering::Acquire) > u32::from(flush.owes)
    }
}

/// What the machine must be told ([`Machine::entries_made`]).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Nothing,
    /// Some entries became valid.
    Entries,
}

/// An obligation to flush.
#[must_use = "translations stay in TLBs, and memory is not released, until it is dispatched and waited for"]
pub struct Flush<'m, F: Format, M: Machine> {
    machine: &'m M,
    space: SpaceId,
    /// The node of memory for the list of deferred items.
    node: Node,
    ranges: ArrayVec<Range<VirtAddr>, RANGES>,
    depth: FlushDepth,
    everything: bool,
    owed: &'m Owed,
    /// Whether `owed` counts this obligation.
    owes: bool,
    /// Whether every flush covers everything, and there is always a last one.
    always: bool,
    /// Pages, and references to tables that others may share.
    deferred: Deferred,
    /// Trees of tables without other references, by level of their top, linked by
    /// [`TableMeta::link`](crate::TableMeta).
    trees: [Option<Frame>; 5],
    /// Whether entries became valid that the machine was not told of yet.
    made: Made,
    /// Flushes already done.
    done: usize,
    format: PhantomData<F>,
}

/// A flush that was sent out, and what is released when it has arrived.
#[must_use = "memory is not released until it is waited for"]
pub struct Flushing<'m, F: Format, M: Machine> {
    flush: Flush<'m, F, M>,
    pending: Option<M::Pending>,
}

impl<'m, F: Format, M: Machine> Flush<'m, F, M> {
    pub(crate) fn new(machine: &'m M, space: SpaceId, node: Node, owed: &'m Owed) -> Self {
        Self {
            machine,
            space,
            node,
            owed,
            owes: false,
            ranges: ArrayVec::new(),
            depth: FlushDepth::Leaves,
            everything: false,
            always: false,
            deferred: Deferred::default(),
            trees: [None; 5],
            made: Made::Nothing,
            done: 0,
            format: PhantomData,
        }
    }

    /// Returns whether there is nothing to flush.
    pub fn is_empty(&self) -> bool {
        !self.everything && self.ranges.is_empty()
    }

    /// Returns how many flushes the operation has already done, because it had to release more than it could note:
    /// eight runs of pages, and 256 more in each of up to eight tables.
    pub fn already_done(&self) -> usize {
        self.done
    }

    /// Sends the flush to the CPUs.
    pub fn dispatch(mut self) -> Flushing<'m, F, M> {
        self.always = false;
        self.tell_made();
        let pending = self.send();
        Flushing { flush: self, pending }
    }

    /// [Dispatches](Self::dispatch) and [waits](Flushing::wait).
    pub fn finish(mut self) {
        self.always = false;
        self.settle();
    }

    /// Notes that entries became valid.
    #[inline]
    pub(crate) fn note_made(&mut self) {
        self.made = Made::Entries;
    }

    fn tell_made(&mut self) {
        if core::mem::replace(&mut self.made, Made::Nothing) == Made::Entries {
            self.machine.entries_made();
        }
    }

    /// Notes that walks to these addresses may be in TLBs, in part or completely.
    pub(crate) fn note(&mut self, range: Range<VirtAddr>) {
        self.depth = FlushDepth::Tables;
        self.note_leaf(range);
    }

    /// Notes that entries of pages at these addresses may be in TLBs; no table on the way to them has changed.
    pub(crate) fn note_leaf(&mut self, range: Range<VirtAddr>) {
        if self.everything {
            return;
        }
        self.owe();
        if let Some(last) = self.ranges.last_mut()
            && last.end == range.start
        {
            last.end = range.end;
        } else if self.ranges.try_push(range).is_err() {
            self.note_everything();
        }
    }

    pub(crate) fn note_everything(&mut self) {
        self.owe();
        self.everything = true;
        self.depth = FlushDepth::Tables;
        self.ranges.clear();
    }

    /// Flushes the whole space for everything done until the dispatch.
    pub(crate) fn note_everything_always(&mut self) {
        self.note_everything();
        self.always = true;
    }

    fn owe(&mut self) {
        // Only such formats read the count.
        if F::BREAK_BEFORE_MAKE && !self.owes {
            self.owes = true;
            // Relaxed: under the space's lock, like its readers.
            self.owed.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that the flush has reached all CPUs.
    fn paid(&mut self) {
        if F::BREAK_BEFORE_MAKE && core::mem::replace(&mut self.owes, self.always) && !self.always {
            // Release, partner: the Acquire in `Owed::any_beside`.
            self.owed.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Releases a page after the flush.
    #[inline]
    pub(crate) fn defer_page(&mut self, page: Page) {
        while self.deferred.add_page(self.machine, self.node, page).is_err() {
            self.settle();
        }
    }

    /// Drops a reference to a table after the flush, and with the last one also everything below.
    pub(crate) fn defer_table(&mut self, table: Frame, level: Level) {
        // SAFETY: the caller hands over a reference.
        let meta = unsafe { self.machine.meta(table) };
        if meta.shares() == 1 {
            // The count cannot grow meanwhile: adding a reference takes one.
            let head = &mut self.trees[usize::from(level.number()) - 1];
            meta.set_link(*head);
            *head = Some(table);
            return;
        }
        while self.deferred.add_share(self.machine, self.node, table, level).is_err() {
            self.settle();
        }
    }

    /// Returns whether memory waits for the flush.
    pub(crate) fn keeps_memory(&self) -> bool {
        !self.deferred.is_empty() || self.trees.iter().any(Option::is_some)
    }

    /// Does the flush now, and releases what was deferred.
    pub(crate) fn settle(&mut self) {
        self.tell_made();
        if let Some(pending) = self.send() {
            self.machine.wait(pending);
            self.paid();
            self.done += 1;
        }
        self.release();
    }

    fn send(&mut self) -> Option<M::Pending> {
        if self.is_empty() {
            return None;
        }
        let what = if self.everything { FlushRanges::All } else { FlushRanges::Some(self.ranges.as_slice()) };
        let pending = self.machine.dispatch(FlushRequest { space: self.space, what, depth: self.depth });
        self.everything = self.always;
        self.depth = if self.always { FlushDepth::Tables } else { FlushDepth::Leaves };
        self.ranges.clear();
        Some(pending)
    }

    fn release(&mut self) {
        self.deferred.release(self.machine, |table, level| drop_table::<F, M>(self.machine, table, level));
        for (index, head) in self.trees.iter_mut().enumerate() {
            let level = Level::new(index as u8 + 1);
            let mut next = head.take();
            while let Some(table) = next {
                // SAFETY: the list holds the only reference.
                next = unsafe { self.machine.meta(table) }.link();
                drop_table::<F, M>(self.machine, table, level);
            }
        }
    }
}

impl<F: Format, M: Machine> Drop for Flush<'_, F, M> {
    fn drop(&mut self) {
        self.always = false;
        self.settle();
    }
}

impl<F: Format, M: Machine> Flushing<'_, F, M> {
    /// Waits until the flush has reached every CPU, and releases what it kept.
    pub fn wait(self) {
        drop(self);
    }
}

impl<F: Format, M: Machine> Drop for Flushing<'_, F, M> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.flush.machine.wait(pending);
            self.flush.paid();
        }
        self.flush.release();
    }
}

impl<F: Format, M: Machine> fmt::Debug for Flush<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { space, ranges, depth, everything, deferred, done, .. } = self;
        f.debug_struct("Flush")
            .field("space", space)
            .field("everything", everything)
            .field("ranges", ranges)
            .field("depth", depth)
            .field("deferred", deferred)
            .field("done", done)
            .finish_non_exhaustive()
    }
}

impl<F: Format, M: Machine> fmt::Debug for Flushing<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flushing").field("space", &self.flush.space).finish_non_exhaustive()
    }
}

/// Drops one reference to a table, through which no CPU reaches it any more. With the last reference it also releases
/// the tables and pages below.
pub(crate) fn drop_table<F: Format, M: Machine>(machine: &M, frame: Frame, level: Level) {
    // SAFETY: the caller has a reference.
    if !unsafe { machine.meta(frame) }.drop_share() {
        return;
    }
    // SAFETY: the last reference was ours; the table is freed only below.
    let table = unsafe { machine.table(frame) };
    for entry in &table.0 {
        // Relaxed: ordered by the Acquire in `drop_share`.
        match F::decode(level, entry.load(Ordering::Relaxed)) {
            Entry::Empty => {}
            Entry::Leaf(leaf) => {
                if let Some(size) = level.page_size() {
                    machine.release(Page { frame: leaf.frame, size });
                }
            }
            Entry::Table { frame, .. } => {
                if let Some(below) = level.below() {
                    drop_table::<F, M>(machine, frame, below);
                }
            }
        }
    }
    // SAFETY: 1. the last reference is gone, and the flush of the table is done.
    unsafe { machine.free_table(frame) };
}
