//! The arena as the allocator of single collections.
#![cfg(feature = "allocator-api2")]

use allocator_api2::alloc::{Allocator, Layout};
use allocator_api2::vec::Vec;
use palimpsest_fork::arena::Arena;

#[test]
fn a_vector_grows_shrinks_and_goes() {
    let arena = Arena::new();
    let mut numbers = Vec::new_in(&arena);
    numbers.extend(0..1_000_000_u64);
    arena.freeze().expect("the files are open");
    numbers.extend(1_000_000..1_500_000);
    numbers.truncate(10);
    numbers.shrink_to_fit();
    assert_eq!(numbers.as_slice(), (0..10).collect::<std::vec::Vec<u64>>());
    assert_eq!(arena.stats().in_use.blocks, 1);
    drop(numbers);
    assert_eq!(arena.stats().in_use.blocks, 0);
}

#[test]
fn growing_to_a_bigger_alignment_keeps_the_bytes() {
    let arena = Arena::new();
    let (small, large) = (Layout::new::<[u8; 100]>(), Layout::from_size_align(300, 1 << 20).expect("a layout"));
    let block = arena.allocate(small.size(), small.align());
    assert!(!block.is_null());
    // SAFETY: a block of 100 bytes.
    unsafe { block.write_bytes(7, 100) };
    let block = std::ptr::NonNull::new(block).expect("memory");
    // SAFETY: the block has the layout `small`, and `large` is not smaller.
    let grown = unsafe { Allocator::grow(&arena, block, small, large) }.expect("memory").cast::<u8>();
    assert!(grown.addr().get().is_multiple_of(1 << 20));
    // SAFETY: as many bytes were written before it grew.
    assert_eq!(unsafe { std::slice::from_raw_parts(grown.as_ptr(), 100) }, [7; 100]);
    // SAFETY: a block with this layout that is not used again.
    unsafe { Allocator::deallocate(&arena, grown, large) };
    assert_eq!(arena.stats().in_use.blocks, 0);
}
