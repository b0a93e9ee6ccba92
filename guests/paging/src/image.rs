//! Where the kernel's image runs: at one of several addresses, to which the boot code has moved its pointers.

use crate::arch::layout;

/// The distance between the addresses at which the image can run. The first is where it is linked; `boot.s` chooses.
pub(crate) const SLOT: u64 = 2 << 20;
/// How many there are.
pub(crate) const SLOTS: u64 = 128;

// In `link.ld`.
unsafe extern "C" {
    static image_start: [u8; 0];
    static rela_start: [u8; 0];
    static rela_end: [u8; 0];
}

/// Returns what to add to a physical address of the image to get where it runs.
pub(crate) fn offset() -> u64 {
    (&raw const image_start) as u64 - layout::LOADED_AT
}

/// A pointer that `boot.s` has moved (System V ABI, "Relocation").
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Relocation {
    /// Where it is linked.
    pub(crate) address: u64,
    /// The architecture's number for a pointer; there are no others.
    kind: u64,
    /// What it would point to if the image ran where it is linked.
    pub(crate) value: u64,
}

/// Returns the pointers that `boot.s` has moved.
pub(crate) fn relocations() -> &'static [Relocation] {
    let (start, end) = ((&raw const rela_start) as usize, (&raw const rela_end) as usize);
    // SAFETY: the linker has put its entries there, aligned to 8; they are read-only.
    unsafe { core::slice::from_raw_parts(start as *const Relocation, (end - start) / size_of::<Relocation>()) }
}
