//! Atomics of what CPUs race for beside entries: counts and locks. Under `--cfg loom` they are loom's.
//!
//! Entries are not: there are 512 to a table, more than loom can follow. What may be read of them is ordered by counts,
//! locks and flushes, which it does follow.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
