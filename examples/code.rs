//! A few functions as bytes, so that the examples need no compiler.

#![forbid(unsafe_code)]

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod arch;

/// `extern "C" fn(u64) -> u64` that adds one.
pub const ADD_ONE: &[u8] = arch::ADD_ONE;

/// `extern "C" fn() -> u32` that begins with an instruction without effect: as it is, it returns 1.
pub const ONE_OR_TWO: &[u8] = arch::ONE_OR_TWO;

/// What may replace that instruction of [`ONE_OR_TWO`]: a jump to its other half.
pub const TO_TWO: &[u8] = arch::TO_TWO;
