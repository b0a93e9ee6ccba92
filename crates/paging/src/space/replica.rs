//! Copies of a range's tables and pages on other nodes, each reached through that node's own root.
//!
//! Tables on the way from the root to a replicated range are *ringed*: the first root's table is linked to its copies
//! on the other nodes (`TableMeta::replica`), in the order of the roots, and [`Exclusive`] writes all of them. The root
//! is ringed in every space of several nodes. The copies share everything else below a ringed table, without a count:
//! it belongs to the first. So upper levels cost one table for each level and node, the range its pages, and other
//! tables nothing.
//!
//! A copy's entry differs from the first's only in three cases: it leads to a ringed table; it is a page of the range,
//! whose frame is the node's own; or it is empty, because the node gets such a page by the fault of its first use. In
//! the last two cases the page is *replicated*: nothing lets stores to it pass, and operations that would are refused.
//! Ringed tables are not shared with children: a fork copies them, and the child starts without replicas or refers to
//! the same ones ([`ChildReplicas`](super::ChildReplicas)).
//!
//! Entries change at once between pages with the same bytes, also on AArch64: break-before-make is needed if one of the
//! pages can be written, or if they differ (Arm ARM D8.16.1).

use core::ops::Range;

use arrayvec::ArrayVec;

use super::exclusive::Exclusive;
use super::need::Purpose;
use super::replica_pages::When;
use super::{AddressSpace, Locked, MAX_NODES, check_range, slots};
use crate::address::{ENTRIES, Frame, Level, VirtAddr};
use crate::attributes::Stores;
use crate::entry::{change_leaf, exchange, load, publish};
use crate::error::ChangeError;
use crate::flush::Flush;
use crate::format::{Entry, Format};
use crate::machine::{Charge, Machine};
use crate::reserve::Reserve;

/// What [`AddressSpace::replicate`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replicated {
    /// Tables that nodes got for themselves.
    pub tables: usize,
    /// Pages that nodes got for themselves.
    pub pages: usize,
    /// Pages that stay single, counted once for each node: this space, or another that shares them, can write them;
    /// they are pinned; or there is no memory for them.
    pub single: usize,
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Gives every node of this space except the first its own tables and pages for `range`. Some pages stay single:
    /// those that can be written; those that other spaces share ([`Sharing::Shared`](crate::Sharing::Shared), unless
    /// they are [`Scope::Global`](crate::Scope::Global): a writer of those writes every copy); pinned ones; and those
    /// for which a node has no memory ([`Machine::replica`]). Pages that are mapped in the range later are single too,
    /// until this is called again. Flushes the range first.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::NoMemory`]; nothing is changed.
    pub fn replicate(&self, range: Range<VirtAddr>) -> Result<(Replicated, Flush<'_, F, M>), ChangeError> {
        self.replicate_when(range, When::Now)
    }

    /// Does the same as [`replicate`](Self::replicate), but a node gets its page when it first uses it:
    /// [`fault`](Self::fault) does that. It gets the kernel's pages at once: the handler of that fault may run on them.
    /// [`Replicated::pages`] counts the waiting pages, too.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`], [`ChangeError::NoMemory`]; nothing is changed.
    pub fn replicate_on_use(&self, range: Range<VirtAddr>) -> Result<(Replicated, Flush<'_, F, M>), ChangeError> {
        self.replicate_when(range, When::OnUse)
    }

    fn replicate_when(&self, range: Range<VirtAddr>, when: When) -> Result<(Replicated, Flush<'_, F, M>), ChangeError> {
        check_range::<F>(&range)?;
        let locked = self.lock();
        let mut done = Replicated::default();
        let mut flush = locked.flush();
        let need = locked.need(range.clone(), Purpose::Change);
        let mut reserve = Reserve::new(locked.machine, need, locked.home())?;
        let single = locked.tables_to_ring(locked.root(), F::TOP, range.clone());
        let mut own = ArrayVec::<_, MAX_NODES>::new();
        for (node, _) in &locked.inner.roots[1..] {
            own.push(Reserve::new(locked.machine, single, *node)?);
        }
        // Until an earlier change of rights has been flushed, CPUs may store to a page that has become read-only: the
        // other nodes' copies would lack that for ever.
        flush.note_leaf(range.clone());
        flush.settle();
        let mut job = Job { when, reserve: &mut reserve, own: &mut own, flush: &mut flush, done: &mut done };
        ring(&locked.exclusive_root(), range, &mut job);
        Ok((done, flush))
    }

    /// Makes all nodes use the first's pages of `range`, and its tables if nothing else below them is replicated: then
    /// it flushes before it returns. Needs no memory, so that it can be called when none is left.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Range`].
    pub fn drop_replicas(&self, range: Range<VirtAddr>) -> Result<Flush<'_, F, M>, ChangeError> {
        check_range::<F>(&range)?;
        let locked = self.lock();
        let mut flush = locked.flush();
        let mut detached = Detached::default();
        unring(&locked.exclusive_root(), range, &mut flush, &mut detached);
        if !detached.is_empty() {
            flush.settle();
        }
        locked.release_detached(detached, &mut flush);
        Ok(flush)
    }
}

