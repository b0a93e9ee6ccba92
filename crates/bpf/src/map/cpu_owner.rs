//! Owners of locks without an operating system: CPUs.

/// Returns the owner's number, which is not 0.
pub(super) const fn number(cpu: u32) -> u32 {
    cpu.wrapping_add(1)
}

/// No CPU goes away.
pub(super) const fn is_gone(_owner: u32) -> bool {
    false
}
