//! Calls on another stack: Procedure Call Standard for the Arm 64-bit Architecture, sections 6.1.1 and 6.4.5.

use core::arch::naked_asm;
use core::ffi::c_void;

/// Calls `function(data)` on the stack that ends at `top`, and returns on the caller's.
///
/// # Safety
///
/// 1. Below `top`, which is aligned to 16 bytes, is as much memory as the call needs, and nobody else uses it until
///    this returns.
/// 2. `function` may be called with `data`, and returns: it neither unwinds nor jumps away.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_on(top: usize, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) {
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        // The called function preserves it.
        "mov x29, sp",
        "mov sp, x0",
        "mov x0, x2",
        "blr x1",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        "ret",
    )
}
