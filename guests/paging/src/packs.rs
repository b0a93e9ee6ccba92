//! Program packs in the kernel's space: many programs side by side in large pages.
//!
//! | what | where | rights |
//! |---|---|---|
//! | packs, as CPUs run them | [`layout::PACKS`], by pages of 2 MiB, to each node's own copy | read, execute |
//! | constants of modules ([`crate::modules`]) | behind these, to each node's own copy | read |
//! | every copy, to write through | the physical map | read, write |
//!
//! A program is written to all copies, their data caches are cleaned, and then the instruction caches are invalidated
//! once. Behind the code lies the program's table of loads that may fault, as distances from its start, so that a trap
//! finds from the instruction's address alone where to continue ([`resume`]), and each node reads its own copy.
//!
//! Free chunks are filled with traps. A program that is dropped is *retired*: its bytes stay until all CPUs have been
//! called ([`reclaim`]). Programs run in the kernel, which no call interrupts: a CPU that answers one is inside none.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use palimpsest_paging::{Frame, Node, Page, PageSize, VirtAddr};
use palimpsest_text::{ChunkMap, poke::arch::TRAP};

use crate::arch::patch::{clean, forget_fetched};
use crate::arch::{self, layout};
use crate::counts::{COUNTS, add};
use crate::cpu::Turns;
use crate::flush;
use crate::memory::{alias, nodes, packs_of};
use crate::sync::SpinLock;

/// Bytes of a pack.
pub(crate) const PACK: usize = 2 << 20;
/// How many there are.
pub(crate) const PACKS: usize = 2;
/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64;
/// Chunks of a pack.
const CHUNKS: usize = PACK / CHUNK;
/// Retired programs that are reclaimed by one call of all CPUs.
const BATCH: usize = 64;

type Chunks = ChunkMap<[u64; CHUNKS / 64]>;

/// Which chunks are taken, by pack.
static TAKEN: SpinLock<Option<[Chunks; PACKS]>> = SpinLock::new(None);
/// The first chunk, plus one, of the program that has each chunk. Written before the program can run, and after it no
/// longer can.
static FIRST: [AtomicU32; PACKS * CHUNKS] = [const { AtomicU32::new(0) }; PACKS * CHUNKS];
/// For the first chunk of a program: the distance of its table in bytes, and in the upper half the number of entries.
static TABLE: [AtomicU64; PACKS * CHUNKS] = [const { AtomicU64::new(0) }; PACKS * CHUNKS];
static RETIRED: SpinLock<Vec<Chunk>> = SpinLock::new(Vec::new());
/// Those who reclaim: who has waited for a turn finds what was retired before reclaimed, whoever has done it.
static RECLAIMS: Turns = Turns::new();

/// The chunks of a program.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// The number of the first chunk, counted over all packs.
    first: usize,
    count: usize,
}

