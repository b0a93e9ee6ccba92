//! The one unsafe module of this crate: mappings of the baselines, the peers' unsafe interfaces, and entering compiled code.
#![expect(
    unsafe_code,
    reason = "maps memory, writes and calls code; everything outside this module uses its safe interface"
)]

mod area;
#[cfg(feature = "peers")]
mod peers;
mod population;

pub(crate) use area::CodeArea;
#[cfg(feature = "peers")]
pub(crate) use peers::{Allocated, DualAllocator, OwnedModule};
pub(crate) use population::Population;

/// Makes freshly written code visible to instruction fetch, where the CPU does not see to that itself.
fn make_visible(start: std::ptr::NonNull<u8>, len: usize) {
    let start = start.addr().get();
    palimpsest_sys::arch::flush_instruction_cache(start..start + len);
}
