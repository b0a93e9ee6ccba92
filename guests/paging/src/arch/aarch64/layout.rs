//! Where things are. Fixed by `link.ld`, `boot.s` and QEMU's command line (see README.md).

/// The first physical address of memory.
pub(crate) const RAM_BASE: u64 = 0x4000_0000;

/// Virtual addresses of all physical memory: what is at `p` is at `PHYSICAL_MAP + p`.
pub(crate) const PHYSICAL_MAP: u64 = 0xffff_ff80_0000_0000;

/// What to add to a physical address of the kernel's image to get where it is linked.
pub(crate) const LINK_OFFSET: u64 = 0xffff_ffff_8000_0000;

/// Where the image is loaded.
pub(crate) const LOADED_AT: u64 = 0x4040_0000;

/// The gigabytes of the physical map that are memory.
pub(crate) const RAM_GIGABYTES: core::ops::Range<u64> = 1..2;

/// The gigabytes with devices: the interrupt controller and the serial line.
pub(crate) const DEVICE_GIGABYTES: core::ops::Range<u64> = 0..1;

/// Virtual addresses of the packs: beside the image, so that the same tables lead there.
pub(crate) const PACKS: u64 = LINK_OFFSET + RAM_BASE + 0x2000_0000;

/// The architecture's name in messages.
pub(crate) const NAME: &str = "AArch64";
