//! Linear address masking (LAM): bits 62 to 57 of a user pointer, if the process has asked for them (Linux 6.4;
//! `untagged_addr` in `arch/x86/include/asm/uaccess_64.h`, `prctl_enable_tagged_addr` in
//! `arch/x86/kernel/process_64.c`).

/// Bits that no user address has without LAM, even with five levels of tables.
const TAG: usize = 0x3f << 57;
/// Bit 63 is never ignored.
const KERNEL: usize = 1 << 63;
/// `ARCH_GET_UNTAG_MASK` of `arch/x86/include/uapi/asm/prctl.h`.
const ARCH_GET_UNTAG_MASK: usize = 0x4001;

/// Returns `address` as the kernel's memory management sees it.
#[inline]
pub fn untagged(address: usize) -> usize {
    if address & TAG == 0 || address & KERNEL != 0 { address } else { address & mask() }
}

/// Returns a tag that this process's pointers may have; `None` if they may have none.
pub fn pointer_tag() -> Option<usize> {
    Some(!mask() & TAG).filter(|&tag| tag != 0)
}

/// Returns the bits that are not ignored: all of them before Linux 6.4 and in a process that has not asked for LAM.
#[cold]
fn mask() -> usize {
    let mut mask = usize::MAX;
    // SAFETY: the kernel writes one word, to a local, and only if it knows the request.
    let answer = unsafe {
        super::system_call::system_call(
            libc::SYS_arch_prctl,
            [ARCH_GET_UNTAG_MASK, (&raw mut mask).expose_provenance(), 0, 0],
        )
    };
    if answer == 0 { mask } else { usize::MAX }
}
