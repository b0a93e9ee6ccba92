//! Top byte ignore (TBI): bits 63 to 56 of a user pointer (`Documentation/arch/arm64/tagged-address-abi.rst`; since
//! Linux 5.4 system calls that manage memory accept such pointers by default, except `mmap`, `brk` and the new address
//! of `mremap`).

/// Is set in addresses of the kernel, whose top byte is not ignored.
const KERNEL: usize = 1 << 55;
const TAG: usize = 0xff << 56;

/// Returns `address` as the kernel's memory management sees it (`untagged_addr` in `arch/arm64/include/asm/uaccess.h`).
#[inline]
pub fn untagged(address: usize) -> usize {
    if address & KERNEL == 0 { address & !TAG } else { address }
}

/// Returns a tag that this process's pointers may have; `None` if they may have none.
pub fn pointer_tag() -> Option<usize> {
    Some(0x5a << 56)
}
