//! A system call without the C library: number in `rax`, arguments in `rdi`, `rsi`, `rdx`, `r10` (`syscall(2)`).

use core::arch::asm;

/// Makes the system call `number`, and gives what the kernel answers: `-errno` for an error. Uses neither `errno` nor
/// anything else that a thread has for itself, so that it may be used in a process that borrows its parent's memory.
///
/// # Safety
///
/// 1. The call with these arguments does no harm to memory that Rust code relies on.
#[inline]
pub(crate) unsafe fn system_call(number: i64, arguments: [usize; 4]) -> isize {
    let [a, b, c, d] = arguments;
    let answer: isize;
    // SAFETY: 1.; the instruction itself changes `rax`, `rcx` and `r11`, as told here, and nothing of the stack.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}
