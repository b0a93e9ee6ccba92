//! A computer in software, to test address spaces: memory on several nodes, CPUs with TLBs and walk caches, interrupts.
//!
//! A page holds one number instead of 4096 bytes. Tables are real, and walkers read them entry by entry, at any time
//! ([`Computer::step`]). The computer finds what a real one would not report: it notes a [`Failure`] when a table or
//! page is freed that a CPU still remembers, when free memory is used, when a CPU remembers what the tables no longer
//! say ([`Computer::expect_coherent`]), and when counts are wrong or memory has leaked ([`Computer::expect_counted`]).
//! It collects failures and does not panic, so that a test that expects one can continue.
//!
//! Nodes form a ring: each is nearest to the next, and memory comes from the next if a node has none.
//!
//! Physical addresses: pages of node n from n × 2^44 on, [`Computer::device`] from 3 × 2^46 on, tables from 2^47 on.

mod access;
mod audit;
mod cpu;
#[cfg(feature = "interleave")]
pub(crate) mod interleave;
mod machine;
mod mmu;
mod pages;
mod simulated;
mod tables;
pub mod trial;

pub use access::Progress;
pub use audit::Snapshot;
pub use cpu::Trap;
#[cfg(feature = "interleave")]
pub use interleave::interleave;
pub use machine::Sent;
pub use mmu::{Hardware, HardwareMmu};
pub use simulated::{MapNextSimulated, MapSimulated};

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::address::{Frame, PAGE, PageSize, VirtAddr};
use crate::id::SpaceId;
use crate::machine::{Charge, Node, Page};

/// When CPUs receive interrupts that ask for a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// As soon as they are sent.
    AtOnce,
    /// When somebody waits for it.
    Late,
    /// At a random time before somebody waits for it.
    Random,
}

/// Who marks pages as used and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Marking {
    /// The usual one on machines of the format.
    #[default]
    ByFormat,
    /// The page walker: x86-64, and RISC-V with Svadu.
    ByWalker,
}

/// The configuration of a computer: one node with two CPUs, unless told otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    nodes: usize,
    cpus: usize,
    frames: u64,
    tables: usize,
    delivery: Delivery,
    marking: Marking,
    physical_bits: u32,
    seed: u64,
}

impl Config {
    /// Sets the number of nodes, 1 to 8.
    #[must_use]
    pub const fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// Sets the number of CPUs, up to 64; CPU n is on node n modulo the number of nodes.
    #[must_use]
    pub const fn cpus(mut self, count: usize) -> Self {
        self.cpus = count;
        self
    }

    /// Sets the number of frames for pages on each node.
    #[must_use]
    pub const fn frames(mut self, count: u64) -> Self {
        self.frames = count;
        self
    }

    /// Sets the number of frames for tables on each node.
    #[must_use]
    pub const fn tables(mut self, count: usize) -> Self {
        self.tables = count;
        self
    }

    /// Sets when interrupts arrive.
    #[must_use]
    pub const fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets who marks pages.
    #[must_use]
    pub const fn marking(mut self, marking: Marking) -> Self {
        self.marking = marking;
        self
    }

    /// Sets how many bits the CPUs' physical addresses have.
    #[must_use]
    pub const fn physical_bits(mut self, bits: u32) -> Self {
        self.physical_bits = bits;
        self
    }

    /// Sets the seed of random choices.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 1,
            cpus: 2,
            frames: 1 << 20,
            tables: 1 << 12,
            delivery: Delivery::Late,
            marking: Marking::ByFormat,
            physical_bits: 56,
            seed: 1,
        }
    }
}

