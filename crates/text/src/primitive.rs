//! The concurrency seam: atomics of the standard library, or loom's under `--cfg loom`.
//!
//! [`light_barrier`] and [`heavy_barrier`] form an asymmetric barrier: the frequent side pays nothing, since the rare
//! side runs a core synchronisation, which is a full barrier on every thread of the process (`sys::CoreSync`). loom has
//! no such barrier; there both are sequentially consistent fences, which order the same pairs.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence};

use std::sync::atomic::Ordering;

/// Is the frequent side: keeps the compiler from moving memory accesses across it. Partner: [`heavy_barrier`].
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Stands, in loom, for the rare side's core synchronisation. Partner: [`light_barrier`].
#[cfg(all(test, loom))]
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
}
