//! From the inventory to the last replacement nothing uses the heap.
//!
//! The test's allocator is told by the mask of blocked signals: a freeze blocks all of them for exactly that time.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Memory, freeze, play};
use palimpsest_fork::{Options, OtherThreads};

struct Watched;

/// Calls while every signal is blocked.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// All calls.
static ALL: AtomicUsize = AtomicUsize::new(0);

fn count() {
    ALL.fetch_add(1, Ordering::Relaxed);
    let mut mask = 0_u64;
    // SAFETY: only asks for the mask, of 8 bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0_usize, &raw mut mask, 8) };
    // SIGKILL and SIGSTOP cannot be blocked.
    if mask.count_ones() == 62 {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(at, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

#[test]
fn a_freeze_does_not_use_the_heap() {
    play("a_freeze_does_not_use_the_heap", || {
        let memory = Memory::apart(32 << 20);
        memory.fill(0..memory.len, 1);
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv());
        let options = Options::new().other_threads(OtherThreads::Stop);
        for round in 2..8 {
            freeze(&options);
            memory.fill(0..3 << 20, round);
            freeze(&options);
            assert!(memory.holds(0..3 << 20, round));
        }
        palimpsest_fork::guard::thaw(memory.range()).expect("thawed");
        assert!(ALL.load(Ordering::Relaxed) > 100, "the count counts");
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        drop(end);
        let _ = thread.join();
    });
}
