//! What differs for each ISA: programs full of sites, the format of a peer's page tables, and peers' compilers.
//!
//! A program full of sites is a function without arguments that returns how many of its sites fall through. A site that
//! is off is a NOP, and the instruction after it counts; a site that is on jumps past that instruction.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as isa;
#[cfg(target_arch = "x86_64")]
use x86_64 as isa;

#[cfg(feature = "peers")]
pub(crate) use isa::{MultiTable, compile_rbpf, compile_sbpf};
pub(crate) use isa::{OFF, ON, site_offset};

/// Returns a program with this many sites, all off.
pub(crate) fn program(sites: usize) -> Vec<u8> {
    isa::program(sites, &OFF)
}

/// Returns the same with a trap in place of each site, which a handler that does nothing passes; `None` if this ISA
/// changes sites without traps.
pub(crate) fn trapping(sites: usize) -> Option<Vec<u8>> {
    isa::TRAPPING.map(|trap| isa::program(sites, &trap))
}
