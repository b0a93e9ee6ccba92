//! Registers that a call preserves: Procedure Call Standard for the Arm 64-bit Architecture, sections 6.1.1 and 6.1.2.

use std::arch::{asm, naked_asm};
use std::ffi::c_void;

/// Calls `function(data)` and returns 0, or returns 1 once [`leave`] is called with the value stored to `anchor`.
///
/// `*anchor` becomes the stack pointer: the call runs below it, and the preserved registers lie above it, with the
/// floating-point control register.
///
/// # Safety
///
/// 1. `anchor` can be written.
/// 2. `function` may be called with `data`.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call(
    anchor: *mut usize,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> usize {
    naked_asm!(
        "sub sp, sp, #176",
        "stp x29, x30, [sp]",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mrs x9, fpcr",
        "str x9, [sp, #160]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov x0, x2",
        "blr x1",
        "mov x0, #0",
        "ldp x29, x30, [sp]",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #176",
        "ret",
    )
}

/// Makes the call with this anchor return 1.
///
/// # Safety
///
/// 1. The call has not returned, and this is its thread.
/// 2. Nobody needs what the frames in between would have done on their way out.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn leave(anchor: usize) -> ! {
    naked_asm!(
        "mov sp, x0",
        "ldr x9, [sp, #160]",
        "msr fpcr, x9",
        "mov x0, #1",
        "ldp x29, x30, [sp]",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #176",
        "ret",
    )
}

/// Returns the stack pointer of the caller, or a little less.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let value: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, sp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
