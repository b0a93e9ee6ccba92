//! Top byte ignore (TBI): bits 63 to 56 of a user pointer (`Documentation/arch/arm64/tagged-address-abi.rst`; system
//! calls that manage memory take such pointers without being asked since Linux 5.4, but for `mmap`, `brk` and the new
//! address of `mremap`).

/// Set in addresses of the kernel, whose top byte is not ignored.
const KERNEL: usize = 1 << 55;
const TAG: usize = 0xff << 56;

/// What the kernel takes `address` for where it manages memory (`untagged_addr` in `arch/arm64/include/asm/uaccess.h`).
#[inline]
pub fn untagged(address: usize) -> usize {
    if address & KERNEL == 0 { address & !TAG } else { address }
}

/// A tag that pointers of this process may have; none if they may not.
pub fn pointer_tag() -> Option<usize> {
    Some(0x5a << 56)
}
