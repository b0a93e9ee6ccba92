//! From an address inside a pack to the program that covers it, without a lock.
//!
//! # Layout
//!
//! One *start bit* per chunk is set where a program begins; `owner` holds, for such a chunk, the number of the
//! program's entry plus one. Entries lie in blocks that are allocated as needed and stay in place as long as the
//! directory.
//!
//! # Who may do what
//!
//! | state of an entry | start bit, owner | written by | read by |
//! |---|---|---|---|
//! | *free* | none | – | nobody |
//! | *reserved* | none | the loader that reserved it | the loader |
//! | *published* | set | nobody | anybody with a [`ReadGuard`], and whoever knows that it stays published |
//! | *unlinked* | cleared | nobody | readers whose guard is older than the unlinking |
//!
//! An unlinked entry becomes free after every reader that was there has left. Readers are counted by two counters; the
//! *phase* decides which one a reader takes, so that the counter that the reclaimer waits for reaches zero even if
//! there are always readers. Reader R and reclaimer X, for either counter:
//!
//! ```text
//!   R: (a) count += 1            X: (c) clear start bit and owner
//!      fence                        fence
//!      (b) read bit and owner       (d) read count: zero, at some time
//! ```
//!
//! Were (b) to find the program while (d) misses R, then (a) would come after (d) and (c) after (b) in the order of the
//! two SeqCst fences: a cycle. So either R does not find the entry, or X sees R in the counter that R took; X must see
//! each counter at zero once before it continues. The phase matters for progress only.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering;

use crate::primitive::{AtomicPtr, AtomicU16, AtomicU64, AtomicUsize, fence};

/// Entries in one block.
const BLOCK: usize = if cfg!(loom) { 2 } else { 128 };

/// How often [`Readers::leave`] looks at a counter.
const LOOKS: usize = if cfg!(loom) { 1 } else { 256 };

/// Counts the threads that are reading some directory.
pub(crate) struct Readers {
    /// Any reader adds one to either and subtracts it again; reclaimers read.
    counts: [AtomicUsize; 2],
    /// Reclaimers add to it; readers read it to choose a counter.
    phase: AtomicUsize,
}

impl Readers {
    pub(crate) fn new() -> Self {
        Self { counts: [AtomicUsize::new(0), AtomicUsize::new(0)], phase: AtomicUsize::new(0) }
    }

    /// Begins to read. Wait-free and async-signal-safe.
    pub(crate) fn enter(&self) -> ReadGuard<'_> {
        // Relaxed: both counters are right.
        let count = &self.counts[self.phase.load(Ordering::Relaxed) % 2];
        // Relaxed: ordered by the fence.
        count.fetch_add(1, Ordering::Relaxed);
        // SeqCst, partner: `leave`. Forbids the cycle of the module header.
        fence(Ordering::SeqCst);
        ReadGuard(count)
    }

    /// Waits a moment for readers who can still see what was unlinked before this call. Returns whether all have left.
    /// Does not wait for readers who come meanwhile.
    pub(crate) fn leave(&self) -> bool {
        self.leave_counters(2)
    }

    /// Does what [`leave`](Self::leave) does, with a number of counters that a model may lower.
    pub(super) fn leave_counters(&self, counters: usize) -> bool {
        // SeqCst, partner: `enter`.
        fence(Ordering::SeqCst);
        (0..counters).all(|_| {
            // Relaxed: when readers see it does not matter. Several threads may do this at once.
            let count = &self.counts[self.phase.fetch_add(1, Ordering::Relaxed) % 2];
            (0..LOOKS).any(|look| {
                if look > 16 {
                    std::thread::yield_now();
                }
                // Acquire, partner: the Release of `ReadGuard::drop`. Forbids that a reader's last reads come after the
                // reuse.
                count.load(Ordering::Acquire) == 0
            })
        })
    }
}

/// Keeps what the holder has found from being reused.
pub(crate) struct ReadGuard<'a>(&'a AtomicUsize);

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        // Release, partner: `leave`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The number of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId(u16);

