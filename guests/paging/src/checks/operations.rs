//! What operations on a space that several CPUs run cost: flushes, and calls between CPUs.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use palimpsest_paging::format::Format;
use palimpsest_paging::{Access, Flush, Node, PAGE, Rights, VirtAddr};

use super::counts::{START, fill, map_one};
use crate::arch::mmu::{self, UserFormat, UserSpace};
use crate::counts::{Counts, now};
use crate::cpu::{self, CPUS};
use crate::memory::{self, Memory};
use crate::process::next_id;
use crate::sync::SpinLock;
use crate::{check, kernel_space, say};

/// A full table of pages, and half of another.
const BYTES: u64 = 3 << 20;

/// The space that CPUs are to run.
static HELD: SpinLock<Option<Arc<UserSpace>>> = SpinLock::new(None);
static HOLDERS: AtomicUsize = AtomicUsize::new(0);
static LET_GO: AtomicBool = AtomicBool::new(false);

/// Runs [`HELD`], and answers calls, until told to stop.
fn hold(_: usize) {
    let Some(space) = HELD.lock().clone() else { return };
    cpu::run_space(&space);
    // Release, partner: the Acquire in `with_holders`. Forbids that the CPU is counted before it is called.
    HOLDERS.fetch_add(1, Ordering::Release);
    // Relaxed: a request to stop.
    while !LET_GO.load(Ordering::Relaxed) {
        cpu::relax();
    }
    cpu::leave_space();
}

/// Runs `body` while the first `cpus` CPUs run `space`, this one among them.
fn with_holders<T>(space: &Arc<UserSpace>, cpus: usize, body: impl FnOnce() -> T) -> T {
    *HELD.lock() = Some(Arc::clone(space));
    HOLDERS.store(0, Ordering::Relaxed);
    LET_GO.store(false, Ordering::Relaxed);
    (1..cpus).for_each(|cpu| cpu::give(cpu, hold));
    // Acquire, partner: the Release in `hold`.
    while HOLDERS.load(Ordering::Acquire) < cpus - 1 {
        cpu::relax();
    }
    cpu::run_space(space);
    let result = body();
    cpu::leave_space();
    LET_GO.store(true, Ordering::Relaxed);
    cpu::wait_for_work();
    *HELD.lock() = None;
    result
}

fn pages(first: u64, count: u64) -> core::ops::Range<VirtAddr> {
    VirtAddr(START.0 + first * PAGE)..VirtAddr(START.0 + (first + count) * PAGE)
}

/// Stores to page `number` of the space, and returns what that took.
fn store(space: &UserSpace, number: u64) {
    let fault = space.fault(pages(number, 1).start, Access::USER_WRITE, Node(0));
    fault.unwrap_or_else(|error| panic!("{error}"));
}

fn finish<E: core::fmt::Display>(changed: Result<Flush<'_, UserFormat, Memory>, E>) {
    changed.unwrap_or_else(|error| panic!("{error}")).finish();
}

/// The operations in order, each with the number of flushes that it takes.
const OPERATIONS: [(&str, u64); 10] = [
    ("operation.map.1", 0),
    ("operation.protect.1", 1),
    ("operation.remap.1", 1),
    ("operation.unmap.1", 1),
    ("operation.unmap.512", 1),
    ("operation.fork", 1),
    ("operation.store.break-table", 1),
    ("operation.store.break-page", 1),
    // Concerns only the CPU that has faulted.
    ("operation.store.take-back", 0),
    // Of a space that no CPU runs.
    (DROP_OTHER, 2),
];
const TAKE_BACK: usize = 8;
const DROP_OTHER: &str = "operation.drop-other";

/// How many CPUs run the space.
const RUNNING: [usize; 3] = [1, 2, CPUS];

/// Returns what each of [`OPERATIONS`] has counted.
fn costs(space: &UserSpace) -> [Counts; OPERATIONS.len()] {
    let measure = |operation: &mut dyn FnMut()| {
        let before = now();
        operation();
        before.since()
    };
    let mut child = None;
    let map = measure(&mut || map_one(space, pages(768, 1).start));
    let protect = measure(&mut || finish(space.protect(pages(600, 1), Rights::READ)));
    let remap = measure(&mut || finish(space.remap(pages(600, 1), pages(1024, 1).start)));
    let unmap = measure(&mut || finish(space.unmap(pages(1024, 1))));
    let unmap_table = measure(&mut || finish(space.unmap(pages(0, 512))));
    let fork = measure(&mut || {
        let (space, flush) = space.fork(next_id()).unwrap_or_else(|error| panic!("{error}"));
        flush.finish();
        child = Some(space);
    });
    let break_table = measure(&mut || store(space, 601));
    let break_page = measure(&mut || store(space, 602));
    let drop_other = measure(&mut || child = None);
    // The table is this space's own since the first of these, and the page since the child is gone.
    let take_back = measure(&mut || store(space, 603));
    [map, protect, remap, unmap, unmap_table, fork, break_table, break_page, take_back, drop_other]
}

pub(super) fn run() {
    let frames = memory::in_use();
    let costs = RUNNING.map(|cpus| {
        let space = mmu::new_user_space(kernel_space::get(), next_id()).unwrap_or_else(|error| panic!("{error}"));
        fill(&space, BYTES);
        let space = Arc::new(space);
        with_holders(&space, cpus, || costs(&space))
    });
    for (index, (name, flushes)) in OPERATIONS.into_iter().enumerate() {
        let is = costs.map(|costs| (costs[index].flushes, costs[index].flush_calls));
        say!("paging.{name}.flushes {}", is[0].0);
        for (cpus, (_, calls)) in RUNNING.into_iter().zip(is) {
            say!("paging.{name}.ipis.cpus-{cpus} {calls}");
        }
        // Each CPU that runs the space is called, and no other.
        let callees = |cpus: usize| if name == DROP_OTHER { 0 } else { cpus as u64 - 1 };
        check::equal(name, is, RUNNING.map(|cpus| (flushes, flushes * callees(cpus))));
    }
    // Only where CPUs keep the translation at which they faulted.
    let local = costs.map(|costs| costs[TAKE_BACK].local_flushes);
    check::equal("operation.store.take-back.local", local, [u64::from(!UserFormat::FAULT_EVICTS); 3]);
    check::equal("operation.leaks", memory::in_use(), frames);
}
