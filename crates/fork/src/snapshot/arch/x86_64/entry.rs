//! Registers that a call preserves: System V ABI, AMD64 supplement, section 3.2.1.

use std::arch::{asm, naked_asm};
use std::ffi::c_void;

/// Calls `function(data)` and returns 0, or returns 1 once [`leave`] is called with the value stored to `anchor`.
///
/// `*anchor` becomes the stack pointer: the call runs below it, and the preserved registers lie above it, with the
/// control words of both floating-point units.
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
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // With the return address and six registers this aligns the stack to 16 bytes.
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rdi], rsp",
        "mov rdi, rdx",
        "call rsi",
        "xor eax, eax",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
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
        "mov rsp, rdi",
        "cld",
        // The call may be left while the x87's register stack is in use; callers must find it empty.
        "fninit",
        "fldcw [rsp + 4]",
        "ldmxcsr [rsp]",
        "mov eax, 1",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Returns the stack pointer of the caller, or a little less.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let value: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
