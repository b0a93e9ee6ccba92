//! This object's own heap, apart from the program's.
//!
//! A fork may happen in a signal handler that interrupted the program's `malloc`, whose locks are then held for ever;
//! and whoever freezes the program's heap should not change it. Freezing and reporting are rare and need little.
//!
//! Blocks of a power of two come from a region and go back to a list for their size. The first region lies among the
//! object's variables; the second is mapped once that is full, and goes with the last of its blocks. Larger blocks are
//! mappings, and so are all once both are full. The lock is only ever tried: if it is held, by another thread or by the
//! code that a signal handler interrupted, a new block is mapped, and a block given back is lost.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arch::system_call;
use crate::confined;

/// Address space for blocks; only used parts become memory. Less than a huge page: the kernel would put that on a
/// boundary of 2 MiB, with a page table of its own, which every fork copies.
const REGION: usize = 1 << 20;
/// Bytes for the first blocks, among variables whose mapping and page table each fork copies in any case: a mapping
/// more costs it some 4 µs. What a look that finds nothing leaves fits. With what follows, whole pages.
const FIRST: usize = (32 << 10) - 256;
/// The smallest block, which also holds the link of a list.
const LEAST_SHIFT: u32 = 4;
/// The largest block from the region.
const MOST_SHIFT: u32 = 18;
const CLASSES: usize = (MOST_SHIFT - LEAST_SHIFT + 1) as usize;
/// The size of a page, or less: no supported machine has smaller ones, and asking the C library would touch two pages
/// in each program that is started.
const LEAST_PAGE: usize = 4096;

/// The allocator.
///
/// In whole pages: no block shares one with variables that a child writes to.
#[repr(C, align(4096))]
pub(crate) struct OwnHeap {
    first: First,
    /// Held: `state` belongs to the thread that set it. Set with `Acquire`, cleared with `Release` in
    /// [`OwnHeap::with_state`]: so the next holder sees the lists as the last one left them.
    is_locked: AtomicBool,
    state: UnsafeCell<State>,
}

/// The memory of the first region, at the start of a page.
struct First(UnsafeCell<[u8; FIRST]>);

struct State {
    first: Region,
    more: Region,
    /// For each class, a block that was given back; its first bytes hold the next.
    free: [*mut u8; CLASSES],
}

/// Memory that blocks come from.
struct Region {
    /// Null before the first use.
    base: *mut u8,
    len: usize,
    /// Bytes that were handed out at least once.
    used: usize,
    /// Blocks in use.
    blocks: usize,
}

impl Region {
    const fn new(len: usize) -> Self {
        Self { base: ptr::null_mut(), len, used: 0, blocks: 0 }
    }

    /// Takes a block that was never handed out; makes the region by `make` first, if there is none.
    fn take(&mut self, shift: u32, make: impl FnOnce(usize) -> Option<*mut u8>) -> Option<*mut u8> {
        // The region is aligned to pages only, and so are larger blocks: nothing here asks for more.
        let start = self.used.checked_next_multiple_of((1 << shift).min(LEAST_PAGE))?;
        let end = start.checked_add(1 << shift).filter(|&end| end <= self.len)?;
        if self.base.is_null() {
            self.base = make(self.len)?;
        }
        self.used = end;
        // SAFETY: `start` lies within the region.
        Some(unsafe { self.base.add(start) })
    }

    fn holds(&self, block: *mut u8) -> bool {
        !self.base.is_null() && (self.base.addr()..self.base.addr() + self.len).contains(&block.addr())
    }
}

// SAFETY: `state` is touched only by the holder of `is_locked`, one at a time; `first` by who has a block of it.
unsafe impl Sync for OwnHeap {}

impl OwnHeap {
    pub(crate) const fn new() -> Self {
        Self {
            first: First(UnsafeCell::new([0; FIRST])),
            is_locked: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                first: Region::new(FIRST),
                more: Region::new(REGION),
                free: [ptr::null_mut(); CLASSES],
            }),
        }
    }

    /// Runs `under` with the state, unless somebody else holds it.
    fn with_state<T>(&self, under: impl FnOnce(&mut State) -> T) -> Option<T> {
        // Acquire: partner of the store below.
        if self.is_locked.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: the lock is ours, so that no other reference to the state lives.
        let state = unsafe { &mut *self.state.get() };
        let result = under(state);
        // Release: partner of the swap above.
        self.is_locked.store(false, Ordering::Release);
        Some(result)
    }
}

