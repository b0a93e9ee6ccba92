//! What was put into planned memory since the plan, and nobody has reported, is left out of slices: what threads use,
//! and what the C library keeps from children.

mod common;

use std::time::Duration;

use common::gathering::to_the_end;
use common::{Memory, freeze, in_child, page, play};
use palimpsest_fork::{Measure, Options, OtherThreads, Pause, Stage};

const MIB: usize = 1 << 20;

fn in_slices() -> Options {
    Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO))
}

/// Where a stack of 2 MiB is put into the memory of the scenario.
const STACK: usize = 8 * MIB;

/// Starts a thread on the stack in this memory.
fn on_its_stack(memory: &Memory, start: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void) -> libc::pthread_t {
    // SAFETY: a set of numbers, which the next call fills in.
    let mut attributes = unsafe { std::mem::zeroed::<libc::pthread_attr_t>() };
    // SAFETY: `attributes` outlives the call, as below.
    assert_eq!(unsafe { libc::pthread_attr_init(&raw mut attributes) }, 0);
    // SAFETY: memory of the scenario that nobody else uses from here on.
    assert_eq!(unsafe { libc::pthread_attr_setstack(&raw mut attributes, memory.at(STACK), 2 * MIB) }, 0);
    let mut thread = 0;
    // SAFETY: the thread's function takes nothing; the scenario's memory is never unmapped.
    assert_eq!(unsafe { libc::pthread_create(&raw mut thread, &raw const attributes, start, memory.at(0)) }, 0);
    thread
}

/// Takes slices to the end. The argument is the start of the memory in which its own stack is.
extern "C" fn take_slices(start: *mut libc::c_void) -> *mut libc::c_void {
    let here = std::hint::black_box([0_u8; 1]);
    assert_eq!(to_the_end(|_| {}).stage, Stage::Done);
    let maps = palimpsest_sys::pages::maps::Maps::read().expect("/proc");
    let is_frozen = |address: usize| maps.at(address).expect("mapped").path.is_some();
    assert!(!is_frozen(here.as_ptr().addr()), "this thread has run on it meanwhile");
    let around = [STACK - page(), STACK, STACK + 2 * MIB + 64 * page()].map(|offset| is_frozen(start.addr() + offset));
    assert_eq!(around, [true; 3], "what it did not use");
    std::ptr::null_mut()
}

/// Fails on: slices that leave out only what was in use when they were planned.
#[test]
fn a_stack_that_was_put_into_planned_memory_is_left_out() {
    play("a_stack_that_was_put_into_planned_memory_is_left_out", || {
        let options = in_slices().other_threads(OtherThreads::Stop);
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&options);
        let thread = on_its_stack(&memory, take_slices);
        // SAFETY: a thread that nobody has waited for.
        assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
        assert!(memory.holds(0..STACK, 1) && memory.holds(STACK + 2 * MIB..memory.len, 1));
    });
}

/// Fails on: what the C library draws random numbers from, frozen, so that a child draws the same.
#[test]
fn what_is_wiped_in_children_and_mapped_unseen_is_left_alone() {
    play("what_is_wiped_in_children_and_mapped_unseen_is_left_alone", || {
        /// `MAP_DROPPABLE` (Linux 6.11, `include/uapi/linux/mman.h`).
        const DROPPABLE: i32 = 8;
        let memory = Memory::apart(8 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&in_slices());
        let (unseen, end) = (memory.at(4 * MIB), 5 * MIB);
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS | libc::MAP_FIXED | DROPPABLE);
        // As the C library does, of which nobody hears. SAFETY: the scenario's own memory.
        if unsafe { libc::mmap(unseen.cast(), MIB, rights, flags, -1, 0) } == libc::MAP_FAILED {
            common::skip("the kernel has no MAP_DROPPABLE (before Linux 6.11)");
        }
        memory.fill(4 * MIB..end, 2);
        assert_eq!(to_the_end(|_| {}).stage, Stage::Done);
        let part = |from: usize, to: usize| Memory { start: memory.at(from).cast(), len: to - from };
        assert!(part(0, 4 * MIB).is_frozen() && part(end, memory.len).is_frozen());
        assert!(memory.holds(0..4 * MIB, 1) && memory.holds(end..memory.len, 1));
        assert!(memory.holds(4 * MIB..end, 2));
        assert_eq!(in_child(|| i32::from(!memory.is_zero(4 * MIB..end))), 0, "a child has none of it");
    });
}
