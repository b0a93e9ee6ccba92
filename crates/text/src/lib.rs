//! Executable memory that is rewritten while it runs.
//!
//! [`Packs`] puts many small programs, as just-in-time compilers make them, side by side into 2 MiB packs: one huge
//! page, one entry of the instruction TLB, two mappings. Code is written through another view of the same memory, so
//! that no mapping is ever writable and executable.
//!
//! ```ignore-aarch64
//! use palimpsest_text::Packs;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let packs = Packs::new()?;
//! // mov eax, 42; ret
//! let program = packs.load(&[0xB8, 42, 0, 0, 0, 0xC3], 16)?;
//! // SAFETY: the bytes are a function of that type, and `program` outlives the call.
//! let answer = unsafe { program.function::<extern "C" fn() -> i32>() };
//! assert_eq!(answer(), 42);
//! # Ok(())
//! # }
//! ```
//!
//! Without the feature `std` only the `no_std` cores are left, for kernels and hypervisors: [`ChunkMap`], and the
//! protocol of [`poke`].

#![cfg_attr(not(feature = "std"), no_std)]

mod chunks;

#[cfg(feature = "std")]
mod address;
#[cfg(feature = "std")]
pub mod key;
pub mod link;
#[cfg(feature = "std")]
pub mod observe;
#[cfg(feature = "std")]
mod pack;
pub mod poke;
#[cfg(feature = "std")]
mod primitive;
#[cfg(feature = "std")]
pub mod replicas;

pub use chunks::ChunkMap;

#[cfg(feature = "std")]
pub use address::CodeAddress;
#[cfg(feature = "std")]
pub use observe::{Loaded, ObserveError, Observer, Patch, Patched};
#[cfg(feature = "std")]
pub use pack::*;
#[cfg(feature = "std")]
pub use replicas::{NodePacks, ReplicatedData, ReplicatedPacks, ReplicatedProgram, StagedReplicas};
