//! The concurrency seam: atomics of the standard library, or loom's under `--cfg loom`.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, fence};

use std::sync::atomic::Ordering;

/// Is the frequent side of an asymmetric barrier: keeps the compiler from moving memory accesses across it. Partner:
/// the rare side's barrier on every thread (`thread::barrier`). loom has no such barrier, so there both are
/// sequentially consistent fences, which order the same pairs.
#[inline]
pub(super) fn light_barrier() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Orders the accesses before it and after it as all threads see them. Partner: itself in another thread.
pub(super) fn full_barrier() {
    fence(Ordering::SeqCst);
}
