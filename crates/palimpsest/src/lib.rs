//! Rewrite memory while it is in use.
//!
//! | module | contents | crate |
//! |---|---|---|
//! | [`text`] | program packs, live patching, static keys, observers | `palimpsest-text` |
//! | [`fork`] | fork in constant time, arenas, snapshots | `palimpsest-fork` |
//! | [`numa`] | the nodes of the machine, and data with a copy on each | `palimpsest-numa` |
//! | [`paging`] | page tables for kernels and VMMs | `palimpsest-paging` |
//! | [`bpf`] | eBPF programs: verified, interpreted, compiled into packs | `palimpsest-bpf` |
//! | [`sys`] | their interface to Linux and the CPU | `palimpsest-sys` |
//!
//! Most users begin with [`Packs`]:
//!
//! ```ignore-aarch64
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let packs = palimpsest::Packs::new()?;
//! // lea eax, [rdi + rsi]; ret
//! let add = packs.load_named("add", &[0x8D, 0x04, 0x37, 0xC3], 16)?;
//! // SAFETY: the bytes are a function of that type, and `add` outlives the call.
//! let function = unsafe { add.function::<extern "C" fn(i32, i32) -> i32>() };
//! assert_eq!(function(40, 2), 42);
//! # Ok(())
//! # }
//! ```
//!
//! The rest is in the modules:
//!
//! ```
//! use palimpsest::paging::PageSize;
//! use palimpsest::{bpf, fork, sys};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! assert_eq!(PageSize::Small.bytes(), 4096);
//! assert_eq!(fork::frozen_bytes(), 0, "nothing is frozen before `fork::freeze`");
//! sys::CoreSync::new()?.sync()?;
//! let code = bpf::Code::new(&bpf::asm::assemble("r0 = r1\n exit")?)?;
//! let mut memory = bpf::interp::Memory::new();
//! let mut interpreter = bpf::interp::Interpreter::default();
//! assert_eq!(interpreter.run(&code, [42, 0, 0, 0, 0], &mut memory, &mut bpf::interp::NoHelpers)?, 42);
//! # Ok(())
//! # }
//! ```

#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "bpf")]
pub use palimpsest_bpf as bpf;
#[cfg(feature = "capi")]
pub use palimpsest_capi as capi;
#[cfg(feature = "fork")]
pub use palimpsest_fork as fork;
#[cfg(feature = "numa")]
pub use palimpsest_numa as numa;
#[cfg(feature = "paging")]
pub use palimpsest_paging as paging;
#[cfg(feature = "std")]
pub use palimpsest_sys as sys;
pub use palimpsest_text as text;
#[cfg(feature = "std")]
pub use palimpsest_text::{Packs, PacksBuilder, Program, ReplicatedPacks, ReplicatedProgram};
