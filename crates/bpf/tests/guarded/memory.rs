//! Memory that begins and ends beside pages that nobody may touch.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_sys::{PlacedMapping, Protection, Reservation, Source};

/// Bytes of it: a multiple of every page that Linux has.
pub(crate) const LEN: usize = 64 << 10;
/// Contents of the bytes that belong to nobody.
pub(crate) static UNTOUCHED: [u8; LEN] = [0xa5; LEN];

/// Which end of the memory something lies at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Its first byte is the first.
    Low,
    /// Its last byte is the last.
    High,
}

/// Memory between pages that nobody may touch.
pub(crate) struct Guarded {
    memory: PlacedMapping,
    _around: Arc<Reservation>,
}

impl Guarded {
    pub(crate) fn new() -> Self {
        const AROUND: usize = 64 << 10;
        let around = Arc::new(Reservation::new(LEN + 2 * AROUND, AROUND).expect("room for pages"));
        let memory = around.place(AROUND, LEN, Source::Anonymous, Protection::ReadWrite).expect("room for pages");
        let guarded = Self { memory, _around: around };
        guarded.bytes().copy_from_slice(&UNTOUCHED);
        guarded
    }

    /// All of it.
    #[expect(clippy::mut_from_ref, reason = "tests use it between runs of programs, by one thread")]
    pub(crate) fn bytes(&self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing; the test has one thread, and no other reference at the time.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), LEN) }
    }

    /// Returns where `len` bytes at one of its ends begin.
    pub(crate) fn at(&self, end: End, len: usize) -> usize {
        match end {
            End::Low => 0,
            End::High => LEN - len,
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.address()
    }
}

/// Where the next array of [`super::VALUE_WORDS`] words goes; 0 to let the system choose.
pub(crate) static NEXT_VALUE: AtomicUsize = AtomicUsize::new(0);
/// The addresses given out in this way, which are never given back to the system.
static GIVEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The system's allocator, except for the values of the map.
struct Values;

#[global_allocator]
static HEAP: Values = Values;

// SAFETY: what is given out besides the system's memory is as long and as aligned as is asked for, and of one owner.
unsafe impl GlobalAlloc for Values {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() == super::VALUE_WORDS * 8 && layout.align() == 8 {
            // Relaxed: one thread sets it and allocates.
            let place = NEXT_VALUE.swap(0, Ordering::Relaxed);
            if place != 0
                && let Some(given) = GIVEN.iter().find(|given| given.load(Ordering::Relaxed) == 0)
            {
                given.store(place, Ordering::Relaxed);
                return std::ptr::with_exposed_provenance_mut(place);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if GIVEN.iter().any(|given| given.load(Ordering::Relaxed) == block.addr()) {
            return;
        }
        // SAFETY: as the caller promises: it came from there.
        unsafe { System.dealloc(block, layout) };
    }
}