/// The free entries; kept beside the directory, under the lock of the threads that reserve and recycle.
#[derive(Default)]
pub(crate) struct FreeEntries {
    /// Free entries that were in use before.
    recycled: Vec<EntryId>,
    /// Entries from here on have never been used.
    fresh: u16,
}

/// See the module's documentation.
pub(crate) struct Directory<T> {
    /// A bit for each chunk. The loader that holds a chunk sets its bit and the reclaimer clears it; anybody reads.
    starts: Box<[AtomicU64]>,
    /// A number for each chunk, written by the same two, together with the bit.
    owner: Box<[AtomicU16]>,
    /// Added under the lock that guards [`FreeEntries`], read by anybody, freed with `self`.
    blocks: Box<[AtomicPtr<Block<T>>]>,
}

type Block<T> = [UnsafeCell<MaybeUninit<T>>; BLOCK];

// SAFETY: the states of the module header hand every entry from one thread to the next; payloads are shared by readers.
unsafe impl<T: Send + Sync> Sync for Directory<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Directory<T> {}

impl<T> Directory<T> {
    /// Creates a directory of `chunks` chunks, at most 32768.
    pub(crate) fn new(chunks: u32) -> Self {
        assert!(chunks <= 1 << 15, "{chunks} chunks do not fit the owner's 16 bits");
        let chunks = chunks as usize;
        Self {
            starts: (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            owner: (0..chunks).map(|_| AtomicU16::new(0)).collect(),
            blocks: (0..chunks.div_ceil(BLOCK)).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
        }
    }

    /// Takes a free entry. There are as many entries as chunks, so a caller who holds a chunk always gets one.
    pub(crate) fn reserve(&self, free: &mut FreeEntries) -> EntryId {
        if let Some(id) = free.recycled.pop() {
            return id;
        }
        let id = EntryId(free.fresh);
        free.fresh += 1;
        let block = &self.blocks[usize::from(id.0) / BLOCK];
        // Relaxed: blocks are only added under the lock that guards `free`.
        if block.load(Ordering::Relaxed).is_null() {
            let fresh: Box<Block<T>> = Box::new([const { UnsafeCell::new(MaybeUninit::uninit()) }; BLOCK]);
            // Release, partner: the Acquire load in `entry`.
            block.store(Box::into_raw(fresh), Ordering::Release);
        }
        id
    }

    /// Gives a reserved or unlinked entry back.
    pub(crate) fn recycle(free: &mut FreeEntries, id: EntryId) {
        free.recycled.push(id);
    }

    /// Publishes `value` as what is found at `chunk` and behind it. Returns where it lies.
    ///
    /// # Safety
    ///
    /// 1. `id` is reserved in this directory by the caller.
    /// 2. `chunk` begins a run that the caller owns, and no other program is published in it.
    pub(crate) unsafe fn publish(&self, chunk: u32, id: EntryId, value: T) -> ptr::NonNull<T> {
        // SAFETY: the caller's contract.
        unsafe { self.publish_ordered(chunk, id, value, Ordering::Release) }
    }

    /// Does what [`publish`](Self::publish) does, with an ordering that a model may weaken.
    /// # Safety
    ///
    /// As for [`publish`](Self::publish).
    pub(super) unsafe fn publish_ordered(
        &self,
        chunk: u32,
        id: EntryId,
        value: T,
        release: Ordering,
    ) -> ptr::NonNull<T> {
        let entry = self.entry(id);
        // SAFETY: a reserved entry belongs to this caller alone (1).
        unsafe { entry.write(value) };
        // Release, partner: the Acquire load in `find`. Forbids a reader that sees the number but not the value.
        self.owner[chunk as usize].store(id.0 + 1, release);
        // Release, partner: the Acquire load in `find`. Forbids a reader that sees the bit and an older owner's number.
        self.starts[chunk as usize / 64].fetch_or(1 << (chunk % 64), release);
        // SAFETY: derived from a reference to an element of a block.
        unsafe { ptr::NonNull::new_unchecked(entry) }
    }

    /// Unpublishes the program at `chunk`: no later reader finds it.
    pub(crate) fn unlink(&self, chunk: u32) {
        // Relaxed: ordered before the check of the readers by the fence in `leave`.
        self.starts[chunk as usize / 64].fetch_and(!(1 << (chunk % 64)), Ordering::Relaxed);
        self.owner[chunk as usize].store(0, Ordering::Relaxed);
    }

    /// Takes the value out of an unlinked entry.
    ///
    /// # Safety
    ///
    /// 1. `id` was published and is unlinked, and the readers have been quiet since.
    /// 2. Its value was not taken before.
    pub(crate) unsafe fn take(&self, id: EntryId) -> T {
        // SAFETY: 1. initialised by `publish`, and nobody refers to it any more; 2. it is read out only once.
        unsafe { self.entry(id).read() }
    }

    /// Returns the program that begins last at or before `chunk`. The caller checks whether it reaches as far as
    /// `chunk`.
    pub(crate) fn find<'g>(&'g self, chunk: u32, _guard: &'g ReadGuard<'_>) -> Option<&'g T> {
        let mut index = chunk as usize / 64;
        let mut mask = u64::MAX >> (63 - chunk % 64);
        loop {
            // Acquire, partner: `publish`.
            let bits = self.starts.get(index)?.load(Ordering::Acquire) & mask;
            if bits != 0 {
                let start = index * 64 + (63 - bits.leading_zeros() as usize);
                // Acquire, partner: `publish`.
                let number = self.owner[start].load(Ordering::Acquire);
                let entry = self.entry(EntryId(number.checked_sub(1)?));
                // SAFETY: published when its number was read, hence initialised; it is not reused before the guard is
                // dropped (module header), which outlives the reference.
                return Some(unsafe { &*entry });
            }
            index = index.checked_sub(1)?;
            mask = u64::MAX;
        }
    }

    fn entry(&self, id: EntryId) -> *mut T {
        let (block, place) = (usize::from(id.0) / BLOCK, usize::from(id.0) % BLOCK);
        // Acquire, partner: the Release store in `reserve`.
        let block = self.blocks[block].load(Ordering::Acquire);
        // SAFETY: an id is made by `reserve`, after it has allocated the block, which lives as long as `self`.
        let block = unsafe { &*block };
        block[place].get().cast()
    }
}

