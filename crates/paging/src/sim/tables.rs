//! Memory for tables: real 4 KiB, so that the crate's own code and the walkers access the same words.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::lock;
use crate::address::{Frame, PAGE};
use crate::machine::{Node, Table};
use crate::meta::TableMeta;

/// The first frame for tables; those of node n lie n TiB further on.
const START: u64 = 1 << 47;
const NODE_SHIFT: u32 = 40;
const CHUNK: usize = 64;
/// Freed tables that rest before one is used again.
const REST: usize = 64;

struct Slot {
    table: Table,
    meta: TableMeta,
    /// Set when the table is allocated, cleared when it is freed.
    live: AtomicBool,
}

impl Slot {
    fn new() -> Self {
        Self { table: Table::new(), meta: TableMeta::new(), live: AtomicBool::new(false) }
    }
}

/// One node's tables.
pub(super) struct Tables {
    node: Node,
    /// Made by the first CPU that needs them, never given back.
    chunks: Vec<OnceLock<Box<[Slot]>>>,
    /// Locked by whoever allocates or frees.
    free: Mutex<Free>,
    /// Number of allocated tables; changed by allocation and freeing.
    live: AtomicUsize,
}

struct Free {
    resting: VecDeque<usize>,
    fresh: usize,
}

/// What is wrong with a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// It is not allocated.
    Free,
    /// It was written after it was freed.
    Written,
}

impl Tables {
    pub(super) fn new(node: Node, capacity: usize) -> Self {
        Self {
            node,
            chunks: (0..capacity.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(Free { resting: VecDeque::new(), fresh: 0 }),
            live: AtomicUsize::new(0),
        }
    }

    /// Returns the node whose table could be at `frame`.
    pub(super) fn node_of(frame: Frame) -> Option<usize> {
        frame.address().checked_sub(START).map(|offset| (offset >> NODE_SHIFT) as usize)
    }

    pub(super) fn free_count(&self) -> usize {
        let free = lock(&self.free);
        free.resting.len() + self.chunks.len() * CHUNK - free.fresh
    }

    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    fn slot(&self, index: usize) -> &Slot {
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Slot::new()).collect());
        &chunk[index % CHUNK]
    }

    fn index(frame: Frame) -> usize {
        ((frame.address() & ((1 << NODE_SHIFT) - 1)) / PAGE) as usize
    }

    fn frame(&self, index: usize) -> Frame {
        Frame::containing(START + (u64::from(self.node.0) << NODE_SHIFT) + index as u64 * PAGE)
    }

    /// Allocates an empty table. Also tells whether somebody has written to it since it was freed.
    pub(super) fn allocate(&self) -> Option<(Frame, Result<(), Wrong>)> {
        let index = {
            let mut free = lock(&self.free);
            if free.resting.len() > REST || free.fresh == self.chunks.len() * CHUNK {
                free.resting.pop_front()?
            } else {
                free.fresh += 1;
                free.fresh - 1
            }
        };
        let slot = self.slot(index);
        let written = slot.table.0.iter().any(|entry| entry.load(Ordering::Relaxed) != 0);
        slot.meta.reset();
        slot.live.store(true, Ordering::Release);
        self.live.fetch_add(1, Ordering::Relaxed);
        Some((self.frame(index), if written { Err(Wrong::Written) } else { Ok(()) }))
    }

    pub(super) fn free(&self, frame: Frame) -> Result<(), Wrong> {
        let index = Self::index(frame);
        let slot = self.slot(index);
        if !slot.live.swap(false, Ordering::AcqRel) {
            return Err(Wrong::Free);
        }
        for entry in &slot.table.0 {
            entry.store(0, Ordering::Relaxed);
        }
        self.live.fetch_sub(1, Ordering::Relaxed);
        lock(&self.free).resting.push_back(index);
        Ok(())
    }

    /// Returns the table, and whether it is allocated.
    pub(super) fn get(&self, frame: Frame) -> (&Table, &TableMeta, Result<(), Wrong>) {
        let slot = self.slot(Self::index(frame));
        let state = if slot.live.load(Ordering::Acquire) { Ok(()) } else { Err(Wrong::Free) };
        (&slot.table, &slot.meta, state)
    }

    /// Returns the frames of all allocated tables.
    pub(super) fn frames(&self) -> Vec<Frame> {
        let fresh = lock(&self.free).fresh;
        (0..fresh)
            .filter(|&index| self.slot(index).live.load(Ordering::Acquire))
            .map(|index| self.frame(index))
            .collect()
    }
}