/// An error of the computer's user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// Memory was freed while a CPU could reach it.
    #[error("{frame} is freed, and CPU {cpu} remembers it")]
    EarlyFree {
        /// The CPU.
        cpu: usize,
        /// The table or page.
        frame: Frame,
    },
    /// A table was used or freed that is not allocated.
    #[error("the table in {table} is used while it is free")]
    FreeTable {
        /// The table.
        table: Frame,
    },
    /// Memory of a page was used or given back that is not allocated.
    #[error("{frame} is used while it is free")]
    FreeFrame {
        /// The frame.
        frame: Frame,
    },
    /// A CPU remembers a translation that the tables do not have.
    #[error("CPU {cpu} remembers another translation of {address} than there is, and no flush is due")]
    Stale {
        /// The CPU.
        cpu: usize,
        /// The first address concerned.
        address: VirtAddr,
    },
    /// A flush names addresses that do not exist.
    #[error("a flush of {start}..{end}, which are no whole pages or not canonical")]
    Range {
        /// The first address.
        start: VirtAddr,
        /// The end.
        end: VirtAddr,
    },
    /// A count of references or pins is wrong.
    #[error("the count of references to {frame} is wrong")]
    Count {
        /// The table or page.
        frame: Frame,
    },
    /// Allocated memory has no reference.
    #[error("nobody refers to {frame}")]
    Leak {
        /// The table or page.
        frame: Frame,
    },
    /// A space that is gone is still charged.
    #[error("{space:?} is gone, and charged with {charge:?}")]
    Charge {
        /// The space.
        space: SpaceId,
        /// The charge.
        charge: Charge,
    },
}

/// Counts of events so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Flushes.
    pub flushes: u64,
    /// Flushes of only the CPU that had faulted.
    pub local_flushes: u64,
    /// Interrupts that they needed.
    pub interrupts: u64,
    /// Page faults.
    pub faults: u64,
    /// Tables that were allocated.
    pub tables_allocated: u64,
    /// Tables that were freed.
    pub tables_freed: u64,
    /// Pages that were copied, of any size.
    pub pages_copied: u64,
}

/// CPUs add to the counters, anybody reads them.
#[derive(Default)]
struct Counters {
    flushes: AtomicU64,
    local_flushes: AtomicU64,
    interrupts: AtomicU64,
    faults: AtomicU64,
    tables_allocated: AtomicU64,
    tables_freed: AtomicU64,
    pages_copied: AtomicU64,
}

/// The computer. `&Computer` is a [`Machine`](crate::Machine).
pub struct Computer {
    mmu: mmu::Mmu,
    delivery: Delivery,
    tables: Vec<tables::Tables>,
    pages: Mutex<pages::Pages>,
    cpus: Vec<Mutex<cpu::Cpu>>,
    charges: Mutex<HashMap<SpaceId, Charge>>,
    failures: Mutex<Vec<Failure>>,
    physical_end: u64,
    counts: Counters,
    /// The state of the random numbers: each CPU that draws one advances it.
    chance: AtomicU64,
    /// Requests for memory so far: each CPU that asks adds one.
    asked: AtomicU64,
    /// Which of them are refused. Written by the test, read by CPUs that ask.
    refused_from: AtomicU64,
    refused_until: AtomicU64,
}

impl Computer {
    /// Creates a computer whose CPUs walk tables of format `F`.
    ///
    /// # Panics
    ///
    /// If walkers of that format should mark pages, but none do.
    pub fn new<F: Hardware>(config: Config) -> Self {
        let nodes = 0..config.nodes;
        let mut mmu = F::mmu().0;
        if config.marking == Marking::ByWalker {
            assert!(mmu.walker_marks.is_some(), "walkers of {} mark nothing", F::NAME);
            mmu.marks = mmu.walker_marks.unwrap_or(mmu.marks);
        }
        Self {
            mmu,
            delivery: config.delivery,
            tables: nodes.map(|node| tables::Tables::new(Node(node as u8), config.tables)).collect(),
            pages: Mutex::new(pages::Pages::new(config.nodes, config.frames)),
            cpus: (0..config.cpus).map(|cpu| Mutex::new(cpu::Cpu::new(Node((cpu % config.nodes) as u8)))).collect(),
            charges: Mutex::default(),
            failures: Mutex::default(),
            physical_end: 1 << config.physical_bits,
            counts: Counters::default(),
            chance: AtomicU64::new(config.seed),
            asked: AtomicU64::new(0),
            refused_from: AtomicU64::new(0),
            refused_until: AtomicU64::new(0),
        }
    }

