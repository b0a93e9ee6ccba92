//! The smallest program of each instruction set: a function that returns a number.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{nop_and_jump, return_number};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{nop_and_jump, return_number};
