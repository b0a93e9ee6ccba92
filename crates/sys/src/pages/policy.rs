//! Policies of memory for NUMA nodes.

use crate::seccomp::FreezeCall;

/// Returns whether the mapping at `address` has a policy of its own (`get_mempolicy(2)`). If that is unknown, returns
/// false.
pub fn has_policy(address: usize) -> bool {
    /// `MPOL_F_ADDR` of `include/uapi/linux/mempolicy.h`.
    const OF_ADDRESS: usize = 2;
    const DEFAULT: i32 = 0;
    if FreezeCall::MemoryPolicy.is_deadly() {
        return false;
    }
    let mut mode = DEFAULT;
    // SAFETY: the kernel writes an int to `mode`; the set of nodes is not requested.
    let answer =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, 0_usize, 0_usize, address, OF_ADDRESS) };
    answer == 0 && mode != DEFAULT
}
