//! What differs between instruction sets, under the same names for each: which instructions can be poked, and what they
//! do.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "other.rs")]
mod isa;

pub use isa::{DETOUR, TEXT_BY_SINGLE_STORE, TRAP, TRAPS, check, fits_single_store, holds, store_whole, stored};

/// Why an instruction cannot be poked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No instruction can start at the address.
    Misaligned,
    /// The architecture does not allow changing the old or the new instruction while it may run.
    NotPatchable,
}
