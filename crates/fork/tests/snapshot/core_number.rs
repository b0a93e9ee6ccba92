//! The word in which the kernel keeps the number of the thread's core (`struct rseq`), on a page with variables of the
//! thread.

use std::cell::Cell;

use palimpsest_fork::snapshot::{Scope, Snapshot, SnapshotOptions, Sweep};

thread_local! {
    static LOCAL: Cell<u64> = const { Cell::new(6) };
}

/// Restores on another core than the one that the snapshot was taken on.
pub(crate) fn is_left_to_the_kernel() {
    if !go_to(1) || !go_to(0) {
        return println!("skipped: one core");
    }
    // SAFETY: 1. the process has one thread, and does no asynchronous I/O; 2. and 3. nothing of that is done.
    let mut snapshot = unsafe { Snapshot::take(&SnapshotOptions::new(Scope::Whole).sweep(Sweep::Always)) }.unwrap();
    for _ in 0..200 {
        go_to(1);
        LOCAL.set(60);
        // SAFETY: as above; no value in this frame refers to memory that was made since.
        unsafe { snapshot.restore() }.unwrap();
        assert_eq!(LOCAL.get(), 6);
        // glibc from 2.35 on reads the kernel's word, which must not be that of the snapshot. SAFETY: asks for a
        // number.
        assert_eq!(unsafe { libc::sched_getcpu() }, 1);
        go_to(0);
    }
}

/// Runs on this core only from now on. Returns false if there is none.
fn go_to(core: usize) -> bool {
    // SAFETY: zeroes are an empty set.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: sets a bit of a local.
    unsafe { libc::CPU_SET(core, &mut cores) };
    // SAFETY: the set is a local of this length.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cores) == 0 }
}
