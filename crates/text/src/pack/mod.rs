//! Program packs: many programs in one executable huge page.
//!
//! # Parts
//!
//! | module | what it holds |
//! |---|---|
//! | `handle`, `builder`, `policy` | [`Packs`]: what the user holds, and what it is opened with |
//! | `root`, `shard` | one [`Store`](store::Store) per process, also in forked children; one shard of it per CPU |
//! | `store`, `open`, `place`, `release` | the region, its slots of 2 MiB, how places are taken and come back |
//! | `parts`, `allocation`, `allocated`, `group` | code and data that come and go together, also by address |
//! | `contents` | a pack, and what its directory says of each place in it |
//! | `memory`, `backing` | one pack's memory, two views of it, and the kinds of it |
//! | `directory`, `retired`, `epoch` | lock-free: who covers an address, what waits, who may still be inside |
//! | `limbo`, `reclaim` | collects, waits, fills with traps, frees |
//!
//! # Locks
//!
//! `reclaiming` alone; `grow` → `graveyard` → a slot's `state` → the region's list of views, in this order. None is
//! held while code is copied or an observer is called, and none is taken by [`Packs::lookup`].

mod allocated;
mod allocation;
mod backing;
mod block;
mod builder;
mod config;
mod contents;
mod data;
mod directory;
mod epoch;
mod error;
mod fault;
mod found;
mod group;
mod handle;
mod limbo;
mod memory;
mod open;
mod participant;
mod parts;
mod pins;
mod place;
mod policy;
mod program;
mod reclaim;
mod release;
mod resume;
mod retired;
mod rewrite;
mod root;
mod shard;
mod slot;
mod staged;
mod stats;
mod store;
mod tally;

#[cfg(all(test, loom))]
mod loom_tests;

pub use allocated::Allocated;
pub use allocation::Allocation;
pub use backing::{Backing, BackingError, Refused, UnknownBacking};
pub use builder::PacksBuilder;
pub use data::{Data, DataAccess, StagedData};
pub use error::{
    AllocateError, FaultError, FinalizeError, ForkedError, FunctionError, LoadError, OpenError, OutsideProgram,
    ReclaimError, ReleaseError, ShrinkError, StageError, WriteError,
};
pub use fault::Fault;
pub use found::Found;
pub use group::Ownership;
pub use handle::Packs;
pub use limbo::Reclaimed;
pub(crate) use memory::Opened;
pub use participant::{Participant, Pinned};
pub use parts::{Part, Parts, Size, Working};
pub use pins::{NotPinned, Pins};
pub use policy::{BranchTargets, ForkPolicy, ReclaimPolicy, WriteView};
pub use program::Program;
pub use staged::Staged;
pub(crate) use staged::finalize_all;
pub use stats::{HugeMapped, Stats};

/// Bytes in a chunk, the unit in which a pack is shared out. One cache line: programs do not share one.
pub const CHUNK: usize = 64;

/// Bytes in a pack: one huge page.
pub const PACK: usize = palimpsest_sys::HUGE_PAGE;

/// Chunks in a pack.
const CHUNKS: u32 = (PACK / CHUNK) as u32;

/// The largest alignment of a program, in bytes.
pub const MAX_ALIGN: usize = 4096;
