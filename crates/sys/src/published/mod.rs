//! A value that is replaced while others read it, at the price of a few plain loads and stores for each read.
//!
//! A read has no fence, and no store to memory that other readers use. The price is paid by who replaces the value:
//! `membarrier` on all threads, and the old value lives until no thread is in a read that began before. Nobody waits
//! for anybody.
//!
//! ```
//! use palimpsest_sys::published::Published;
//!
//! let limits = Published::new(vec![10, 20]);
//! let before = limits.read();
//! limits.replace(vec![30]);
//! // What is being read stays, and keeps the old value.
//! assert_eq!((before.len(), limits.read().len()), (2, 1));
//! assert_eq!(limits.reclaim(), 1);
//! drop(before);
//! assert_eq!(limits.reclaim(), 0);
//! ```
//!
//! `seats` has the protocol, `thread` what happens to threads, forks and signals.

#![cfg_attr(loom, expect(dead_code, reason = "the models need no threads of the process, forks and signals"))]

mod primitive;
mod seats;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod thread;
mod versions;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(not(loom))]
pub use shared::{Pinned, Published, Reading, Replaced, pin};
