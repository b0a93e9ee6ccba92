//! Program packs in the kernel's space: many programs side by side in large pages.
//!
//! | what | where | rights |
//! |---|---|---|
//! | packs, as CPUs run them | [`layout::PACKS`], by pages of 2 MiB, to each node's own copy | read, execute |
//! | every copy, to write through | the physical map | read, write |
//!
//! A program is written to all copies, whose caches are cleaned; then the instruction caches are told once. Behind its
//! code lies its table of loads that may fault, by distances from where it runs, so that a trap finds by the address of
//! the instruction alone where to go on ([`resume`]), and each node reads its own copy.
//!
//! What no program has is traps. A program that is dropped is *retired*: its bytes stay until all CPUs have been called
//! ([`reclaim`]). Programs run in the kernel, which no call interrupts: who answers one is inside none.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use palimpsest_paging::{Frame, Node, Page, PageSize, VirtAddr};
use palimpsest_text::{ChunkMap, poke::arch::TRAP};

use crate::arch::patch::{clean, forget_fetched};
use crate::arch::{self, layout};
use crate::counts::{COUNTS, add};
use crate::flush;
use crate::memory::{alias, nodes, packs_of};
use crate::sync::SpinLock;

/// Bytes of a pack.
pub(crate) const PACK: usize = 2 << 20;
/// How many there are.
const PACKS: usize = 2;
/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64;
/// Chunks of a pack.
const CHUNKS: usize = PACK / CHUNK;
/// Retired programs that wait for one call of all CPUs.
const BATCH: usize = 64;

type Chunks = ChunkMap<[u64; CHUNKS / 64]>;

/// Which chunks are taken, by pack.
static TAKEN: SpinLock<Option<[Chunks; PACKS]>> = SpinLock::new(None);
/// For each chunk the first of the program that has it, plus one. Written before the program can run, and after it can
/// no more.
static FIRST: [AtomicU32; PACKS * CHUNKS] = [const { AtomicU32::new(0) }; PACKS * CHUNKS];
/// For the first chunk of a program: where its table is, in bytes from there, and in the upper half how many entries it
/// has.
static TABLE: [AtomicU64; PACKS * CHUNKS] = [const { AtomicU64::new(0) }; PACKS * CHUNKS];
static RETIRED: SpinLock<Vec<Chunk>> = SpinLock::new(Vec::new());

/// The chunks of a program.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// The first, of all packs.
    first: usize,
    count: usize,
}

impl Chunk {
    /// Where it runs.
    fn start(self) -> u64 {
        layout::PACKS + (self.first * CHUNK) as u64
    }
}

/// There is no room for a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full {
    /// Its bytes, with its table.
    pub(crate) bytes: usize,
}

/// A program's place. Dropped, it is retired.
#[derive(Debug)]
pub(crate) struct Place(Chunk);

/// Where packs run.
pub(crate) fn range() -> Range<VirtAddr> {
    VirtAddr(layout::PACKS)..VirtAddr(layout::PACKS + (PACKS * PACK) as u64)
}

/// Where the first node has them.
pub(crate) fn frames() -> Frame {
    Frame::containing(packs_of(Node(0)))
}

/// A node's copy of a page of packs.
pub(crate) fn copy(page: Page, node: Node) -> Option<Frame> {
    let offset = page.frame.address().checked_sub(packs_of(Node(0)))?;
    let is_pack = page.size == PageSize::Large && offset < (PACKS * PACK) as u64;
    is_pack.then(|| Frame::containing(packs_of(node) + offset))
}

/// Fills all packs with traps. Once, before any program.
pub(crate) fn make() {
    let mut taken = TAKEN.lock();
    assert!(taken.is_none(), "packs are made once");
    *taken = Some(core::array::from_fn(|_| Chunks::new([0; CHUNKS / 64], CHUNKS as u32)));
    drop(taken);
    for pack in 0..PACKS {
        fill(Chunk { first: pack * CHUNKS, count: CHUNKS });
    }
    told();
}

/// Has `write` store to a place in every node's copy, whether its tables lead there yet or not: it gets where that
/// begins.
fn store(place: Chunk, mut write: impl FnMut(*mut u8)) {
    for node in nodes() {
        let copy = alias(packs_of(node) + (place.first * CHUNK) as u64);
        write(copy);
        clean(copy, place.count * CHUNK);
    }
}

/// Stores `bytes` behind `offset` of a place, by the address of one of its copies.
fn put(place: Chunk, copy: *mut u8, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= place.count * CHUNK, "{place:?} is left");
    let to = copy.wrapping_add(offset);
    // SAFETY: the physical map is writable, the place is the caller's, and lies in one page of 2 MiB.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// A chunk of traps.
fn traps() -> [u8; CHUNK] {
    let mut traps = [0; CHUNK];
    traps.chunks_exact_mut(TRAP.len()).for_each(|to| to.copy_from_slice(TRAP));
    traps
}

/// Fills a place with traps.
fn fill(place: Chunk) {
    let traps = traps();
    store(place, |copy| (0..place.count).for_each(|chunk| put(place, copy, chunk * CHUNK, &traps)));
}

