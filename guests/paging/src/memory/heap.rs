//! The kernel's heap, for what tests keep in boxes and vectors: blocks of powers of two from one array.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;

use crate::sync::SpinLock;

const BYTES: usize = 4 << 20;
/// The smallest block, 1 << 4 bytes, and the number of sizes.
const SMALLEST: u32 = 4;
const SIZES: usize = 17;

#[repr(C, align(65536))]
struct Array(UnsafeCell<[u8; BYTES]>);

// SAFETY: each of its blocks has one owner.
unsafe impl Sync for Array {}

static ARRAY: Array = Array(UnsafeCell::new([0; BYTES]));

struct State {
    /// Addresses of the first free block of each size; each block holds the next one's address, and 0 ends a list.
    free: [usize; SIZES],
    used: usize,
}

struct Heap(SpinLock<State>);

#[global_allocator]
static HEAP: Heap = Heap(SpinLock::new(State { free: [0; SIZES], used: 0 }));

/// Returns the number of the size that holds the layout.
fn size_of(layout: &Layout) -> usize {
    let bytes = layout.size().max(layout.align()).max(1 << SMALLEST).next_power_of_two();
    (bytes.trailing_zeros() - SMALLEST) as usize
}

// SAFETY: blocks of a size are disjoint, aligned to their size, and in the list or in use, not both.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = size_of(&layout);
        if size >= SIZES {
            return core::ptr::null_mut();
        }
        let mut state = self.0.lock();
        let block = state.free[size];
        if block != 0 {
            // SAFETY: a free block, whose first word is the next one's address.
            state.free[size] = unsafe { (block as *const usize).read() };
            return block as *mut u8;
        }
        let bytes = 1 << (size as u32 + SMALLEST);
        let start = state.used.next_multiple_of(bytes);
        if start + bytes > BYTES {
            return core::ptr::null_mut();
        }
        state.used = start + bytes;
        (ARRAY.0.get() as usize + start) as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let size = size_of(&layout);
        let mut state = self.0.lock();
        #[expect(clippy::cast_ptr_alignment, reason = "blocks are aligned to their size, at least 16")]
        // SAFETY: the block is free from now on, and at least 16 bytes long.
        unsafe {
            block.cast::<usize>().write(state.free[size])
        };
        state.free[size] = block as usize;
    }
}
