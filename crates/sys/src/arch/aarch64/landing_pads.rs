//! Branch target identification (FEAT_BTI): in memory that is mapped so, branches through registers lead to landing
//! pads or are an illegal instruction.

use rustix::mm::ProtFlags;

/// `PROT_BTI` of `arch/arm64/include/uapi/asm/mman.h`. Kernels refuse it where the CPU has no such branches
/// (`arch_validate_prot`, `arch/arm64/include/asm/mman.h`).
const PROT_BTI: u32 = 0x10;
/// `HWCAP2_BTI` of `arch/arm64/include/uapi/asm/hwcap.h`: since Linux 5.8.
const HWCAP2_BTI: u64 = 1 << 17;

/// Returns what is added to the rights of code whose landing pads are checked; nothing where they are not.
pub fn landing_pad_rights() -> ProtFlags {
    // SAFETY: any type of entry; an unknown one gives 0.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    if capabilities & HWCAP2_BTI == 0 { ProtFlags::empty() } else { ProtFlags::from_bits_retain(PROT_BTI) }
}