/// Nodes' copies of tables to which no entry leads any more. CPUs may walk them until a flush, also on the way to the
/// kernel's pages, so that they keep their entries until then.
///
/// Linked by `TableMeta::link`, by level; `TableMeta::replica` of each is the first node's table.
#[derive(Default)]
pub(crate) struct Detached([Option<Frame>; 5]);

impl Detached {
    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

struct Job<'j, 's, 'm, F: Format, M: Machine> {
    when: When,
    reserve: &'j mut Reserve<'m, M>,
    own: &'j mut ArrayVec<Reserve<'m, M>, MAX_NODES>,
    flush: &'j mut Flush<'s, F, M>,
    done: &'j mut Replicated,
}

fn ring<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    job: &mut Job<'_, 's, '_, F, M>,
) {
    for slot in slots(table.level, range) {
        match table.get(slot.index) {
            Entry::Empty => {}
            Entry::Leaf(leaf) => {
                let done = table.replicate_page(slot.index, &leaf, slot.range, job.when, job.flush);
                job.done.pages += done.pages;
                job.done.single += done.single;
            }
            Entry::Table { .. } => {
                if let Some(below) = table.enter(slot.index, slot.range.clone(), job.reserve, job.flush) {
                    if below.meta.replica().is_none() {
                        job.done.tables += table.ring(slot.index, &below, job.own);
                        job.flush.note(slot.range.clone());
                    }
                    ring(&below, slot.range, job);
                }
            }
        }
    }
}

fn unring<'s, F: Format, M: Machine>(
    table: &Exclusive<'_, 's, F, M>,
    range: Range<VirtAddr>,
    flush: &mut Flush<'s, F, M>,
    detached: &mut Detached,
) {
    for slot in slots(table.level, range) {
        match table.get(slot.index) {
            Entry::Empty => {}
            Entry::Leaf(leaf) => table.drop_pages(slot.index, &leaf, slot.range, flush),
            Entry::Table { frame, .. } => {
                let meta = table.space.meta(frame);
                let Some(level) = table.level.below().filter(|_| meta.replica().is_some()) else { continue };
                let below = Exclusive::at(table.space, frame, level);
                unring(&below, slot.range.clone(), flush, detached);
                if !below.has_replicas_below() {
                    table.unring(slot.index, &below, slot.range, flush, detached);
                }
            }
        }
    }
}

