//! How often the heap is asked: for each program that is put in place one by one, that is most of the time it takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use palimpsest_text::{Packs, Part, Parts, ReclaimPolicy, Size, Working};

thread_local! {
    /// How often this thread has asked for memory.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

/// The system's heap, which counts.
struct Counting;

// SAFETY: the system's heap does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Returns how often `work` asks the heap, at least once in ten times: lists of the packs grow now and then.
fn asked(mut work: impl FnMut()) -> usize {
    let times = (0..10).map(|_| {
        let before = ASKED.get();
        work();
        ASKED.get() - before
    });
    times.min().unwrap_or_default()
}

#[test]
fn what_is_put_in_place_asks_the_heap_for_images_and_what_its_parts_share() {
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let some = Size { len: 40, align: 8 };
    let code = Parts { code: some, ..Parts::default() };
    let all = Parts { code: some, read_only: some, read_write: some };
    for (sizes, name, wanted) in [(code, "", 1 + 3), (all, "", 3 + 3), (all, "name", 3 + 3 + 1)] {
        let found = asked(|| {
            let mut taken = packs.allocate(sizes, Working::Private).unwrap();
            if !name.is_empty() {
                taken.set_name(name);
            }
            let at = taken.range(Part::Code).start;
            taken.finalize().unwrap().keep();
            packs.release(at).unwrap();
        });
        assert_eq!(found, wanted, "{sizes:?} {name:?}");
    }
    assert_eq!(asked(|| drop(packs.load(&[0; 40], 8).unwrap())), 0, "a program without a name");
    assert_eq!(asked(|| drop(packs.stage(40, 8).unwrap().finalize().unwrap())), 1, "an image");
}