impl Chunk {
    /// Returns the address where it runs.
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

/// A program's place. Dropping it retires the program.
#[derive(Debug)]
pub(crate) struct Place(Chunk);

/// Returns the addresses where packs run.
pub(crate) fn range() -> Range<VirtAddr> {
    VirtAddr(layout::PACKS)..VirtAddr(layout::PACKS + (PACKS * PACK) as u64)
}

/// Returns the first node's frames for packs.
pub(crate) fn frames() -> Frame {
    Frame::containing(packs_of(Node(0)))
}

/// Returns a node's copy of a page of packs, or of modules' constants, which lie behind them.
pub(crate) fn copy(page: Page, node: Node) -> Option<Frame> {
    let offset = page.frame.address().checked_sub(packs_of(Node(0)))?;
    let is_pack = page.size == PageSize::Large && offset < ((PACKS + 1) * PACK) as u64;
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

/// Calls `write` for a place in every node's copy, with the address where the place begins there. Copies that tables do
/// not lead to yet are included.
fn store(place: Chunk, mut write: impl FnMut(*mut u8)) {
    flush::forget_before_code();
    for node in nodes() {
        let copy = alias(packs_of(node) + (place.first * CHUNK) as u64);
        write(copy);
        clean(copy, place.count * CHUNK);
    }
}

/// Stores `bytes` at `offset` in a place, in the copy that begins at `copy`.
fn put(place: Chunk, copy: *mut u8, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= place.count * CHUNK, "{place:?} is left");
    let to = copy.wrapping_add(offset);
    // SAFETY: the physical map is writable, the place is the caller's, and lies in one page of 2 MiB.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Returns a chunk of traps.
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

/// Makes instruction fetch see what was stored.
fn told() {
    forget_fetched();
    add(&COUNTS.code_flushes, 1);
    arch::cpu::serialize();
}

/// Takes this many chunks, from a multiple of `align` chunks on.
fn take(count: usize, align: usize) -> Option<Chunk> {
    let mut taken = TAKEN.lock();
    let packs = taken.as_mut().unwrap_or_else(|| panic!("packs are made first"));
    packs.iter_mut().enumerate().find_map(|(pack, chunks)| {
        let first = chunks.allocate(count as u32, align as u32)?;
        Some(Chunk { first: pack * CHUNKS + first as usize, count })
    })
}

impl Place {
    /// Puts code into a pack: it runs at [`entry`](Self::entry), on this CPU at once, and on others once they have been
    /// called. `faults` are the loads that may fault, each with where it continues, in bytes from the start of the
    /// code, in order.
    pub(crate) fn new(code: &[u8], faults: &[(u32, u32)]) -> Result<Self, Full> {
        let place = Self::reserve(code.len().next_multiple_of(8) + size_of_val(faults), CHUNK)?;
        place.write(code, faults);
        Ok(place)
    }

    /// Reserves a place of `bytes` bytes, from a multiple of `align` on. It has traps until it is
    /// [written](Self::write).
    pub(crate) fn reserve(bytes: usize, align: usize) -> Result<Self, Full> {
        let (count, align) = (bytes.div_ceil(CHUNK).max(1), align.div_ceil(CHUNK));
        if bytes > PACK || align > CHUNKS {
            return Err(Full { bytes });
        }
        let place = take(count, align).or_else(|| {
            reclaim();
            take(count, align)
        });
        place.map(Self).ok_or(Full { bytes })
    }

    /// Fills a place that was reserved, as [`new`](Self::new) does.
    pub(crate) fn write(&self, code: &[u8], faults: &[(u32, u32)]) {
        let (place, table) = (self.0, code.len().next_multiple_of(8));
        store(place, |copy| {
            put(place, copy, 0, code);
            for (index, (offset, landing)) in faults.iter().enumerate() {
                let entry = u64::from(*landing) << 32 | u64::from(*offset);
                put(place, copy, table + index * 8, &entry.to_le_bytes());
            }
        });
        told();
        // Relaxed: only traps of CPUs that run the program read it, and these got its address in order.
        TABLE[place.first].store((faults.len() as u64) << 32 | table as u64, Ordering::Relaxed);
        for chunk in &FIRST[place.first..place.first + place.count] {
            chunk.store(place.first as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Returns the address where it runs.
    pub(crate) fn entry(&self) -> VirtAddr {
        VirtAddr(self.0.start())
    }

    /// Returns the bytes of packs that it occupies.
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

/// Calls every CPU, after which none is inside a retired program, and gives back the places of these: when this
/// returns, traps are where all programs were that had been retired before. Returns how many this CPU has given back.
pub(crate) fn reclaim() -> usize {
    RECLAIMS.alone(reclaim_retired)
}

/// Does it, with the turn.
fn reclaim_retired() -> usize {
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

/// Returns how many chunks programs have, retired ones too.
pub(crate) fn taken() -> u32 {
    TAKEN.lock().iter().flatten().map(ChunkMap::used).sum()
}

/// Returns whether `address` is in the packs.
pub(crate) fn contains(address: u64) -> bool {
    range().contains(&VirtAddr(address))
}

/// Returns where a program continues after a fault of its load at `instruction`, if that load may fault.
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

/// Returns the physical address of the first chunk, in some copy, that is not all traps.
pub(crate) fn first_that_is_no_trap() -> Option<u64> {
    assert_eq!(taken(), 0, "looked at when there are no programs");
    let traps = traps();
    nodes().into_iter().find_map(|node| {
        (0..(PACKS * PACK) as u64).step_by(CHUNK).map(|offset| packs_of(node) + offset).find(|&at| {
            // SAFETY: a node's copy, which nobody writes at this time.
            let bytes = unsafe { core::slice::from_raw_parts(alias(at), CHUNK) };
            bytes != traps
        })
    })
}