impl<'s, F: Format, M: Machine> Exclusive<'_, 's, F, M> {
    /// Gives every other node a copy of the table below entry `index`, from its own reserve. Returns the number of
    /// copies.
    pub(super) fn ring(&self, index: usize, below: &Self, own: &mut [Reserve<'_, M>]) -> usize {
        let (mut last, mut tables) = (below.frame, 0);
        for (replica, own) in self.replicas().zip(own) {
            let copy = own.take();
            let table = self.space.table(copy);
            for (to, from) in table.0.iter().zip(&below.entries().0) {
                publish(to, load(from));
            }
            self.space.meta(last).set_replica(Some(copy));
            last = copy;
            publish(&replica.0[index], F::table(copy, Stores::Pass));
            tables += 1;
            self.space.machine.charge(self.space.id, Charge { pages: 0, tables: 1 });
        }
        tables
    }

    /// Returns whether a node has its own table or page below this table.
    fn has_replicas_below(&self) -> bool {
        (0..ENTRIES).any(|index| match self.get(index) {
            Entry::Empty => false,
            Entry::Table { frame, .. } => self.space.meta(frame).replica().is_some(),
            Entry::Leaf(leaf) => self.replicas().any(|replica| {
                let there = F::decode(self.level, load(&replica.0[index]));
                !matches!(there, Entry::Leaf(there) if there.frame == leaf.frame)
            }),
        })
    }

    /// Makes every other node use the first's table below entry `index`. Adds the copies to `detached`.
    pub(crate) fn unring(
        &self,
        index: usize,
        below: &Self,
        range: Range<VirtAddr>,
        flush: &mut Flush<'s, F, M>,
        detached: &mut Detached,
    ) {
        let head = &mut detached.0[usize::from(below.level.number()) - 1];
        let mut next = below.meta.replica();
        below.meta.set_replica(None);
        self.show(index, F::table(below.frame, Stores::Pass));
        flush.note(range);
        while let Some(copy) = next {
            let meta = self.space.meta(copy);
            next = meta.replica();
            meta.set_replica(Some(below.frame));
            meta.set_link(head.replace(copy));
        }
    }
}

impl<'s, F: Format, M: Machine> Locked<'s, F, M> {
    /// Returns the number of tables on the way to `range` that are not ringed yet.
    fn tables_to_ring(&self, table: Frame, level: Level, range: Range<VirtAddr>) -> usize {
        let Some(below) = level.below() else { return 0 };
        slots(level, range)
            .map(|slot| match self.entry(table, level, slot.index) {
                Entry::Table { frame, .. } => {
                    let own = usize::from(self.meta(frame).replica().is_none());
                    own + self.tables_to_ring(frame, below, slot.range)
                }
                Entry::Empty | Entry::Leaf(_) => 0,
            })
            .sum()
    }

    /// Gives back nodes' copies of tables. They are empty, or the flush that [`Exclusive::unring`] has noted is done,
    /// or no CPU runs the space.
    pub(crate) fn release_detached(&self, detached: Detached, flush: &mut Flush<'s, F, M>) {
        for (index, mut next) in detached.0.into_iter().enumerate() {
            while let Some(copy) = next {
                let meta = self.meta(copy);
                next = meta.link();
                if let Some(first) = meta.replica() {
                    self.release_copy(first, copy, Level::new(index as u8 + 1), flush);
                }
            }
        }
    }

    /// Gives back a node's copy of a table. The tables and pages below belong to the first node's table, which gets the
    /// marks of the copy.
    fn release_copy(&self, first: Frame, copy: Frame, level: Level, flush: &mut Flush<'s, F, M>) {
        for (entry, own) in self.table(copy).0.iter().zip(&self.table(first).0) {
            // An exchange, since the hardware may have set marks until now.
            if let Entry::Leaf(there) = F::decode(level, exchange(entry, 0)) {
                change_leaf::<F>(own, level, |leaf| leaf.marked_as(&there));
            }
        }
        self.machine.charge(self.id, Charge { pages: 0, tables: -1 });
        flush.defer_table(copy, level);
    }

    /// Returns a table and its copies on other nodes, in the order of the roots.
    pub(super) fn ring_of(&self, table: Frame) -> impl Iterator<Item = Frame> + '_ {
        core::iter::successors(Some(table), |&frame| self.meta(frame).replica())
    }

    /// Drops all copies, the roots' too, before the space ends.
    pub(crate) fn drop_all_replicas(&mut self, flush: &mut Flush<'s, F, M>) {
        let mut detached = Detached::default();
        {
            let root = self.exclusive_root();
            for index in 0..ENTRIES {
                let start = VirtAddr(index as u64 * F::TOP.entry_bytes());
                // The addresses only matter for flushes, and the whole space is flushed.
                if root.get(index) != Entry::Empty {
                    unring(&root, start..VirtAddr(start.0 + F::TOP.entry_bytes()), flush, &mut detached);
                }
            }
            root.meta.set_replica(None);
        }
        self.release_detached(detached, flush);
        let copies: ArrayVec<_, MAX_NODES> = self.inner.roots.drain(1..).collect();
        for (_, copy) in copies {
            self.release_copy(self.root(), copy, F::TOP, flush);
        }
    }
}