/// Returns the class of a block; `None` if it must be mapped.
fn class(layout: Layout) -> Option<u32> {
    let shift = layout.size().max(layout.align()).max(1).checked_next_power_of_two()?.trailing_zeros().max(LEAST_SHIFT);
    (shift <= MOST_SHIFT).then_some(shift)
}

impl State {
    fn take(&mut self, shift: u32, first: &First) -> Option<*mut u8> {
        let list = self.free.get_mut((shift - LEAST_SHIFT) as usize)?;
        let block = *list;
        if !block.is_null() {
            // SAFETY: a free block is at least as large and aligned as a pointer, and holds the next one of its list.
            *list = unsafe { link(block).read() };
            self.more.blocks += usize::from(self.more.holds(block));
            return Some(block);
        }
        self.first.take(shift, |_| Some(first.0.get().cast())).or_else(|| {
            let block = self.more.take(shift, map)?;
            self.more.blocks += 1;
            Some(block)
        })
    }

    fn holds(&self, block: *mut u8) -> bool {
        self.first.holds(block) || self.more.holds(block)
    }

    fn give_back(&mut self, block: *mut u8, shift: u32) {
        let Some(list) = self.free.get_mut((shift - LEAST_SHIFT) as usize) else { return };
        // SAFETY: the block was handed out with this class, so it can hold a pointer, and its user is done with it.
        unsafe { link(block).write(*list) };
        *list = block;
        if self.more.holds(block) {
            self.more.blocks -= 1;
            // A filter of the program's need not let through what it does not do itself.
            if self.more.blocks == 0 && !confined::is_seen() {
                self.give_up_more();
            }
        }
    }

    /// Unmaps the second region, of which no block is in use: each fork would copy it.
    fn give_up_more(&mut self) {
        let more = std::mem::replace(&mut self.more, Region::new(REGION));
        for list in &mut self.free {
            let (mut kept, mut next) = (ptr::null_mut(), *list);
            while !next.is_null() {
                let block = next;
                // SAFETY: a free block, which holds the next one of its list.
                next = unsafe { link(block).read() };
                if !more.holds(block) {
                    // SAFETY: as above.
                    unsafe { link(block).write(kept) };
                    kept = block;
                }
            }
            *list = kept;
        }
        unmap(more.base, more.len);
    }
}

// SAFETY: blocks are distinct, as large as asked for, aligned to the smaller of their size and `LEAST_PAGE`, and stay
// until given back; `alloc` refuses larger alignments.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > LEAST_PAGE {
            return ptr::null_mut();
        }
        let block = class(layout).and_then(|shift| self.with_state(|state| state.take(shift, &self.first)).flatten());
        block.or_else(|| map(mapped_length(layout))).unwrap_or(ptr::null_mut())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.with_state(|state| {
            let is_held = state.holds(block);
            if let (true, Some(shift)) = (is_held, class(layout)) {
                state.give_back(block, shift);
            }
            is_held
        }) {
            // Without the state nobody knows whether it is a mapping: it is lost.
            None | Some(true) => {}
            Some(false) => unmap(block, mapped_length(layout)),
        }
    }
}

/// Where a free block holds the next one.
fn link(block: *mut u8) -> *mut *mut u8 {
    block.cast()
}

/// The kernel rounds up to whole pages, when it maps and when it unmaps.
fn mapped_length(layout: Layout) -> usize {
    layout.size().max(1)
}

/// Maps memory from the kernel, past the functions of this object.
fn map(length: usize) -> Option<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: makes a mapping at a place that the kernel chooses, which nobody uses.
    let answer =
        unsafe { system_call(libc::SYS_mmap, [0, length, protection as usize, flags as usize, usize::MAX, 0]) };
    // The kernel returns no address in the upper half, and errors are negative.
    (answer > 0).then(|| ptr::with_exposed_provenance_mut(answer.cast_unsigned()))
}

