//! From the inventory to the last replacement nothing uses the heap; nor does a refusal.
//!
//! The test's allocator knows the time from the mask of blocked signals: a freeze blocks all of them for exactly that
//! long.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use common::{Memory, freeze, page, play};
use palimpsest_fork::{FreezeError, Measure, Options, OtherThreads, freeze as freeze_process};

struct Watched;

/// Calls while every signal is blocked.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// All calls.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// The thread whose refusal is watched, and its calls; 0 if none.
static REFUSED: AtomicI32 = AtomicI32::new(0);
static BY_REFUSED: AtomicUsize = AtomicUsize::new(0);

fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn count() {
    ALL.fetch_add(1, Ordering::Relaxed);
    if REFUSED.load(Ordering::Relaxed) == own_thread() {
        BY_REFUSED.fetch_add(1, Ordering::Relaxed);
    }
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

/// Tries to freeze. Returns the refusal, and how often it used the heap.
fn refusal(options: &Options) -> (Option<FreezeError>, usize) {
    // Another thread may use the heap meanwhile: it has only just been started.
    BY_REFUSED.store(0, Ordering::Relaxed);
    REFUSED.store(own_thread(), Ordering::Relaxed);
    // SAFETY: the scenario keeps the contract.
    let outcome = unsafe { freeze_process(options) };
    REFUSED.store(0, Ordering::Relaxed);
    (outcome.err(), BY_REFUSED.load(Ordering::Relaxed))
}

#[test]
fn a_refusal_does_not_use_the_heap() {
    play("a_refusal_does_not_use_the_heap", || {
        let options = Options::new().measure(Measure::Nothing);
        freeze(&options);
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv());
        let (error, used) = refusal(&options);
        assert!(matches!(error, Some(FreezeError::Threads { .. })) && used == 0, "{error:?}, {used} times");
        drop(end);
        let _ = thread.join();
        // The last thing that a check looks at.
        let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: Some(1 << 30) };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("lowered");
        let (error, used) = refusal(&options);
        assert!(matches!(error, Some(FreezeError::FileSizeLimit { .. })) && used == 0, "{error:?}, {used} times");
    });
}

#[test]
fn at_the_limit_of_mappings_there_is_an_error() {
    play("at_the_limit_of_mappings_there_is_an_error", || {
        let memory = Memory::apart(8 << 20);
        memory.fill(0..memory.len, 1);
        let most = palimpsest_sys::proc::sysctl::max_map_count().expect("/proc");
        if most > 1 << 20 {
            common::skip("vm.max_map_count is too high to be reached");
        }
        // Every other page has other rights, until there are no mappings left.
        let many = Memory::map((usize::try_from(most).expect("small") + 2) * page());
        for offset in (0..many.len).step_by(2 * page()) {
            // SAFETY: the scenario's own memory, which nobody uses.
            if unsafe { libc::mprotect(many.at(offset), page(), libc::PROT_NONE) } != 0 {
                break;
            }
        }
        // SAFETY: a new mapping replaces nothing.
        while unsafe { libc::mmap(std::ptr::null_mut(), page(), libc::PROT_READ, 0x22, -1, 0) } != libc::MAP_FAILED {}
        let (error, used) = refusal(&Options::new().measure(Measure::Nothing));
        assert!(error.is_some() && used == 0, "{error:?}, {used} times");
        assert!(memory.holds(0..memory.len, 1));
    });
}