    /// Allocates memory for pages, aligned to `align`, on `node` or the next node that has enough. The caller gets one
    /// reference to each frame.
    pub fn allocate(&self, node: Node, bytes: u64, align: PageSize) -> Option<Frame> {
        lock(&self.pages).allocate(node, bytes, align)
    }

    /// Returns memory that is not counted and contains its address: stores to it are lost.
    pub fn device(offset: u64) -> Frame {
        Frame::containing(pages::DEVICE + offset)
    }

    /// Gives back memory that was not mapped.
    pub fn give_back(&self, first: Frame, bytes: u64) {
        let mut freed = Vec::new();
        for part in 0..bytes / PAGE {
            let page = Page { frame: first.offset(part * PAGE), size: PageSize::Small };
            let result = lock(&self.pages).release(page, &mut freed);
            self.note_pages(result);
        }
    }

    /// Returns the content of a frame, as a device reads it.
    pub fn content(&self, frame: Frame) -> u64 {
        let content = lock(&self.pages).read(frame);
        content.unwrap_or_else(|| {
            self.failed(Failure::FreeFrame { frame });
            0
        })
    }

    /// Lets a device write to a frame.
    pub fn set_content(&self, frame: Frame, content: u64) {
        if lock(&self.pages).write(frame, content).is_none() {
            self.failed(Failure::FreeFrame { frame });
        }
    }

    /// Returns how many entries refer to a frame.
    pub fn references(&self, frame: Frame) -> u32 {
        lock(&self.pages).references(frame)
    }

    /// Returns the node whose memory a page is.
    pub fn node_of(&self, frame: Frame) -> Node {
        pages::Pages::node(frame)
    }

    /// Refuses memory for tables and for copies of pages, in those of the following requests, counted from 0, whose
    /// number is in the range.
    pub fn refuse(&self, requests: std::ops::Range<u64>) {
        let asked = self.asked.load(Ordering::Relaxed);
        self.refused_from.store(asked.saturating_add(requests.start), Ordering::Relaxed);
        self.refused_until.store(asked.saturating_add(requests.end), Ordering::Relaxed);
    }

    /// Returns what a space is charged with.
    pub fn charged(&self, space: SpaceId) -> Charge {
        lock(&self.charges).get(&space).copied().unwrap_or_default()
    }

    /// Returns the number of tables in use.
    pub fn live_tables(&self) -> usize {
        self.tables.iter().map(tables::Tables::live).sum()
    }

    /// Returns the number of frames of pages in use.
    pub fn live_frames(&self) -> usize {
        lock(&self.pages).live_frames()
    }

    /// Returns the counts of events so far.
    pub fn counts(&self) -> Counts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            flushes: get(&self.counts.flushes),
            local_flushes: get(&self.counts.local_flushes),
            interrupts: get(&self.counts.interrupts),
            faults: get(&self.counts.faults),
            tables_allocated: get(&self.counts.tables_allocated),
            tables_freed: get(&self.counts.tables_freed),
            pages_copied: get(&self.counts.pages_copied),
        }
    }

    /// Takes the failures noted so far.
    pub fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut lock(&self.failures))
    }

    fn failed(&self, failure: Failure) {
        lock(&self.failures).push(failure);
    }

    /// Draws a random bit: SplitMix64, whose state is a counter.
    fn coin(&self) -> bool {
        let mut z = self.chance.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) & 1 != 0
    }
}

impl std::fmt::Debug for Computer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Computer")
            .field("nodes", &self.tables.len())
            .field("cpus", &self.cpus.len())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// Takes a lock. A test that has panicked elsewhere is no reason to panic here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