fn unmap(block: *mut u8, length: usize) {
    // SAFETY: the block is a mapping of this length that `map` made, and its user is done with it.
    unsafe { system_call(libc::SYS_munmap, [block.expose_provenance(), length, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a valid layout")
    }

    #[test]
    fn blocks_are_apart_aligned_and_used_again() {
        let heap = OwnHeap::new();
        let mut blocks: Vec<(*mut u8, Layout)> = Vec::new();
        for (size, align) in [(1, 1), (8, 8), (24, 8), (100, 64), (4096, 4096), (5000, 8), (1 << 18, 16), (1 << 20, 8)]
        {
            let layout = layout(size, align);
            // SAFETY: the size is not zero.
            let block = unsafe { heap.alloc(layout) };
            assert!(!block.is_null() && block.addr() % align == 0);
            // SAFETY: the block is that long.
            unsafe { block.write_bytes(blocks.len() as u8 + 1, size) };
            blocks.push((block, layout));
        }
        for (index, (block, layout)) in blocks.iter().enumerate() {
            for place in [0, layout.size() - 1] {
                // SAFETY: within the block.
                let byte = unsafe { block.add(place) };
                // SAFETY: the whole block was written.
                assert_eq!(unsafe { byte.read() }, index as u8 + 1);
            }
        }
        for (block, layout) in &blocks {
            // SAFETY: it came from this heap with this layout, and is not used any more.
            unsafe { heap.dealloc(*block, *layout) };
        }
        // SAFETY: the size is not zero.
        let again = unsafe { heap.alloc(layout(20, 8)) };
        assert_eq!(again, blocks[2].0, "a block of 32 bytes was free");
    }

    #[test]
    fn while_the_lock_is_held_blocks_are_mappings() {
        let heap = OwnHeap::new();
        let layout = layout(100, 8);
        let block = heap.with_state(|_| {
            // SAFETY: the size is not zero.
            unsafe { heap.alloc(layout) }
        });
        let block = block.expect("the lock was free");
        assert!(!block.is_null());
        assert_eq!(heap.with_state(|state| state.holds(block)), Some(false));
        // SAFETY: it came from this heap with this layout, and is not used any more.
        unsafe { heap.dealloc(block, layout) };
    }

    #[test]
    fn a_full_region_is_no_end() {
        let heap = OwnHeap::new();
        let layout = layout(1 << MOST_SHIFT, 8);
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..(FIRST + REGION) / (1 << MOST_SHIFT) + 4 {
            // SAFETY: the size is not zero.
            let block = unsafe { heap.alloc(layout) };
            assert!(!block.is_null());
            assert!(places.insert(block), "handed out twice");
        }
    }

    /// Fails on: a mapping for what fits among the variables; blocks of both regions in one place.
    #[test]
    fn small_blocks_come_first_from_the_variables() {
        let heap = OwnHeap::new();
        let own = heap.first.0.get().addr()..heap.first.0.get().addr() + FIRST;
        let layout = layout(1 << 10, 8);
        // SAFETY: the size is not zero.
        let places: Vec<*mut u8> = (0..FIRST >> 9).map(|_| unsafe { heap.alloc(layout) }).collect();
        assert!(places.iter().all(|place| !place.is_null()));
        let inside = places.iter().map(|place| own.contains(&place.addr()));
        assert_eq!(inside.collect::<Vec<_>>(), (0..FIRST >> 9).map(|number| number < FIRST >> 10).collect::<Vec<_>>());
        assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), places.len());
        // SAFETY: it came from this heap with this layout, and is not used any more.
        unsafe { heap.dealloc(places[0], layout) };
        // SAFETY: the size is not zero.
        assert_eq!(unsafe { heap.alloc(layout) }, places[0], "it was free");
    }

    /// Fails on: a region that stays mapped when it is not needed, for each fork to copy; a block of it that is handed
    /// out afterwards.
    #[test]
    fn the_second_region_goes_with_its_last_block() {
        let heap = OwnHeap::new();
        let layout = layout(1 << 10, 8);
        // SAFETY: the size is not zero.
        let take = || unsafe { heap.alloc(layout) };
        let is_there = || heap.with_state(|state| !state.more.base.is_null());
        for _ in 0..3 {
            let places: Vec<*mut u8> = (0..FIRST >> 9).map(|_| take()).collect();
            assert_eq!(is_there(), Some(true));
            for place in places {
                // SAFETY: a block of that length.
                unsafe { place.write_bytes(1, 1 << 10) };
                // SAFETY: it came from this heap with this layout, and is not used any more.
                unsafe { heap.dealloc(place, layout) };
            }
            assert_eq!(is_there(), Some(false));
        }
    }

    #[test]
    fn alignment_beyond_a_page_is_refused() {
        // SAFETY: the size is not zero.
        assert!(unsafe { OwnHeap::new().alloc(layout(1 << 16, 1 << 17)) }.is_null());
    }
}
