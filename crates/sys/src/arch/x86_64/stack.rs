//! Calls on another stack: System V ABI, AMD64 supplement, sections 3.2.1 and 3.2.2.

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
        "push rbp",
        // The called function preserves it.
        "mov rbp, rsp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
    )
}
