//! Entering compiled code on a stack of its own.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod isa;

use isa::KEPT;
pub(crate) use isa::{DEPTH, PROGRAMS, enter};

/// What [`enter`] reads and writes; the assembly knows the offsets.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Entrance {
    /// The code.
    pub(crate) entry: u64,
    /// The end of its stack, a multiple of 16.
    pub(crate) stack: u64,
    /// `r1` and `r2`.
    pub(crate) arguments: [u64; 2],
    /// `r0`.
    pub(crate) result: u64,
    /// The stack pointer after the call.
    pub(crate) stack_after: u64,
    /// The registers that a function keeps for its caller, before and after the call.
    pub(crate) kept: [u64; KEPT],
    pub(crate) kept_after: [u64; KEPT],
    /// The caller's stack.
    pub(crate) own_stack: u64,
    /// The sixth argument, and the second result.
    pub(crate) gauge: i64,
}

/// Where the assembly finds the [`Entrance`] after a call that may have spoilt every register.
pub(crate) static CURRENT: std::sync::atomic::AtomicPtr<Entrance> =
    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
