//! Atomics that CPUs race for, besides entries: counts and locks. Under `--cfg loom` they are loom's.
//!
//! Entries are not: a table has 512, more than loom can follow. Counts, locks and flushes, which loom does follow,
//! order what may be read of them.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
