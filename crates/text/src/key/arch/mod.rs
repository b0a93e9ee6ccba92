//! What differs between instruction sets: one file each with the same items, and one file for machines without
//! patching.
//!
//! Each has [`LEN`], [`falls`], [`jump`] and [`target`], and the macros that `branch!`, `static_call!` and `call!`
//! expand to.

#[cfg(all(target_arch = "x86_64", not(any(miri, palimpsest_atomic_keys))))]
#[path = "x86_64.rs"]
mod isa;

#[cfg(all(target_arch = "aarch64", not(any(miri, palimpsest_atomic_keys))))]
#[path = "aarch64.rs"]
mod isa;

#[cfg(any(miri, palimpsest_atomic_keys, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "fallback.rs"]
mod isa;

pub(super) use isa::{LEN, falls, jump, target};

/// The bytes of one site.
pub(super) type Code = [u8; LEN];
