//! Palimpsest for C: the functions that `include/palimpsest.h` declares.
//!
//! `cargo build --release -p palimpsest-capi` makes `libpalimpsest_capi.so` and `libpalimpsest_capi.a`. A Rust program
//! that has C parts may depend on this crate instead and export the functions itself.
//!
//! Functions that follow the C library's (the [`arena`], [`guards`]) return null or -1, and set `errno`. All others
//! return a [`palimpsest_result`](result::palimpsest_result), and keep a message for each thread. What C holds is named
//! by handles, numbers that are looked up: one that was released or invented is an error. No panic crosses into C: each
//! function stops it, or says why it cannot panic.
//!
//! | module | functions |
//! |---|---|
//! | [`packs`], [`programs`], [`data`], [`pins`] | programs in executable huge pages, and data beside them |
//! | [`allocations`] | code and data that come and go together, by addresses: for linkers of compilers |
//! | [`lines`] | lines of the source, for debuggers and profilers |
//! | [`poke`], [`keys`] | changing code that runs; branches in C that are switched by rewriting them |
//! | [`freeze`], [`slices`], [`reports`] | freezing, at once or in slices, what it did, and forking |
//! | [`guards`] | memory calls of a process that has frozen, and thawing |
//! | [`snapshots`] | states of memory that are restored in the same process |
//! | [`arena`] | `palimpsest_arena_…`: an allocator whose memory forks in constant time |
//! | [`result`] | codes and messages |
//!
//! ```
//! use palimpsest_capi::arena::{palimpsest_arena_free, palimpsest_arena_freeze, palimpsest_arena_malloc};
//!
//! let block = palimpsest_arena_malloc(1 << 20);
//! assert!(!block.is_null());
//! // Forks from here on copy no page tables for it.
//! assert_eq!(palimpsest_arena_freeze(), 0);
//! // SAFETY: 1. a block of the arena, which is not used again.
//! unsafe { palimpsest_arena_free(block) };
//! ```

pub mod allocations;
pub mod arena;
pub mod data;
pub mod freeze;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod guards;
mod handles;
mod input;
mod kept;
pub mod keys;
pub mod lines;
mod mapped;
pub mod packs;
pub mod pins;
pub mod poke;
pub mod programs;
pub mod reports;
pub mod result;
pub mod slices;
pub mod snapshots;
mod versioned;
