//! Palimpsest for C: the functions that `include/palimpsest.h` declares.
//!
//! `cargo build --release -p palimpsest-capi` makes `libpalimpsest_capi.so` and `libpalimpsest_capi.a`. A Rust program
//! that has C parts may depend on this crate instead and export the functions itself.
//!
//! Errors are codes: null or -1, and `errno`. No panic crosses into C: it would end the process at the boundary
//! (`extern "C"`).
//!
//! | module | functions |
//! |---|---|
//! | [`arena`] | `palimpsest_arena_…`: an allocator whose memory forks in constant time |
//!
//! ```
//! use palimpsest_capi::arena::{palimpsest_arena_free, palimpsest_arena_freeze, palimpsest_arena_malloc};
//!
//! let block = palimpsest_arena_malloc(1 << 20);
//! assert!(!block.is_null());
//! // Forks from here on copy no page tables of it.
//! assert_eq!(palimpsest_arena_freeze(), 0);
//! // SAFETY: 1. a block of the arena, which is not used again.
//! unsafe { palimpsest_arena_free(block) };
//! ```

pub mod arena;
