//! A model of the caches between a CPU and memory, for instruction fetch only. It counts which lines come from memory,
//! and from which node's: lines of code, and of the tables that translate its addresses.
//!
//! An emulator has no caches, and no counters for them. So the model is told the address of each instruction that a CPU
//! runs ([`step`](Model::step)), and walks the same tables as this CPU. Sizes are those of the processor on which the
//! mail about replication measured, Intel's Xeon E5-2690 (Intel's Optimization Reference Manual, "Sandy Bridge": cache
//! parameters, TLB parameters; the processor's data sheet: 20 MB).
//!
//! The model leaves out data, prefetching, caches of upper levels of tables, other CPUs that use the last level, and
//! how its slices are chosen. Only a CPU's own fetches load its caches.

use palimpsest_paging::format::Format;
use palimpsest_paging::{Frame, Level, Node, PAGE, VirtAddr};

use crate::arch::mmu::KernelFormat;
use crate::{kernel_space, memory};

/// Bytes of a line.
const LINE: u64 = 64;
/// Sets and ways of each cache: lines of code; lines of anything, for one CPU and for all CPUs of a node; translations.
const CODE: (usize, usize) = (64, 8);
const OWN: (usize, usize) = (512, 8);
const LAST: (usize, usize) = (16_384, 20);
const TLB: (usize, usize) = (32, 4);
const SECOND_TLB: (usize, usize) = (128, 4);
/// Stands for no line and no page.
const NOTHING: u64 = u64::MAX;

/// Describes the caches, for readers.
pub(crate) fn geometry() -> alloc::string::String {
    let kilobytes = |(sets, ways): (usize, usize)| sets * ways * LINE as usize / 1024;
    let cache = |name: &str, size: (usize, usize)| {
        alloc::format!("{name} {} kB ({} sets of {})", kilobytes(size), size.0, size.1)
    };
    let entries = |(sets, ways): (usize, usize)| alloc::format!("{} ({sets} sets of {ways})", sets * ways);
    alloc::format!(
        "lines of {LINE} bytes; {}, {}, {}; translations {}, then {}",
        cache("code", CODE),
        cache("a CPU's own", OWN),
        cache("a node's", LAST),
        entries(TLB),
        entries(SECOND_TLB)
    )
}

/// Whether a cache had a key. Afterwards it has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lookup {
    Hit,
    Miss,
}

/// Sets of keys, each in the order of last use.
#[derive(Debug)]
struct Cache<const SETS: usize, const WAYS: usize>([[u64; WAYS]; SETS]);

impl<const SETS: usize, const WAYS: usize> Cache<SETS, WAYS> {
    const EMPTY: Self = Self([[NOTHING; WAYS]; SETS]);

    fn clear(&mut self) {
        self.0.fill([NOTHING; WAYS]);
    }

    fn look_up(&mut self, key: u64) -> Lookup {
        let set = &mut self.0[key as usize % SETS];
        let found = set.iter().position(|held| *held == key);
        // A new key replaces the least recently used one.
        set[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = key;
        if found.is_some() { Lookup::Hit } else { Lookup::Miss }
    }
}

/// Lines that came from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lines {
    /// From the CPU's own node.
    pub(crate) own: u64,
    /// From another node.
    pub(crate) remote: u64,
}

/// What some instructions fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fetches {
    /// Instructions.
    pub(crate) instructions: u64,
    /// Translations that no TLB had.
    pub(crate) walks: u64,
    /// Lines that the cache of code did not have.
    pub(crate) past_code: u64,
    /// Lines of code.
    pub(crate) text: Lines,
    /// Lines of tables.
    pub(crate) tables: Lines,
}

impl Fetches {
    /// Returns how many lines came from other nodes.
    pub(crate) fn remote(&self) -> u64 {
        self.text.remote + self.tables.remote
    }

    /// Returns how many lines came from the CPU's own node.
    pub(crate) fn own(&self) -> u64 {
        self.text.own + self.tables.own
    }
}

/// What a line holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Code,
    Table,
}

/// The caches of one CPU and its node, and a count of what was fetched.
#[derive(Debug)]
pub(crate) struct Model {
    code: Cache<{ CODE.0 }, { CODE.1 }>,
    own: Cache<{ OWN.0 }, { OWN.1 }>,
    last: Cache<{ LAST.0 }, { LAST.1 }>,
    tlb: Cache<{ TLB.0 }, { TLB.1 }>,
    second_tlb: Cache<{ SECOND_TLB.0 }, { SECOND_TLB.1 }>,
    /// The tables that the translations belong to; other tables empty both TLBs.
    root: Option<Frame>,
    /// The line of the last instruction, by its virtual address.
    line: u64,
    /// The CPU's node.
    node: Node,
    fetches: Fetches,
}

impl Model {
    /// Creates empty caches.
    pub(crate) const fn new() -> Self {
        Self {
            code: Cache::EMPTY,
            own: Cache::EMPTY,
            last: Cache::EMPTY,
            tlb: Cache::EMPTY,
            second_tlb: Cache::EMPTY,
            root: None,
            line: NOTHING,
            node: Node(0),
            fetches: Fetches { instructions: 0, walks: 0, past_code: 0, text: Lines::ZERO, tables: Lines::ZERO },
        }
    }

    /// Empties the caches, and makes them those of a CPU of `node`.
    pub(crate) fn empty(&mut self, node: Node) {
        self.code.clear();
        self.own.clear();
        self.last.clear();
        self.root = None;
        self.node = node;
    }

    /// Returns what was fetched since the last call.
    pub(crate) fn take(&mut self) -> Fetches {
        core::mem::take(&mut self.fetches)
    }

    /// Counts the instruction at `address`, run by the CPU, which walks the tables of `root`.
    ///
    /// Looks only at the line in which an instruction begins. If the instruction reaches into the next line, that line
    /// is counted for the instruction that follows, but not if this one jumps.
    pub(crate) fn step(&mut self, root: Frame, address: VirtAddr) {
        self.fetches.instructions += 1;
        if self.root != Some(root) {
            self.root = Some(root);
            self.tlb.clear();
            self.second_tlb.clear();
            self.line = NOTHING;
        }
        if core::mem::replace(&mut self.line, address.0 / LINE) == address.0 / LINE {
            return;
        }
        let page = address.0 / PAGE;
        let is_known = self.tlb.look_up(page) == Lookup::Hit || self.second_tlb.look_up(page) == Lookup::Hit;
        let mut level = Some(KernelFormat::TOP);
        let place = kernel_space::walk_by(root, address, |table| {
            let index = level.map_or(0, |level| level.index(address)) as u64;
            level = level.and_then(Level::below);
            if !is_known {
                self.line_of(table.address() + index * 8, Kind::Table);
            }
        });
        self.fetches.walks += u64::from(!is_known);
        if let Some(place) = place {
            self.line_of(place, Kind::Code);
        }
    }

    /// Reads the line at a physical address.
    fn line_of(&mut self, physical: u64, kind: Kind) {
        let line = physical / LINE;
        if kind == Kind::Code {
            if self.code.look_up(line) == Lookup::Hit {
                return;
            }
            self.fetches.past_code += 1;
        }
        if self.own.look_up(line) == Lookup::Hit || self.last.look_up(line) == Lookup::Hit {
            return;
        }
        let lines = match kind {
            Kind::Code => &mut self.fetches.text,
            Kind::Table => &mut self.fetches.tables,
        };
        if memory::node_of(physical) == self.node {
            lines.own += 1;
        } else {
            lines.remote += 1;
        }
    }
}

impl Lines {
    const ZERO: Self = Self { own: 0, remote: 0 };
}