impl<T> Drop for Directory<T> {
    fn drop(&mut self) {
        for block in &self.blocks {
            let block = block.load(Ordering::Relaxed);
            if !block.is_null() {
                // SAFETY: made by `Box::into_raw` in `reserve`, and dropped only here. The owner of the directory drops
                // values that are still published, since it knows which these are.
                drop(unsafe { Box::from_raw(block) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_start_at_or_before_a_chunk_is_found() {
        let directory = Directory::new(300);
        let readers = Readers::new();
        let mut free = FreeEntries::default();
        for chunk in [0, 63, 64, 200] {
            let id = directory.reserve(&mut free);
            // SAFETY: 1. just reserved; 2. nothing else is published there.
            unsafe { directory.publish(chunk, id, chunk) };
        }
        let guard = readers.enter();
        for (chunk, start) in [(0, 0), (62, 0), (63, 63), (64, 64), (199, 64), (200, 200), (299, 200)] {
            assert_eq!(directory.find(chunk, &guard), Some(&start), "chunk {chunk}");
        }
        directory.unlink(0);
        directory.unlink(64);
        assert_eq!(directory.find(5, &guard), None);
        assert_eq!(directory.find(199, &guard), Some(&63));
        // However often one looks: the guard's counter is looked at in every second call.
        for look in 0..4 {
            assert!(!readers.leave(), "look {look}");
        }
        drop(guard);
        assert!(readers.leave());
    }

    #[test]
    fn entries_are_reused() {
        let directory: Directory<u8> = Directory::new(64);
        let mut free = FreeEntries::default();
        let first = directory.reserve(&mut free);
        Directory::<u8>::recycle(&mut free, first);
        assert_eq!(directory.reserve(&mut free), first);
        assert_ne!(directory.reserve(&mut free), first);
    }
}