/// Tells the instruction caches what was stored.
fn told() {
    forget_fetched();
    add(&COUNTS.code_flushes, 1);
    arch::cpu::serialize();
}

fn take(count: usize) -> Option<Chunk> {
    let mut taken = TAKEN.lock();
    let packs = taken.as_mut().unwrap_or_else(|| panic!("packs are made first"));
    packs.iter_mut().enumerate().find_map(|(pack, chunks)| {
        let first = chunks.allocate(count as u32, 1)?;
        Some(Chunk { first: pack * CHUNKS + first as usize, count })
    })
}

impl Place {
    /// Puts code into a pack: it runs at [`entry`](Self::entry), on this CPU at once, and on others once they have been
    /// called. `faults` are loads that may fault and where each goes on, in bytes from the start of the code, in order.
    pub(crate) fn new(code: &[u8], faults: &[(u32, u32)]) -> Result<Self, Full> {
        let table = code.len().next_multiple_of(8);
        let bytes = table + size_of_val(faults);
        let count = bytes.div_ceil(CHUNK).max(1);
        let place = take(count).or_else(|| {
            reclaim();
            take(count)
        });
        let place = place.ok_or(Full { bytes })?;
        store(place, |copy| {
            put(place, copy, 0, code);
            for (index, (offset, landing)) in faults.iter().enumerate() {
                let entry = u64::from(*landing) << 32 | u64::from(*offset);
                put(place, copy, table + index * 8, &entry.to_le_bytes());
            }
        });
        told();
        // Relaxed: read by traps of CPUs that run it, which found its address.
        TABLE[place.first].store((faults.len() as u64) << 32 | table as u64, Ordering::Relaxed);
        for chunk in &FIRST[place.first..place.first + place.count] {
            chunk.store(place.first as u32 + 1, Ordering::Relaxed);
        }
        Ok(Self(place))
    }

    /// Where it runs.
    pub(crate) fn entry(&self) -> VirtAddr {
        VirtAddr(self.0.start())
    }

    /// Bytes of packs that it has.
    pub(crate) fn bytes(&self) -> usize {
        self.0.count * CHUNK
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let waiting = {
            let mut retired = RETIRED.lock();
            retired.push(self.0);
            retired.len()
        };
        if waiting >= BATCH {
            reclaim();
        }
    }
}

/// Gives back what retired programs had, after every CPU has been called: none is inside then. How many programs.
pub(crate) fn reclaim() -> usize {
    let retired = core::mem::take(&mut *RETIRED.lock());
    if retired.is_empty() {
        return 0;
    }
    flush::synchronize_all();
    for place in &retired {
        for chunk in &FIRST[place.first..place.first + place.count] {
            // Relaxed: nobody runs it.
            chunk.store(0, Ordering::Relaxed);
        }
        fill(*place);
    }
    told();
    let mut taken = TAKEN.lock();
    let packs = taken.as_mut().unwrap_or_else(|| panic!("packs are made first"));
    for place in &retired {
        packs[place.first / CHUNKS].release((place.first % CHUNKS) as u32, place.count as u32);
    }
    retired.len()
}

/// Chunks that programs have, retired ones too.
pub(crate) fn taken() -> u32 {
    TAKEN.lock().iter().flatten().map(ChunkMap::used).sum()
}

/// Whether programs run there.
pub(crate) fn contains(address: u64) -> bool {
    range().contains(&VirtAddr(address))
}

/// Where the program goes on whose load at `instruction` has faulted, if it is one that may.
pub(crate) fn resume(instruction: u64) -> Option<u64> {
    let offset = instruction.checked_sub(layout::PACKS).filter(|_| contains(instruction))? as usize;
    // Relaxed, here and below: this CPU runs the program.
    let first = FIRST[offset / CHUNK].load(Ordering::Relaxed).checked_sub(1)? as usize;
    let start = layout::PACKS + (first * CHUNK) as u64;
    let table = TABLE[first].load(Ordering::Relaxed);
    let (at, count) = (start + (table & u64::from(u32::MAX)), (table >> 32) as usize);
    // SAFETY: the table of a program that runs, behind its code, in the packs, aligned to 8 as chunks are.
    let entries = unsafe { core::slice::from_raw_parts(at as *const u64, count) };
    let wanted = (instruction - start) as u32;
    let found = entries.binary_search_by_key(&wanted, |entry| *entry as u32).ok()?;
    add(&COUNTS.probes_resumed, 1);
    Some(start + (entries[found] >> 32))
}

/// The physical address of the first chunk, in some copy, that is not all traps.
pub(crate) fn first_that_is_no_trap() -> Option<u64> {
    assert_eq!(taken(), 0, "looked at when there are no programs");
    let traps = traps();
    nodes().into_iter().find_map(|node| {
        (0..(PACKS * PACK) as u64).step_by(CHUNK).map(|offset| packs_of(node) + offset).find(|&at| {
            // SAFETY: a node's copy, which nobody writes now.
            let bytes = unsafe { core::slice::from_raw_parts(alias(at), CHUNK) };
            bytes != traps
        })
    })
}
