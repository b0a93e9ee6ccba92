//! Calls for signal handlers, in a process that has made no handle: a program of its own, whose heap is watched.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;

use palimpsest_capi::allocations::{palimpsest_alloc_found, palimpsest_alloc_query};
use palimpsest_capi::packs::{palimpsest_found, palimpsest_lookup, palimpsest_packs};
use palimpsest_capi::result::palimpsest_result::PALIMPSEST_STALE;

/// The usual heap, which counts what each thread takes from it.
struct Counting;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes everything on; a number needs no heap and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: the contract is the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the contract is the caller's.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Fails on: tables of handles that the first look at them makes.
#[test]
fn before_the_first_handle_nothing_is_found_without_the_heap() {
    let packs = palimpsest_packs { handle: 1 << 32 | 1 };
    let mut program = MaybeUninit::<palimpsest_found>::zeroed();
    let mut allocation = MaybeUninit::<palimpsest_alloc_found>::zeroed();
    let before = TAKEN.get();
    // SAFETY: 1. a local, of which all bytes can be read.
    let looked = unsafe { palimpsest_lookup(packs, std::ptr::null(), program.as_mut_ptr()) };
    // SAFETY: 1. as above.
    let asked = unsafe { palimpsest_alloc_query(packs, 0, allocation.as_mut_ptr()) };
    assert_eq!((looked, asked, TAKEN.get() - before), (PALIMPSEST_STALE, PALIMPSEST_STALE, 0));
}
