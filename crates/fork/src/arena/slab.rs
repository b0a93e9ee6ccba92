//! Small blocks: slabs of one size, each slab in one bin at a time.
//!
//! There is a bin for each class and shard. A thread allocates from the bin of its own shard, so that threads rarely
//! wait for each other, and frees to the bin that the slab came from.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

use super::class::{Class, UNIT};
use super::runs::mark;
use super::space::Space;
use super::unit::{Kind, NONE, Unit, Units};
use crate::lock::Lock;

/// Bins of each class.
pub(super) const SHARDS: usize = 4;

/// The slabs of one class and shard that have a free block.
pub(super) struct Bin {
    partial: u32,
    /// All slabs, full ones too.
    pub(super) slabs: u32,
    /// Blocks in use.
    pub(super) live: usize,
}

/// A block and how much of it may hold old bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) address: usize,
    pub(super) dirty: usize,
}

/// What is wrong with a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Misused(pub(super) &'static str);

impl Bin {
    pub(super) const EMPTY: Self = Self { partial: NONE, slabs: 0, live: 0 };

    /// Takes a block.
    pub(super) fn take(&mut self, units: &Units, space: &Lock<Space>, class: Class, shard: usize) -> Option<Block> {
        if self.partial == NONE {
            self.add_slab(units, space, class, shard)?;
        }
        let head = self.partial;
        let slab = units.get(head);
        let fresh = slab.fresh.get();
        let (block, is_fresh) = match slab.take_returned() {
            Some(block) => (block, false),
            None => {
                slab.fresh.set(fresh + 1);
                (fresh, true)
            }
        };
        slab.live.set(slab.live.get() + 1);
        self.live += 1;
        if slab.live.get() == class.blocks() {
            self.unlink(units, head);
        }
        let offset = block as usize * class.size();
        let dirty = if is_fresh && offset >= slab.dirty.get() as usize * UNIT { 0 } else { class.size() };
        Some(Block { address: offset, dirty }.in_slab(head))
    }

    /// Takes back the block at `offset` bytes from the first unit, `head`, of its slab.
    pub(super) fn give(
        &mut self,
        units: &Units,
        space: &Lock<Space>,
        class: Class,
        head: u32,
        offset: usize,
    ) -> Result<(), Misused> {
        let slab = units.get(head);
        let block = block_at(slab, class, offset)?;
        slab.put_back(block);
        let live = slab.live.get();
        slab.live.set(live - 1);
        self.live -= 1;
        if live == class.blocks() {
            self.link(units, head);
        }
        // Keep one slab, so that a block that comes and goes does not take and give back a slab each time.
        let is_only = self.partial == head && slab.next.get() == NONE;
        if live == 1 && !is_only {
            self.unlink(units, head);
            self.drop_slab(units, space, class, head);
        }
        Ok(())
    }

    fn add_slab(&mut self, units: &Units, space: &Lock<Space>, class: Class, shard: usize) -> Option<()> {
        let len = class.slab_units();
        let taken = space.lock().take(units, len, 1)?;
        for index in taken.first..taken.first + len {
            let unit = units.get(index);
            unit.set_kind(Kind::Slab);
            unit.head.set(taken.first);
            // Both fit: there are 48 classes and 4 shards.
            unit.set_bin(class.index() as u8, shard as u8);
        }
        let slab = units.get(taken.first);
        slab.len.set(len);
        slab.dirty.set(taken.dirty);
        slab.live.set(0);
        slab.fresh.set(0);
        slab.hint.set(super::unit::WORDS as u32);
        self.slabs += 1;
        self.link(units, taken.first);
        Some(())
    }

    fn drop_slab(&mut self, units: &Units, space: &Lock<Space>, class: Class, head: u32) {
        let slab = units.get(head);
        slab.clear_bitmap();
        let used = (slab.fresh.get() as usize * class.size()).div_ceil(UNIT) as u32;
        let (len, dirty) = (class.slab_units(), slab.dirty.get().max(used));
        self.slabs -= 1;
        let mut space = space.lock();
        mark(units, head, len, Kind::Run);
        space.runs.give(units, head, len, dirty);
    }

    fn link(&mut self, units: &Units, head: u32) {
        let slab = units.get(head);
        slab.previous.set(NONE);
        slab.next.set(self.partial);
        if self.partial != NONE {
            units.get(self.partial).previous.set(head);
        }
        self.partial = head;
    }

    fn unlink(&mut self, units: &Units, head: u32) {
        let slab = units.get(head);
        let (previous, next) = (slab.previous.get(), slab.next.get());
        if next != NONE {
            units.get(next).previous.set(previous);
        }
        if previous == NONE {
            self.partial = next;
        } else {
            units.get(previous).next.set(next);
        }
    }
}

impl Block {
    /// Counts the block from the first unit of all.
    fn in_slab(self, head: u32) -> Self {
        Self { address: head as usize * UNIT + self.address, ..self }
    }
}

/// Returns the block in use that begins `offset` bytes from the start of its slab.
fn block_at(slab: &Unit, class: Class, offset: usize) -> Result<u32, Misused> {
    // A slab is at most half a MiB.
    let (offset, size) = (offset as u32, class.size() as u32);
    let block = offset / size;
    if block * size != offset || block >= slab.fresh.get() {
        return Err(Misused("a pointer into the middle of a block"));
    }
    if slab.is_returned(block) {
        return Err(Misused("a block that is free already"));
    }
    Ok(block)
}

/// Returns the shard of the calling thread.
pub(super) fn shard() -> usize {
    /// The next thread's shard. Relaxed: any distribution will do.
    static NEXT: AtomicU8 = AtomicU8::new(0);
    const UNSET: u8 = u8::MAX;
    thread_local! {
        // Constant and without a destructor: the access neither allocates nor can fail.
        static SHARD: Cell<u8> = const { Cell::new(UNSET) };
    }
    SHARD.with(|shard| {
        if shard.get() == UNSET {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS as u8);
        }
        usize::from(shard.get())
    })
}
