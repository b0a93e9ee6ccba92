//! Accesses of the kernel that may fault, to show what its tables refuse.

use palimpsest_paging::{AccessKind, VirtAddr};

// In `trap.s`.
unsafe extern "C" {
    fn probe_store(address: u64, value: u64) -> u64;
    static probe_store_at: [u8; 0];
    fn probe_load(address: u64) -> u64;
    static probe_load_at: [u8; 0];
    fn probe_execute(address: u64) -> u64;
    static probe_executed: [u8; 0];
    static probe_failed: [u8; 0];
}

/// Tries an access at `address`, a store by storing zero. Returns whether the kernel may do it.
///
/// # Safety
///
/// 1. Nobody minds the store of zero to `address`, and what is run there is [`RETURN`](crate::arch::RETURN).
pub(crate) unsafe fn passes(address: VirtAddr, access: AccessKind) -> bool {
    let passed = match access {
        // SAFETY: a fault is resumed behind the load.
        AccessKind::Read => unsafe { probe_load(address.0) },
        // SAFETY: a fault is resumed behind the store; nobody minds it (1).
        AccessKind::Write => unsafe { probe_store(address.0, 0) },
        // SAFETY: a fault is resumed behind the call; what runs returns (1).
        AccessKind::Execute => unsafe { probe_execute(address.0) },
    };
    passed == 1
}

/// Returns where to continue after a trap at a function's first instruction, if a probe has called the function and it
/// would return to `to`.
pub(crate) fn recover_call(to: u64) -> Option<u64> {
    (to == (&raw const probe_executed) as u64).then_some((&raw const probe_failed) as u64)
}

/// Returns where to continue after a fault of the kernel's instruction `at`, for access to `address`, if it is a
/// probe's.
pub(crate) fn recover(at: u64, address: u64) -> Option<u64> {
    let probes = [(&raw const probe_store_at) as u64, (&raw const probe_load_at) as u64];
    (probes.contains(&at) || at == address).then_some((&raw const probe_failed) as u64)
}
