//! Owners of locks without an operating system: CPUs.

use super::Holder;

/// Returns the owner's number, which is not 0.
pub(super) fn number(cpu: impl FnOnce() -> u32) -> u32 {
    // 0 is a lock that is free.
    cpu().saturating_add(1)
}

/// No CPU goes away.
pub(super) const fn is_gone(_owner: u32) -> bool {
    false
}

/// What the owner with this number does. Locks that ask for this do not know on which CPU they are taken, so that
/// whoever holds one must not be interrupted by somebody who wants it.
pub(super) const fn holder(_owner: u32) -> Holder {
    Holder::Runs
}
